"""Forces a replay in vLLM: a logits processor makes a request sample given tokens first, one step each.

Grammar, penalties, random draws and parsers advance by themselves, so a replay is exact wherever it runs, and slower
than carrying. vLLM does not run such a processor together with speculative decoding.
"""

from __future__ import annotations

import functools
from typing import Any

from longboat_vllm.resume.carry import FORCED_TOKENS
from longboat_vllm.shapes import expect

__all__ = ("install",)

_MARK = "_longboat_replay"


def install() -> None:
    """Add the processors to vLLM's installed ones, for both model runners. Raises UnexpectedShapeError."""
    from vllm.platforms import current_platform
    from vllm.v1.sample import logits_processor

    expect(hasattr(logits_processor, "_load_logitsprocs_plugins"), "logits processors are loaded elsewhere")
    expect(hasattr(logits_processor, "process_dict_updates"), "logits processors are updated in another way")
    load = logits_processor._load_logitsprocs_plugins
    if not hasattr(load, _MARK):
        logits_processor._load_logitsprocs_plugins = _with(load, _processor_v1)
    if current_platform.is_cpu():
        return  # runner V2 needs Triton; importing its rooms would cost each process of a CPU engine a second
    try:
        from vllm.v1.worker.gpu.sample.logits_processor import loader
    except ImportError:
        return  # this vLLM's second runner has no processors; the proof then shows that replay does not work
    if not hasattr(loader._load_v2_logitsprocs_plugins, _MARK):
        loader._load_v2_logitsprocs_plugins = _with(loader._load_v2_logitsprocs_plugins, _processor_v2)


def _with(load: Any, make: Any) -> Any:
    @functools.wraps(load)
    def load_with_replay() -> list[Any]:
        return [*load(), make()]

    setattr(load_with_replay, _MARK, True)
    return load_with_replay


def _forced_of(params: Any) -> list[int]:
    return (params.extra_args or {}).get(FORCED_TOKENS) or []


@functools.cache
def _processor_v1() -> Any:
    from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

    class ForcedReplay(LogitsProcessor):  # type: ignore[misc]
        """The processor of model runner V1. A request's list of output is live: its length gives the next token."""

        def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
            self._forced: dict[int, tuple[list[int], list[int]]] = {}

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            process_dict_updates(self._forced, batch_update, _forced_and_output)

        def apply(self, logits: Any) -> Any:
            for row, (forced, output) in tuple(self._forced.items()):
                if len(output) >= len(forced):
                    del self._forced[row]
                else:
                    _force(logits, row, forced[len(output)])
            return logits

    return ForcedReplay


def _forced_and_output(params: Any, _prompt: list[int] | None, output: list[int]) -> tuple[list[int], list[int]] | None:
    forced = _forced_of(params)
    return (forced, output) if forced else None


def _force(logits: Any, row: int, token: int) -> None:
    logits[row] = float("-inf")
    logits[row, token] = 0.0


@functools.cache
def _processor_v2() -> Any:
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor

    class ForcedReplayV2(LogitsProcessor):  # type: ignore[misc]
        """The processor of model runner V2. A request keeps its slot; its length in a step gives the next token."""

        def __init__(self, vllm_config: Any, req_states: Any) -> None:
            self._prompt_tokens = req_states.prompt_len
            self._forced: dict[int, list[int]] = {}

        def add_request(self, req_idx: int, sampling_params: Any) -> bool:
            self._forced.pop(req_idx, None)
            if forced := _forced_of(sampling_params):
                self._forced[req_idx] = forced
            return bool(forced)

        def apply(self, logits: Any, ctx: Any) -> Any:
            for row, slot in enumerate(ctx.idx_mapping_np.tolist() if self._forced else ()):
                forced = self._forced.get(slot)
                num_out = int(ctx.seq_lens_upper_bound_np[row]) - int(self._prompt_tokens.np[slot])
                if forced is not None and 0 <= num_out < len(forced):
                    _force(logits, row, forced[num_out])
            return logits

    return ForcedReplayV2
