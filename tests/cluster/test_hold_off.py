"""How long a controller that has just started takes nothing away."""

from __future__ import annotations

from longboat.cluster.members.startup_grace import AFTER_FIRST_S, AT_MOST_S, HoldOff
from longboat.cluster.protocol.announcer import ANNOUNCE_EVERY_S
from longboat.cluster.protocol.ports import ServeController


def test_it_holds_until_all_had_their_time_after_the_first_was_heard() -> None:
    hold = HoldOff(100.0)
    assert hold.holds(100.0 + AFTER_FIRST_S + 1.0), "the way to us was not open yet"
    hold.heard(120.0)
    hold.heard(125.0)
    assert hold.holds(120.0 + AFTER_FIRST_S - 0.1)
    assert not hold.holds(120.0 + AFTER_FIRST_S + 0.1)


def test_it_does_not_wait_for_ever_for_nobody() -> None:
    assert not HoldOff(100.0).holds(100.0 + AT_MOST_S + 0.1)


def test_a_supervisor_that_gives_a_call_up_is_heard_in_time() -> None:
    assert ServeController("app")._timeout_s + ANNOUNCE_EVERY_S < AFTER_FIRST_S / 2
