"""Decides which running streams may be paused for a request of a better class, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from longboat.core.policy import PreemptionPolicy
from longboat.routing.queue.flows import Flows, Ticket

__all__ = ("PausableStream", "num_takable", "pausable")


class PausableStream(Protocol):
    """A stream that has a slot."""

    @property
    def ticket(self) -> Ticket | None:
        """The ticket of its slot; None where it has none, or an engine could not continue it exactly."""

    @property
    def news_s(self) -> float:
        """When its client began to get tokens that are new to it, since it has the slot."""

    @property
    def context_tokens(self) -> int:
        """Tokens that an engine would have to read to continue it."""

    def make_room(self, priority: int) -> None:
        """Leave the engine, and wait again. priority: class of the request that gets the slot"""


def pausable(streams: Iterable[PausableStream], rules: PreemptionPolicy, now_s: float) -> list[PausableStream]:
    """Return the streams that may be paused now, the first one first.

    The worst class goes first; in a class, streams that were paused least, then those that cost least to continue.
    """
    found: list[tuple[int, int, int, int, PausableStream]] = []
    for stream in streams:
        ticket = stream.ticket
        if ticket is None or ticket.num_pauses >= rules.max_pauses or now_s - stream.news_s < rules.run_s:
            continue
        found.append((-ticket.priority, ticket.num_pauses, stream.context_tokens, len(found), stream))
    found.sort(key=lambda entry: entry[:4])
    return [entry[4] for entry in found]


def num_takable(flows: Flows, priority: int) -> int:
    """Return how many running requests of worse classes exceed the waiting ones of this class and better ones."""
    running = sum([level.running for level in flows.levels if level.priority > priority])
    ahead = sum([len(flow.tickets) for level in flows.levels if level.priority <= priority for flow in level.flows])
    return running - ahead
