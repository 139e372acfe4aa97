"""Faults that wait until every engine serves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chaos_suite import play
from chaos_suite.play import Played, play_all
from chaos_suite.schedule import Fault
from chaos_suite.stand import Stand

KILLS = [Fault(at_s=0.0, kind="kill", target=number % 2) for number in range(4)]


class _Engine:
    """Serves again a moment after it was killed."""

    def __init__(self, others: list[_Engine], *, returns: bool) -> None:
        self.is_ready = True
        self.found_whole: list[bool] = []
        self._others = others
        self._returns = returns

    def tell(self, **order: Any) -> None:
        self.found_whole.append(all(engine.is_ready for engine in self._others))
        self.is_ready = False
        if self._returns:
            asyncio.get_running_loop().call_later(0.05, lambda: setattr(self, "is_ready", True))


def _played(monkeypatch: pytest.MonkeyPatch, within_s: float, *, returns: bool) -> tuple[list[Played], list[bool]]:
    monkeypatch.setattr(play, "SEEN_S", 0.001)
    engines: list[_Engine] = []
    engines += [_Engine(engines, returns=returns) for _ in range(2)]
    stand = cast("Stand", SimpleNamespace(engines=engines))
    played = asyncio.run(play_all(stand, KILLS, calm_s=0.0, within_s=within_s))
    return played, [whole for engine in engines for whole in engine.found_whole]


def test_each_kill_waits_until_the_engine_before_it_serves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    played, found_whole = _played(monkeypatch, 60.0, returns=True)
    assert len(played) == len(KILLS)
    assert found_whole == [True] * len(KILLS)


def test_no_fault_begins_after_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    played, _ = _played(monkeypatch, 0.2, returns=False)
    assert len(played) == 1
