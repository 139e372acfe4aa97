"""Carries output into vLLM's model runner: output and seeded random state continue where the request left off.

Model runner V1 gets them here. V2 needs nothing: it takes prompt and output together after a preemption, and draws its
noise from seed and position.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from longboat_vllm.resume.carry import prior_of
from longboat_vllm.shapes import UnexpectedShapeError, expect

__all__ = ("check", "draws_of_sampler", "install")

_MARK = "_longboat_resume"
_BEHIND = "_longboat_draws_behind"


def check() -> None:
    """Raise UnexpectedShapeError where model runner or sampler differ from vLLM 0.29 to 0.32."""
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    fields = getattr(CachedRequestState, "__dataclass_fields__", {})
    expect({"sampling_params", "generator", "output_token_ids"} <= set(fields), "cached requests have other fields")
    expect("self.vocab_size" in inspect.getsource(InputBatch.__init__), "batches do not know the vocabulary")
    draws_of_sampler()


def install() -> None:
    """Wrap how the runner keeps a new request, and how it puts one into its batch."""
    from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

    if hasattr(InputBatch.add_request, _MARK):
        return
    CachedRequestState.__post_init__ = _with_output(CachedRequestState.__post_init__)
    add_request = _with_draws(InputBatch.add_request, draws_of_sampler())
    setattr(add_request, _MARK, True)
    InputBatch.add_request = add_request


def _with_output(post_init: Any) -> Any:
    @functools.wraps(post_init)
    def post_init_with_output(state: Any) -> None:
        post_init(state)
        prior = prior_of(state.sampling_params)
        if prior and not state.output_token_ids:
            state.output_token_ids = list(prior)
            setattr(state, _BEHIND, len(prior))

    return post_init_with_output


def _with_draws(add_request: Any, draw: Any) -> Any:
    """Wrap ``InputBatch.add_request`` so that a seeded generator catches up once: one draw per carried token."""

    @functools.wraps(add_request)
    def add_request_with_draws(batch: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        num_draws = request.__dict__.pop(_BEHIND, 0)
        if num_draws and request.generator is not None:
            draw(request.generator, num_draws, batch.vocab_size)
        return add_request(batch, request, *args, **kwargs)

    return add_request_with_draws


def draws_of_sampler() -> Any:
    """Return what the sampler draws for one token: ``(generator, num_draws, vocab_size)``."""
    from vllm.platforms import current_platform
    from vllm.v1.sample.ops import topk_topp_sampler as sampler

    on_cpu = current_platform.is_cpu()
    source = inspect.getsource(sampler.TopKTopPSampler.forward_cpu if on_cpu else sampler.random_sample)
    if on_cpu and "0, 2**31, (1,), generator=gen, dtype=torch.long" in source:
        return _draw_integers
    if ".exponential_(generator=generator)" in source:
        return _draw_rows
    raise UnexpectedShapeError("the sampler draws in an unknown way")


def _draw_integers(generator: Any, num_draws: int, vocab_size: int) -> None:
    """Draw as vLLM 0.32 on CPU does: one integer seeds the noise of a whole row."""
    import torch

    for _ in range(num_draws):
        torch.randint(0, 2**31, (1,), generator=generator, dtype=torch.long)


def _draw_rows(generator: Any, num_draws: int, vocab_size: int) -> None:
    """Draw as vLLM on GPUs, and 0.29 on CPU, does: a row of exponential noise for the vocabulary."""
    import torch

    row = torch.empty(vocab_size, dtype=torch.float32, device=generator.device)
    for _ in range(num_draws):
        row.exponential_(generator=generator)
