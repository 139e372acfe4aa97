"""Listens to the heartbeats of every endpoint's gang, and takes endpoints that stopped working out of use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.gateway.upstreams.table import LiveTable
from longboat.gateway.upstreams.upstream import Upstream
from longboat.heartbeat.listener import listen
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import Beat, Health, Judgement, Liveness, LivenessLimits
from longboat.telemetry import logger

__all__ = ("follow_beats",)

log = logger("beats")

LOOK_EVERY_S = 0.1


async def follow_beats(table: LiveTable, limits: LivenessLimits | None = None, clock: Clock = WALL) -> None:
    """Judge every endpoint that sends heartbeats, until the task is cancelled."""
    limits = limits or LivenessLimits()
    ears: dict[Upstream, _Ear] = {}
    try:
        while True:
            now_s = clock.monotonic_s()
            _keep_ears(ears, table.upstreams(), limits, clock)
            for upstream, ear in tuple(ears.items()):
                was_lost = upstream.lost
                _look(ear, now_s)
                if was_lost and not upstream.lost:
                    _tell_found(table, upstream)
            await asyncio.sleep(LOOK_EVERY_S)
    finally:
        for ear in ears.values():
            ear.close()


def _tell_found(table: LiveTable, upstream: Upstream) -> None:
    """Wake the requests that wait: the endpoint has room again."""
    pool = table.pool(upstream.model)
    if pool is not None:
        pool.wake()
        pool.pump_soon()


def _look(ear: _Ear, now_s: float) -> None:
    try:
        ear.look(now_s)
    except Exception as error:  # a stream that cannot be moved must not end the watch over the other endpoints
        report = {"message": "a lost endpoint's streams could not be moved", "exception": error}
        asyncio.get_running_loop().call_exception_handler(report)


def _keep_ears(ears: dict[Upstream, _Ear], known: Iterable[Upstream], limits: LivenessLimits, clock: Clock) -> None:
    """Listen to each endpoint that sends heartbeats; those that left the table count until their last stream ends."""
    for upstream in known:
        ear = ears.get(upstream)
        if ear is not None and ear.door != upstream.beats:
            ears.pop(upstream).close()
            ear = None
        if ear is None and upstream.beats.rpartition(":")[2].isdecimal():
            ears[upstream] = _Ear(upstream, limits, clock)
    for upstream in [u for u in ears if u.gone and not u.outstanding]:
        ears.pop(upstream).close()


class _Ear:
    """The record of one endpoint's heartbeats."""

    def __init__(self, upstream: Upstream, limits: LivenessLimits, clock: Clock) -> None:
        self._clock = clock
        self.door = upstream.beats
        self._upstream = upstream
        self._liveness = Liveness(limits, clock.monotonic_s())
        self._doubted_s = 0.0
        host, _, port = self.door.rpartition(":")
        listening = listen(host, int(port), door_word(upstream.api_key), self)
        self._task = asyncio.get_running_loop().create_task(listening)

    def close(self) -> None:
        self._task.cancel()
        if self._upstream.lost:
            self._upstream.mark_up()  # no later judgement would

    def on_beat(self, beat: Beat) -> None:
        self._liveness.hear(beat, self._clock.monotonic_s())

    def on_reached(self) -> None:
        self._liveness.reach(self._clock.monotonic_s())

    def look(self, now_s: float) -> None:
        judgement, upstream = self._liveness.judge(now_s), self._upstream
        if judgement.health is Health.LOST:
            if not upstream.lost:
                log.warning("%s is lost: %s", upstream.key, _words(judgement))
                upstream.mark_down(_words(judgement))
        elif upstream.lost:
            log.warning("%s recovered", upstream.key)
            upstream.mark_up()
        if judgement.health is Health.DOUBTFUL and now_s - self._doubted_s >= upstream.limits.suspect_s:
            self._doubted_s = now_s
            upstream.mark_suspect()


def _words(judgement: Judgement) -> str:
    rank = "" if judgement.node_rank is None else f"rank {judgement.node_rank}: "
    return f"{rank}{judgement.detail}"
