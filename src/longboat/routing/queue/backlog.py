"""Keeps the tickets that wait: enters them into their flows, and takes them out when they leave or are overdue."""

from __future__ import annotations

import heapq
import math

from longboat.routing.queue.flows import Flow, Ticket
from longboat.routing.queue.queue_entry import OUTSIDE, OVERDUE, WAITING

__all__ = ("Backlog",)


class Backlog:
    """The waiting tickets of one queue, by the time at which each expires."""

    __slots__ = ("_due", "_entries", "_overdue", "_paused", "queued")

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Ticket]] = []
        self._entries = 0
        self._overdue: dict[Ticket, None] = {}
        self._paused: dict[Ticket, None] = {}
        self.queued = 0  # tickets in flows; read only

    @property
    def num_waiting(self) -> int:
        """Number of tickets in flows, and of overdue ones that ``expire`` will return."""
        return self.queued + len(self._overdue)

    def push(self, ticket: Ticket, flow: Flow, expires_s: float) -> None:
        """Enter a ticket at the end of its flow."""
        ticket.expires_s = expires_s
        flow.push(ticket)
        self._entered(ticket, flow)
        if len(self._due) > 2 * self.queued + 64:
            self._due = [entry for entry in self._due if entry[2].place is WAITING]
            heapq.heapify(self._due)
        self._entries += 1
        heapq.heappush(self._due, (expires_s, self._entries, ticket))

    def push_paused(self, ticket: Ticket, flow: Flow) -> None:
        """Enter a ticket that had a slot at the head of its flow. It does not expire."""
        ticket.expires_s = math.inf
        flow.push_paused(ticket)
        self._entered(ticket, flow)
        self._paused[ticket] = None

    @property
    def num_paused(self) -> int:
        """Number of waiting tickets that had a slot."""
        return len(self._paused)

    def _entered(self, ticket: Ticket, flow: Flow) -> None:
        ticket.place = WAITING
        ticket.flow = flow
        self.queued += 1

    def take_out(self, ticket: Ticket, flow: Flow) -> None:
        """Remove a waiting ticket from its flow."""
        flow.take_out(ticket)
        self.queued -= 1
        self._paused.pop(ticket, None)

    def cancel(self, ticket: Ticket) -> bool:
        """Remove a ticket, overdue or not. Returns False, without effect, if the ticket does not wait."""
        if ticket.place is OVERDUE:
            del self._overdue[ticket]
        elif ticket.place is WAITING and ticket.flow is not None:
            self.take_out(ticket, ticket.flow)
        else:
            return False
        ticket.place = OUTSIDE
        return True

    def set_overdue_apart(self, now_s: float) -> None:
        """Take the tickets that expired out of their flows, for ``expire``."""
        due = self._due
        while due and due[0][0] <= now_s:
            expires_s, _, ticket = heapq.heappop(due)
            if ticket.place is WAITING and ticket.flow is not None and ticket.expires_s == expires_s:
                self.take_out(ticket, ticket.flow)
                ticket.place = OVERDUE
                self._overdue[ticket] = None

    def expire(self, now_s: float) -> list[Ticket]:
        """Remove and return the tickets that expired. Returns each ticket once."""
        self.set_overdue_apart(now_s)
        if now_s == math.inf:  # the queue ends
            for ticket in tuple(self._paused):
                if ticket.flow is not None:
                    self.take_out(ticket, ticket.flow)
                self._overdue[ticket] = None
        expired = list(self._overdue)
        self._overdue.clear()
        for ticket in expired:
            ticket.place = OUTSIDE
        return expired
