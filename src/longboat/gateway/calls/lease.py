"""What one request holds while it lives: a place, a slot, an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from longboat.core.policy import TenantPolicy
    from longboat.gateway.calls.trip import Trip
    from longboat.gateway.limits.counters import LocalCounters
    from longboat.gateway.limits.redis_counters import RedisCounters
    from longboat.gateway.records.metrics import Series
    from longboat.gateway.upstreams.pool import Pool
    from longboat.gateway.upstreams.upstream import MovableStream, Upstream
    from longboat.routing.queue.fair_queue import Ticket

__all__ = ("Lease",)


class Lease:
    """A place among the running requests of its tenant, a slot of a model or a place in its queue, an engine.

    The accounting opens it and closes it; closing gives everything back, once, whatever is held at that moment.
    """

    __slots__ = (
        "_counters",
        "_is_paused",
        "_stream",
        "_tenant",
        "_waits",
        "is_open",
        "pool",
        "series",
        "ticket",
        "trip",
        "upstream",
    )

    def __init__(self, counters: LocalCounters | RedisCounters, tenant: TenantPolicy, series: Series) -> None:
        """counters: those that let the request in"""
        self._counters = counters
        self._tenant = tenant
        self._stream: MovableStream | None = None
        self._waits = False  # in the queue of ``pool``
        self._is_paused = False  # it waits with its answer begun
        self.is_open = True
        self.series = series
        self.pool: Pool | None = None  # whose slot, or place in the queue, it has or had last
        self.ticket: Ticket | None = None
        self.upstream: Upstream | None = None  # the engine that works on it
        self.trip: Trip | None = None  # what routing counts of its stay there; None where there was nothing to choose
        series.in_flight += 1

    @property
    def waits_in(self) -> Pool | None:
        """The model in whose queue it is."""
        return self.pool if self._waits else None

    def take_slot(self, pool: Pool, ticket: Ticket) -> None:
        """Hold a slot that was granted at once."""
        self.pool, self.ticket = pool, ticket

    def wait(self, pool: Pool, ticket: Ticket) -> None:
        """Hold a place in the queue."""
        self.pool, self.ticket, self._waits = pool, ticket, True
        self.series.waiting += 1

    def pause(self, pool: Pool, now_s: float) -> None:
        """Give back the slot, and hold a place in the queue again, with the answer begun."""
        assert self.ticket is not None
        if self.pool is not None and self.pool is not pool:  # the model left the table and came back since
            self.pool.release(self.ticket, now_s)
        pool.pause(self.ticket, now_s)
        self.wait(pool, self.ticket)
        self._is_paused = True
        self.series.preempted += 1
        self.series.preemptions += 1

    def granted(self) -> None:
        """Note that the place in the queue became a slot."""
        if self._waits:
            self._waits = False
            self.series.waiting -= 1
        if self._is_paused:
            self._is_paused = False
            self.series.preempted -= 1

    def leave_queue(self) -> None:
        """Give back a place in the queue, and keep the ticket."""
        if self._waits and self.pool is not None and self.ticket is not None:
            self.granted()
            self.pool.cancel(self.ticket)

    def expired(self) -> None:
        """Forget the ticket that the queue has dropped."""
        self.granted()
        self.ticket = None

    def leave_pool(self, now_s: float) -> None:
        """Give back the slot, of which nothing was used, or the place in the queue."""
        ticket = self.ticket
        if ticket is None:
            return
        self._release_slot(now_s)
        self.settle(used_tokens=0, served=False)

    def take_engine(self, upstream: Upstream, stream: MovableStream) -> None:
        """Count as one of the engine's streams."""
        self.upstream, self._stream = upstream, stream
        upstream.streams.add(stream)
        upstream.num_sent += 1

    def leave_engine(self, now_s: float) -> None:
        """Stop counting as one of the engine's streams."""
        if self.upstream is not None and self._stream is not None:
            self.upstream.streams.discard(self._stream)
            self.upstream = self._stream = None
        if self.trip is not None:
            self.trip.end(now_s)
            self.trip = None

    def close(self, now_s: float) -> None:
        """Give everything back. ``settle`` later tells what the slot was used for."""
        if not self.is_open:
            return
        self.is_open = False
        self.leave_engine(now_s)
        self._release_slot(now_s)
        self.series.in_flight -= 1
        self._counters.release(self._tenant)

    def settle(self, *, used_tokens: int | None, served: bool) -> None:
        """Tell the queue what a slot that was given back was used for."""
        ticket, self.ticket = self.ticket, None
        if ticket is not None and self.pool is not None:
            self.pool.scheduler.learn(ticket, used_tokens=used_tokens, served=served)

    def _release_slot(self, now_s: float) -> None:
        pool, ticket = self.pool, self.ticket
        if pool is None or ticket is None:
            return
        if self._waits:
            self.granted()
            pool.cancel(ticket)
        else:
            pool.release(ticket, now_s)
