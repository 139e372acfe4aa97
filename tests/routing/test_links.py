"""Tests of lost links: a connection without acknowledgements is found, a bad or slow link is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from longboat.routing.health.links import WELL, Connection, LinkRecord, LinkState

PEER = "10.77.0.2"


def repeated(num_repeats: int, inode: int = 7, peer: str = PEER) -> Connection:
    return Connection(inode=inode, peer=peer, num_repeats=num_repeats)


def watched(num_repeats: Callable[[float], int], seconds: float) -> LinkState:
    """Read a connection twice a second; return the worst state of all readings."""
    record, worst = LinkRecord(), WELL
    for half in range(int(seconds * 2)):
        count = num_repeats(half / 2)
        state = record.read([repeated(count)] if count else [], half / 2)
        worst = max(worst, state, key=lambda found: found.unacked_s)
    return worst


def of_the_kernel(at_s: float) -> int:
    """Repetitions so far, where none is acknowledged."""
    return sum(at_s >= moment for moment in (0.2, 0.6, 1.4, 3.0, 6.2, 12.6))


def test_a_connection_without_acknowledgements_waits_ever_longer() -> None:
    assert watched(of_the_kernel, 5.0) == LinkState(unacked_s=4.0, peer=PEER)


@pytest.mark.parametrize(
    "num_repeats",
    [
        pytest.param(lambda at_s: 0, id="nothing is repeated"),
        pytest.param(lambda at_s: 1, id="each packet twice"),
        pytest.param(lambda at_s: int(at_s * 2) % 3, id="acknowledged in between"),
        pytest.param(lambda at_s: of_the_kernel(at_s % 1.5), id="away for a moment"),
    ],
)
def test_a_link_that_loses_packets_and_works_is_left_alone(num_repeats: Callable[[float], int]) -> None:
    assert watched(num_repeats, 60.0).unacked_s < 2.0


def test_the_worst_of_several_connections_is_named() -> None:
    record = LinkRecord()
    record.read([repeated(4, inode=1, peer="10.77.0.3")], 0.0)
    record.read([repeated(4, inode=1, peer="10.77.0.3"), repeated(4, inode=2)], 1.0)
    state = record.read([repeated(5, inode=1, peer="10.77.0.3"), repeated(4, inode=2)], 3.0)
    assert state == LinkState(unacked_s=3.0, peer="10.77.0.3")
    assert record.read([repeated(5, inode=2)], 4.0) == LinkState(unacked_s=3.0, peer=PEER)
    assert record.read([], 5.0) == WELL
