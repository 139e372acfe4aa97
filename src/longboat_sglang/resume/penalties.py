"""Makes answers with penalties the same in every process of SGLang, and on a busy engine.

SGLang keeps the kinds of penalties in a set of classes, whose order depends on addresses in memory: one process divides
a logit before it subtracts from it, another one afterwards. Here the order is that of their names: divide last.

Where its cache is full, SGLang takes a running request back and computes it again later, with the tokens that it had.
Penalties and the least number of tokens then count later tokens only. Here they count all tokens.

Each part can be dropped when SGLang does so.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("install",)

_MARK = "_longboat_penalties"


def install() -> None:
    """Wrap the making of batches. Raises UnexpectedShapeError."""
    from sglang.srt.sampling import penaltylib
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    made = SamplingBatchInfo.from_schedule_batch.__func__
    if hasattr(made, _MARK):
        return
    names = tuple(inspect.signature(made).parameters)
    expect(names[:3] == ("cls", "batch", "vocab_size"), "penalties are made elsewhere")
    orchestrator = inspect.getsource(penaltylib.BatchedPenalizerOrchestrator)
    expect("for penalizer in self.penalizers.values()" in orchestrator, "penalties have another order")
    for kind, (fields, _) in _COUNTS.items():
        source = inspect.getsource(getattr(penaltylib, kind))
        expect(all(f"self.{field}" in source for field in fields), f"{kind} counts otherwise")
    SamplingBatchInfo.from_schedule_batch = classmethod(_counting(made))


def _counting(made: Any) -> Any:
    """Wrap ``SamplingBatchInfo.from_schedule_batch`` so that it puts penalties into their order, and counts the tokens
    that requests have already.
    """

    @functools.wraps(made)
    def from_schedule_batch(cls: Any, batch: Any, vocab_size: int) -> Any:
        info = made(cls, batch, vocab_size)
        penalties = info.penalizer_orchestrator
        if penalties is None:
            return info
        penalties.penalizers = dict(sorted(penalties.penalizers.items(), key=_name))
        if penalties.is_required and batch.forward_mode.is_extend():
            for row, request in enumerate(batch.reqs):
                if request.output_ids:
                    _count(penalties, row, request.output_ids)
        return info

    setattr(from_schedule_batch, _MARK, True)
    return from_schedule_batch


def _name(item: tuple[type, Any]) -> str:
    return item[0].__name__


def _count(penalties: Any, row: int, ids: Sequence[int]) -> None:
    import torch

    tokens = torch.tensor(list(ids), dtype=torch.int64, device=penalties.device)
    for kind, penalizer in penalties.penalizers.items():
        if penalizer.is_prepared() and kind.__name__ in _COUNTS:
            _COUNTS[kind.__name__][1](penalizer, row, tokens)


def _frequency(penalizer: Any, row: int, tokens: Any) -> None:
    each = penalizer.frequency_penalties[row].expand(len(tokens))
    penalizer.cumulated_frequency_penalties[row].index_add_(0, tokens, each)


def _presence(penalizer: Any, row: int, tokens: Any) -> None:
    penalizer.cumulated_presence_penalties[row, tokens] = penalizer.presence_penalties[row]


def _repetition(penalizer: Any, row: int, tokens: Any) -> None:
    penalizer.cumulated_repetition_penalties[row, tokens] = penalizer.repetition_penalties[row]


def _least(penalizer: Any, row: int, tokens: Any) -> None:
    penalizer.len_output_tokens[row] += len(tokens)


_COUNTS: dict[str, tuple[tuple[str, ...], Callable[[Any, int, Any], None]]] = {
    "BatchedFrequencyPenalizer": (("frequency_penalties", "cumulated_frequency_penalties"), _frequency),
    "BatchedPresencePenalizer": (("presence_penalties", "cumulated_presence_penalties"), _presence),
    "BatchedRepetitionPenalizer": (("repetition_penalties", "cumulated_repetition_penalties"), _repetition),
    "BatchedMinNewTokensPenalizer": (("len_output_tokens",), _least),
}
"""SGLang's class → its fields that are used here, and what counts tokens of a row."""
