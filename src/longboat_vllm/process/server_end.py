"""Ends vLLM's server at once where its core has ended, or where it is stopped while it responds.

vLLM itself reports a core that has ended by responses of status 500, and ends seconds later. When it is stopped, it
ends its responses with the reason "abort" and their usage, as if they were whole, or waits for them forever. A process
that ends breaks its connections off: gateways know then that the engine is gone, and have another one continue.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

from longboat_vllm.shapes import expect, expect_parameters

__all__ = ("install",)

_MARK = "_longboat_server_end"


class _State:
    """What this process is about to do. pausing: number of calls that let the core end requests while it lives on"""

    is_stopping = False
    pausing = 0


def install() -> None:
    """Wrap what the server does with its core's outputs, with the core's end and with its own. May be called again."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor

    if hasattr(AsyncLLM.shutdown, _MARK):
        return
    expect_parameters(OutputProcessor.process_outputs, ("self", "engine_core_outputs"))
    expect_parameters(OutputProcessor.propagate_error, ("self", "e"))
    expect_parameters(AsyncLLM.shutdown, ("self",))
    expect(hasattr(OutputProcessor, "get_num_unfinished_requests"), "unfinished requests are counted elsewhere")
    for name in ("pause_generation", "sleep"):
        if hasattr(AsyncLLM, name):
            setattr(AsyncLLM, name, _pausing(getattr(AsyncLLM, name)))
    OutputProcessor.process_outputs = _without_aborts(OutputProcessor.process_outputs)
    OutputProcessor.propagate_error = _ending_at_errors(OutputProcessor.propagate_error)
    AsyncLLM.shutdown = _ending_with_requests(AsyncLLM.shutdown)


def _end(why: str, code: int) -> None:
    print(f"longboat: {why}; the server ends now", file=sys.stderr, flush=True)
    os._exit(code)


def _pausing(pause: Any) -> Any:
    @functools.wraps(pause)
    async def pause_and_note(engine: Any, *args: Any, **kw: Any) -> Any:
        _State.pausing += 1
        try:
            return await pause(engine, *args, **kw)
        finally:
            _State.pausing -= 1

    return pause_and_note


def _without_aborts(process_outputs: Any) -> Any:
    """Wrap ``OutputProcessor.process_outputs``: a core that ends a request which no client has given up is stopped."""
    from vllm.v1.engine import FinishReason

    abort = FinishReason.ABORT

    @functools.wraps(process_outputs)
    def process_or_end(processor: Any, engine_core_outputs: Sequence[Any], *args: Any, **kw: Any) -> Any:
        for output in engine_core_outputs:
            if output.finish_reason == abort and output.request_id in processor.request_states and not _State.pausing:
                _end("the engine is stopped while it responds", 0)
        return process_outputs(processor, engine_core_outputs, *args, **kw)

    return process_or_end


def _ending_at_errors(propagate_error: Any) -> Any:
    """Wrap ``OutputProcessor.propagate_error``, after which a server can make no more responses."""

    @functools.wraps(propagate_error)
    def propagate_or_end(processor: Any, e: Exception) -> Any:
        if not _State.is_stopping or processor.get_num_unfinished_requests():
            _end("the engine's core has ended", 1)
        return propagate_error(processor, e)

    return propagate_or_end


def _ending_with_requests(shutdown: Any) -> Any:
    """Wrap ``AsyncLLM.shutdown``, which a thread of its own may call, for requests that nothing would end then."""

    @functools.wraps(shutdown)
    def shutdown_or_end(engine: Any, *args: Any, **kw: Any) -> Any:
        _State.is_stopping = True
        result = shutdown(engine, *args, **kw)
        processor = getattr(engine, "output_processor", None)
        if processor is not None and processor.get_num_unfinished_requests():
            _end("the engine was stopped while it responded", 0)
        return result

    setattr(shutdown_or_end, _MARK, True)
    return shutdown_or_end
