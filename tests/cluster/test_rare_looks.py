"""A supervisor's main thread that looks for signals less often."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from longboat.cluster.workers import rare_looks
from longboat.cluster.workers.rare_looks import look_rarely


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the pauses that are taken from now on; none of them lasts."""
    taken: list[float] = []
    monkeypatch.setattr(rare_looks.time, "sleep", taken.append)
    return taken


def test_the_main_thread_pauses_at_each_look(pauses: list[float]) -> None:
    raylet = SimpleNamespace(sys=sys)
    look_rarely(raylet, 0.1)
    assert [raylet.sys.is_finalizing(), raylet.sys.is_finalizing()] == [False, False]
    assert pauses == [0.1, 0.1]


def test_other_threads_and_other_questions_do_not_pause(pauses: list[float]) -> None:
    raylet = SimpleNamespace(sys=sys)
    look_rarely(raylet, 0.1)
    thread = threading.Thread(target=raylet.sys.is_finalizing)
    thread.start()
    thread.join(10)
    assert raylet.sys.modules is sys.modules and raylet.sys.stdout is sys.stdout
    assert pauses == []


def test_ray_asks_by_the_name_that_is_replaced() -> None:
    from ray import _raylet

    assert _raylet.sys is sys
