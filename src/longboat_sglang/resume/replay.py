"""Forces a replay in SGLang: in its scheduler, a request samples given tokens first, one step each.

The tokens arrive as a parameter of sampling. SGLang's own custom processors, which clients could send as code, stay
switched off: this module puts its own entry where they would stand, so that SGLang keeps the rows of a batch right.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from longboat_vllm.resume.carry import FORCED_TOKENS
from longboat_vllm.shapes import expect

__all__ = ("forced_rows", "install")

_MARK = "_longboat_replay"
_KEY = 0
"""Key of our entry among SGLang's, whose keys are hashes of code."""
_PROMPT = "longboat_prompt"
"""Number of the prompt's tokens, beside the forced tokens."""


def install() -> None:
    """Wrap the making of batches and the sampler. Raises UnexpectedShapeError."""
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.sampling.sampling_batch_info import ProcessorEntry, SamplingBatchInfo

    made = SamplingBatchInfo.from_schedule_batch.__func__
    if hasattr(made, _MARK):
        return
    names = tuple(inspect.signature(Sampler.forward).parameters)
    expect(names[1:3] == ("logits_output", "sampling_info"), "the sampler takes other arguments")
    expect("positions" in names and "logprob_logits" in names, "the sampler does not know positions")
    expect(tuple(inspect.signature(ProcessorEntry).parameters) == ("processor", "rows", "indices"), "rows are kept")
    SamplingBatchInfo.from_schedule_batch = classmethod(_noting(made))
    Sampler.forward = _forcing(Sampler.forward)


def _noting(made: Any) -> Any:
    """Wrap ``SamplingBatchInfo.from_schedule_batch`` so that a batch knows the forced tokens of its requests."""

    @functools.wraps(made)
    def from_schedule_batch(cls: Any, batch: Any, vocab_size: int) -> Any:
        info = made(cls, batch, vocab_size)
        forced = [_forced_of(request) for request in batch.reqs]
        if any(forced):
            _note(info, forced)
        return info

    setattr(from_schedule_batch, _MARK, True)
    return from_schedule_batch


def _forced_of(request: Any) -> dict[str, Any] | None:
    ids = (request.sampling_params.custom_params or {}).get(FORCED_TOKENS)
    return {FORCED_TOKENS: ids, _PROMPT: len(request.origin_input_ids)} if ids else None


def _note(info: Any, forced: list[dict[str, Any] | None]) -> None:
    import torch
    from sglang.srt.sampling.sampling_batch_info import ProcessorEntry

    rows = [row for row, params in enumerate(forced) if params]
    entry = ProcessorEntry(_unchanged, rows, torch.tensor(rows, dtype=torch.long, device=info.device))
    info.has_custom_logit_processor = True
    info.custom_logit_processor = {_KEY: entry}
    info.custom_params = forced


def _unchanged(logits: Any, _params: Any) -> Any:
    """Be SGLang's processor of the forced rows: ``forward`` has forced them already."""
    return logits


def _forcing(forward: Any) -> Any:
    """Wrap ``Sampler.forward`` so that forced rows have one possible token."""

    @functools.wraps(forward)
    def forward_forced(
        sampler: Any, output: Any, info: Any, with_logprobs: bool, tops: Any, ids: Any, positions: Any, **kwargs: Any
    ) -> Any:
        if info.has_custom_logit_processor and info.custom_params:
            rows = forced_rows(info.custom_params, positions)
            if rows and with_logprobs and kwargs.get("logprob_logits") is None:
                kwargs["logprob_logits"] = output.next_token_logits.clone()
            for row, token in rows.items():
                output.next_token_logits[row] = float("-inf")
                output.next_token_logits[row, token] = 0.0
        return forward(sampler, output, info, with_logprobs, tops, ids, positions, **kwargs)

    return forward_forced


def forced_rows(params: list[dict[str, Any] | None], positions: Any) -> dict[int, int]:
    """Return the token of each row that is forced now. positions: of the last computed token of each row."""
    found = {}
    for row, own in enumerate(params):
        ids = (own or {}).get(FORCED_TOKENS)
        if own is None or not ids:
            continue
        num_out = int(positions[row]) + 1 - own[_PROMPT]
        if 0 <= num_out < len(ids):
            found[row] = ids[num_out]
    return found
