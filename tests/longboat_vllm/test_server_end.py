"""Tests of when vLLM's server ends at once, on classes with the shape of vLLM's."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from longboat_vllm.process import server_end
from longboat_vllm.shapes import UnexpectedShapeError

ABORT, LENGTH = 2, 1


class Ended(BaseException):
    """Stands for the end of the process; args: its exit code."""


class Processor:
    """What of an OutputProcessor matters."""

    def __init__(self, *running: str) -> None:
        self.request_states = dict.fromkeys(running)
        self.told: list[Any] = []

    def get_num_unfinished_requests(self) -> int:
        return len(self.request_states)

    def process_outputs(self, engine_core_outputs: list[Any], timestamp: float | None = None) -> str:
        for output in engine_core_outputs:
            self.request_states.pop(output.request_id, None)
        return f"processed at {timestamp}"

    def propagate_error(self, e: Exception) -> None:
        self.told.append(e)


class Engine:
    """What of an AsyncLLM matters."""

    def __init__(self, processor: Processor) -> None:
        self.output_processor = processor

    async def sleep(self, level: int = 1) -> Any:
        return self.output_processor.process_outputs([output("a")])

    def shutdown(self, timeout: float | None = None) -> None:
        self.output_processor.told.append("shutdown")


def output(request_id: str, reason: int | None = ABORT) -> SimpleNamespace:
    return SimpleNamespace(request_id=request_id, finish_reason=reason)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type[Engine], type[Processor]]]:
    """Install the wraps on fresh classes, in a process that cannot end."""
    engine, processor = (
        type("AsyncLLM", (Engine,), dict(Engine.__dict__)),
        type("OutputProcessor", (Processor,), dict(Processor.__dict__)),
    )
    contents = {
        "vllm.v1.engine": {"FinishReason": SimpleNamespace(ABORT=ABORT)},
        "vllm.v1.engine.async_llm": {"AsyncLLM": engine},
        "vllm.v1.engine.output_processor": {"OutputProcessor": processor},
    }
    for name in ("vllm", "vllm.v1", *contents):
        module = types.ModuleType(name)
        module.__dict__.update(contents.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr(server_end._State, "is_stopping", False)
    server_end.install()
    server_end.install()
    return engine, processor


def test_a_request_that_the_core_gives_up_ends_the_server_before_its_answer_ends(vllm: Any) -> None:
    processor = vllm[1]("a", "b")
    with pytest.raises(Ended, match="0"):
        processor.process_outputs([output("a")])
    assert set(processor.request_states) == {"a", "b"}


def test_ends_of_other_kinds_and_of_requests_that_clients_gave_up_pass(vllm: Any) -> None:
    processor = vllm[1]("a")
    assert processor.process_outputs([output("a", LENGTH), output("gone")], 3.0) == "processed at 3.0"


async def test_a_pause_may_end_requests_and_the_server_lives_on(vllm: Any) -> None:
    assert await vllm[0](vllm[1]("a")).sleep(1)
    with pytest.raises(Ended):
        vllm[1]("a").process_outputs([output("a")])


def test_the_core_s_end_is_the_server_s(vllm: Any) -> None:
    with pytest.raises(Ended, match="1"):
        vllm[1]().propagate_error(RuntimeError("core"))


def test_an_idle_server_that_is_stopped_ends_in_order(vllm: Any) -> None:
    engine = vllm[0](vllm[1]())
    engine.shutdown(timeout=0)
    engine.output_processor.propagate_error(RuntimeError("core"))
    assert engine.output_processor.told[0] == "shutdown"
    assert len(engine.output_processor.told) == 2


def test_a_server_that_was_stopped_while_it_responds_ends_at_once(vllm: Any) -> None:
    with pytest.raises(Ended, match="0"):
        vllm[0](vllm[1]("a")).shutdown()


def test_another_shape_is_refused(vllm: Any) -> None:
    del vllm[1].propagate_error
    sys.modules["vllm.v1.engine.async_llm"].AsyncLLM = type("AsyncLLM", (Engine,), {})  # type: ignore[attr-defined]
    vllm[1].propagate_error = lambda self, error: None
    with pytest.raises(UnexpectedShapeError):
        server_end.install()
