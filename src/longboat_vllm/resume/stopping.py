"""Answers of a vLLM that is stopped while it writes them: they end as those of an engine that was killed.

vLLM itself ends them with the reason "abort" and their usage, as if they were whole; or, where the server ends its core
before the core tells of that, it waits for them forever. Both raise EngineDeadError here, which vLLM raises where its
core died. The middleware then breaks the connection off, and the gateway has another engine continue the answer.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from longboat_vllm.resume.carry import CURRENT, CarriedRequest
from longboat_vllm.shapes import expect, expect_parameters

__all__ = ("ending_as_killed", "install")

_MARK = "_longboat_stopping"
_FAIL_AGAIN_S = 0.2
_RUNNING: set[str] = set()
"""vLLM's ids of the requests whose outputs pass here."""
_ABORTED: set[str] = set()
"""Ids among them that a client had aborted by name."""


def install() -> None:
    """Wrap what aborts requests and what ends the server's engine, once. Raises UnexpectedShapeError."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor

    if hasattr(AsyncLLM.shutdown, _MARK):
        return
    expect_parameters(OutputProcessor.abort_requests, ("self", "request_ids", "internal"))
    expect_parameters(OutputProcessor.propagate_error, ("self", "e"))
    expect_parameters(AsyncLLM.shutdown, ("self",))
    expect(isinstance(AsyncLLM.dead_error, property), "the error of a dead core is made elsewhere")
    OutputProcessor.abort_requests = _remembering(OutputProcessor.abort_requests)
    AsyncLLM.dead_error = property(_noting(AsyncLLM.dead_error.fget))
    AsyncLLM.shutdown = _failing_what_runs(AsyncLLM.shutdown)


async def ending_as_killed(request: CarriedRequest, request_id: str, outputs: Any) -> AsyncGenerator[Any]:
    """Yield the outputs of a request. Raises EngineDeadError, and notes it in ``request``, where the engine ends."""
    from vllm.v1.engine.exceptions import EngineDeadError

    _RUNNING.add(request_id)
    try:
        async for output in outputs:
            if request_id not in _ABORTED and any(choice.finish_reason == "abort" for choice in output.outputs):
                raise EngineDeadError
            yield output
    except EngineDeadError:
        request.is_lost = True
        raise
    finally:
        _RUNNING.discard(request_id)
        _ABORTED.discard(request_id)
        await outputs.aclose()


def _remembering(abort_requests: Any) -> Any:
    """Wrap ``OutputProcessor.abort_requests`` so that it notes what it names. An engine that stops does not call it."""

    @functools.wraps(abort_requests)
    def abort_and_remember(processor: Any, request_ids: Iterable[str], internal: bool) -> Any:
        named = list(request_ids)
        _ABORTED.update(_RUNNING.intersection(named))
        return abort_requests(processor, named, internal)

    return abort_and_remember


def _noting(dead_error: Any) -> Any:
    """Wrap ``AsyncLLM.dead_error``, which the server raises for a request that comes after its core's end."""

    @functools.wraps(dead_error)
    def dead_error_and_note(engine: Any) -> Any:
        if (request := CURRENT.get()) is not None:
            request.is_lost = True
        return dead_error(engine)

    return dead_error_and_note


def _failing_what_runs(shutdown: Any) -> Any:
    """Wrap ``AsyncLLM.shutdown``, which a thread of its own may call, so that requests that still run then fail."""

    @functools.wraps(shutdown)
    def shutdown_and_fail(engine: Any, *args: Any, **kw: Any) -> Any:
        handler = getattr(engine, "output_handler", None)
        try:
            return shutdown(engine, *args, **kw)
        finally:
            if handler is not None and not handler.get_loop().is_closed():
                handler.get_loop().call_soon_threadsafe(_fail_all, engine.output_processor, handler.get_loop())

    setattr(shutdown_and_fail, _MARK, True)
    return shutdown_and_fail


def _fail_all(processor: Any, loop: Any) -> None:
    """Fail the processor's requests, again and again: one may have been on its way to the engine."""
    from vllm.v1.engine.exceptions import EngineDeadError

    processor.propagate_error(EngineDeadError())
    loop.call_later(_FAIL_AGAIN_S, _fail_all, processor, loop)
