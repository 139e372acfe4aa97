"""Fixes seeded sampling of long prompts on CPU, where a seeded request whose prompt is computed in parts ends vLLM.

vLLM takes back what a request's generator drew for a part of its prompt, by an offset that CPU generators do not have
(``RuntimeError`` in the engine core, 0.29 to 0.32). Can be dropped when vLLM draws only where a token is wanted.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import Any

from longboat_vllm.resume.worker import draws_of_sampler
from longboat_vllm.shapes import expect

__all__ = ("mend_seeded_parts_on_cpu",)

_MENDED = "_longboat_mended_seeds"


def mend_seeded_parts_on_cpu() -> None:
    """Give seeded requests a generator that can go back. Raises UnexpectedShapeError where vLLM differs."""
    from vllm.v1.worker.gpu_input_batch import InputBatch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    add_request = InputBatch.add_request
    if hasattr(add_request, _MENDED):
        return
    source = inspect.getsource(GPUModelRunner._bookkeeping_sync)
    expect("gen.set_offset(gen.get_offset() - 4)" in source, "draws are taken back in another way")
    make, draw = _rewindable(), draws_of_sampler()

    @functools.wraps(add_request)
    def add_request_that_can_go_back(batch: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        generator = request.generator
        if generator is not None and not isinstance(generator, make):
            request.generator = make(generator, request, functools.partial(draw, vocab_size=batch.vocab_size))
        return add_request(batch, request, *args, **kwargs)

    setattr(add_request_that_can_go_back, _MENDED, True)
    InputBatch.add_request = add_request_that_can_go_back


@functools.cache
def _rewindable() -> Any:
    import torch

    class RewindableGenerator(torch.Generator):  # type: ignore[misc]
        """A generator that, when its offset is set, returns to its state after the request's tokens so far."""

        def __new__(cls, generator: Any, request: Any, draw: Any) -> Any:
            return super().__new__(cls, device=generator.device)

        def __init__(self, generator: Any, request: Any, draw: Any) -> None:
            self.manual_seed(generator.initial_seed())
            self.set_state(generator.get_state())
            self._request = weakref.ref(request)
            self._draw = draw

        def get_offset(self) -> int:
            return 0

        def set_offset(self, offset: int) -> None:
            request = self._request()
            self.manual_seed(self.initial_seed())
            self._draw(self, len(request.output_token_ids) if request is not None else 0)

    return RewindableGenerator
