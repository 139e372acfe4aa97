"""Listens to the heartbeats of every endpoint's gang, and takes endpoints that stopped working out of use."""

from __future__ import annotations

import asyncio

from longboat.clock import WALL, until_tick_s
from longboat.core.clock import Clock
from longboat.gateway.upstreams.table import LiveTable
from longboat.gateway.upstreams.upstream import Upstream
from longboat.heartbeat.listener import listen
from longboat.heartbeat.relay_listener import Relays
from longboat.heartbeat.relay_wire import ALIVE
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import ENDED, QUIT, UNHEARD, Beat, Health, Judgement, Liveness, LivenessLimits
from longboat.telemetry import Guard, logger

__all__ = ("follow_beats",)

log = logger("beats")

LOOK_EVERY_S = 0.1
_LAST_BEAT_S = 2.0  # a table without an endpoint may come before the heartbeat that says why


async def follow_beats(table: LiveTable, limits: LivenessLimits | None = None, clock: Clock = WALL) -> None:
    """Judge every endpoint that sends heartbeats, until the task is cancelled."""
    guard = Guard(log, "the watch over heartbeats")
    monitor = _Monitor(table, limits or LivenessLimits(), clock)
    try:
        while True:
            with guard:
                monitor.look(clock.monotonic_s())
            await asyncio.sleep(until_tick_s(LOOK_EVERY_S, asyncio.get_running_loop().time()))
    finally:
        monitor.close()


class _Monitor:
    """Where each endpoint is heard: through the relay of its node, or directly where it has none that works."""

    def __init__(self, table: LiveTable, limits: LivenessLimits, clock: Clock) -> None:
        self._table = table
        self._limits = limits
        self._clock = clock
        self._relays = Relays(clock)
        self._seen_changes = -1  # of the table
        self._ears: dict[Upstream, _Ear] = {}  # endpoints heard directly
        self._relayed: set[Upstream] = set()
        self._gone_s: dict[Upstream, float] = {}  # since when an endpoint is out of the table, and has no request

    def look(self, now_s: float) -> None:
        """Take in what was heard. All endpoints are looked at only when the table changed or a relay has news."""
        is_new_table = self._table.num_changes != self._seen_changes
        if is_new_table:
            self._seen_changes = self._table.num_changes
            self._relays.keep(self._table.relays)
        if self._relays.look(now_s) or is_new_table:
            for upstream in {*self._table.upstreams(), *self._relayed}:
                self._place(upstream)
        for upstream in [u for u in self._relayed if u.lost]:  # others than the relay mark endpoints down, too
            self._place(upstream)
        self._drop_gone(now_s)
        for upstream, ear in tuple(self._ears.items()):
            self._take(upstream, ear.judge(now_s))

    def _place(self, upstream: Upstream) -> None:
        judged = self._relays.judgement(upstream.relay, upstream.key) if upstream.relay else None
        ear = self._ears.get(upstream)
        if judged is not None:
            if ear is not None:
                self._ears.pop(upstream).close()
            self._relayed.add(upstream)
            self._take(upstream, judged)
            return
        if ear is not None and ear.door != upstream.beats:
            self._close_ear(upstream)
            ear = None
        if ear is None and upstream.beats.rpartition(":")[2].isdecimal():
            inherits = upstream in self._relayed and bool(upstream.lost)
            self._ears[upstream] = _Ear(upstream, self._limits, self._clock, inherits=inherits)
        self._relayed.discard(upstream)

    def _drop_gone(self, now_s: float) -> None:
        self._gone_s = {own: at_s for own, at_s in self._gone_s.items() if own in self._relayed or own in self._ears}
        for upstream in [u for u in (*self._relayed, *self._ears) if u.gone and not u.outstanding]:
            if now_s - self._gone_s.setdefault(upstream, now_s) >= _LAST_BEAT_S:
                del self._gone_s[upstream]
                self._relayed.discard(upstream)
                if upstream in self._ears:
                    self._close_ear(upstream)

    def _close_ear(self, upstream: Upstream) -> None:
        """End the listening to an endpoint that no other listener takes over."""
        self._ears.pop(upstream).close()
        if upstream.lost:
            upstream.mark_up()  # no later judgement would

    def _take(self, upstream: Upstream, judgement: Judgement) -> None:
        was_lost = upstream.lost
        try:
            _apply(upstream, judgement)
        except Exception as error:  # a stream that cannot be moved must not end the watch over the other endpoints
            report = {"message": "a lost endpoint's streams could not be moved", "exception": error}
            asyncio.get_running_loop().call_exception_handler(report)
        if was_lost and not upstream.lost:
            _tell_found(self._table, upstream)

    def close(self) -> None:
        self._relays.close()
        for upstream in tuple(self._ears):
            self._close_ear(upstream)


def _tell_found(table: LiveTable, upstream: Upstream) -> None:
    """Wake the requests that wait: the endpoint has room again."""
    pool = table.pool(upstream.model)
    if pool is not None:
        pool.wake()
        pool.pump_soon()


def _apply(upstream: Upstream, judgement: Judgement) -> None:
    """Do what follows from a judgement."""
    if upstream.last_word not in (QUIT, ENDED):
        upstream.last_word = judgement.cause if judgement.is_last_word else ""
    if judgement.takes_nothing:
        is_lost = judgement.health is Health.LOST
        if not upstream.lost or (is_lost and not upstream.is_moved):
            log.warning("%s is %s: %s", upstream.key, judgement.health.value, _words(judgement))
            upstream.mark_down(_words(judgement), moves=is_lost)
    elif upstream.lost and judgement != UNHEARD:
        log.warning("%s recovered", upstream.key)
        upstream.mark_up()
    if judgement.health is Health.DOUBTFUL and not upstream.is_doubted:
        upstream.mark_suspect()


class _Ear:
    """The record of one endpoint's heartbeats."""

    def __init__(self, upstream: Upstream, limits: LivenessLimits, clock: Clock, *, inherits: bool = False) -> None:
        """inherits: a relay found the endpoint lost, which holds until its first beat"""
        self._clock = clock
        self.door = upstream.beats
        self._inherits = inherits
        self._liveness = Liveness(limits, clock.monotonic_s())
        host, _, port = self.door.rpartition(":")
        listening = listen(host, int(port), door_word(upstream.api_key), self)
        self._task = asyncio.get_running_loop().create_task(listening)

    def close(self) -> None:
        self._task.cancel()

    def on_beat(self, beat: Beat) -> None:
        self._liveness.hear(beat, self._clock.monotonic_s())

    def on_reached(self, *, is_refused: bool = False) -> None:
        self._liveness.reach(self._clock.monotonic_s(), is_refused=is_refused)

    def judge(self, now_s: float) -> Judgement:
        judged = self._liveness.judge(now_s)
        return judged if self._inherits or judged != UNHEARD else ALIVE


def _words(judgement: Judgement) -> str:
    rank = "" if judgement.node_rank is None else f"rank {judgement.node_rank}: "
    return f"{rank}{judgement.detail}"
