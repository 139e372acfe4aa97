"""Fixes speculative decoding on CPU, where vLLM samples with settings that it never wrote.

The CPU kernel that repeats each request's temperature, top-k and top-p for its proposed tokens writes into a copy. What
is sampled then differs at each run, and a top-k left in memory can end the engine; so does a top-k in a step without
any proposed token. Can be dropped when vLLM's ``expand_kernel`` for CPU writes into its output, and its sampler looks
at no settings where there are no tokens.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("mend_speculation_on_cpu",)

_MENDED = "_longboat_mended"


def mend_speculation_on_cpu() -> None:
    """Repeat the settings with torch. Raises UnexpectedShapeError where vLLM's code differs."""
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    if hasattr(rejection_sampler.expand_batch_to_tokens, _MENDED):
        return
    source = inspect.getsource(cpu_triton_utils._expand_kernel_impl)
    expect("_ensure_int64(output)" in source, "the kernel that repeats settings differs")
    parameters = tuple(inspect.signature(rejection_sampler.expand_batch_to_tokens).parameters)
    expect(parameters == _PARAMETERS, f"expand_batch_to_tokens takes {', '.join(parameters)}")
    setattr(_expanded, _MENDED, True)
    rejection_sampler.expand_batch_to_tokens = _expanded
    rejection_sampler.apply_sampling_constraints = _unless_empty(rejection_sampler.apply_sampling_constraints)


def _unless_empty(apply: Any) -> Any:
    @functools.wraps(apply)
    def apply_unless_empty(logits: Any, *args: Any, **kwargs: Any) -> Any:
        return apply(logits, *args, **kwargs) if logits.shape[0] else logits

    return apply_unless_empty


_PARAMETERS = ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to")


def _expanded(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Return each request's value once for each of its tokens."""
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    expanded = torch.repeat_interleave(x, counts, output_size=num_tokens)
    if replace_from != replace_to:
        expanded[expanded == replace_from] = replace_to
    return expanded
