"""One replica in a run: its engine, what it tells the gateways, and what happens to it."""

from __future__ import annotations

from longboat.routing.policies.contract import EngineReport
from longboat.simulator.engine.engine import SimEngine
from longboat.simulator.engine.host import Host
from longboat.simulator.engine.jitter import Jitter
from longboat.simulator.engine.job import Job
from longboat.simulator.fleet.fleet import Fleet, FleetEvent, Replica
from longboat.simulator.fleet.gateway import SimGateway
from longboat.simulator.fleet.recorder import Recorder
from longboat.simulator.timeline import Action, Timeline

__all__ = ("Happening", "SimReplica")


class SimReplica:
    """A replica: the side of the engines in a run."""

    __slots__ = (
        "_gateways", "_host", "_jitter", "_news", "_recorder", "at", "engine", "fleet", "spec", "timeline", "up",
    )  # fmt: skip

    def __init__(
        self, at: int, spec: Replica, fleet: Fleet, timeline: Timeline, gateways: list[SimGateway], recorder: Recorder,
        host: Host | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.at = at
        self.spec = spec
        self.up = False
        self.fleet = fleet
        self.timeline = timeline
        self._gateways = gateways
        self._recorder = recorder
        self._host = host
        self._jitter = Jitter(spec.jitter_s, seed) if spec.jitter_s else None
        self._news = _CacheNews(self)
        self.engine = self._new_engine()

    def first_token(self, job: Job, now_s: float) -> None:
        self._recorder.first_token(job, self.at)
        cached = job.cached_tokens if self.fleet.reports_cached else None
        self._gateways[job.gateway].first_token(job, cached, now_s)

    def ended(self, job: Job, now_s: float) -> None:
        self._recorder.ended(job, now_s)
        self._gateways[job.gateway].ended(job, now_s)

    def gaps(self, first_s: float, growth_s: float, steps: int, sequences: int) -> None:
        self._recorder.itl_s.add_series(first_s, growth_s, steps, sequences)

    def join(self, now_s: float) -> None:
        """Become ready, with an empty cache."""
        if self.up:
            return
        self.up = True
        self.engine = self._new_engine()
        if self.fleet.kv_delay_s >= 0.0:
            self.engine.batch.cache.watcher = self._news
        for gateway in self._gateways:
            gateway.set_ready(self.at, True, now_s)
        if self.fleet.report_s > 0.0:
            offset = (self.at % 97 + 1) / 97.0  # replicas do not report at the same moment
            self.timeline.at(now_s + offset * self.fleet.report_s, _Report(self, self.engine))

    def fail(self, now_s: float) -> None:
        """Die with everything; the gateways learn it a moment later."""
        if not self.up:
            return
        self.up = False
        self._recorder.busy(self.at, self.engine.busy_s)
        self.engine.busy_s = 0.0  # the end of the run counts what the last engine computed
        jobs = self.engine.stop(now_s)
        self.timeline.at(now_s + self.fleet.notice_s, _Lost(self, jobs))

    def lost(self, jobs: list[Job], now_s: float) -> None:
        """Let the gateways know of the death."""
        if not self.up:  # else it came back before
            for gateway in self._gateways:
                gateway.set_ready(self.at, False, now_s)
        for job in jobs:
            job.retries += 1
            self._recorder.retries += 1
            self._gateways[job.gateway].again(job, now_s)
        for gateway in self._gateways:
            gateway.forget(self.at)

    def deliver(self, job: Job, now_s: float) -> None:
        """Take a request from the network."""
        if self.up:
            self.engine.submit(job, now_s)
        else:
            self.timeline.at(now_s + self.fleet.notice_s, _Lost(self, [job]))

    def tell_changes(self, changes: dict[bytes, bool]) -> None:
        """Bring changes of the cache to the gateways' indexes."""
        stored = b"".join([name for name, held in changes.items() if held])
        evicted = b"".join([name for name, held in changes.items() if not held])
        for gateway in self._gateways:
            slot = gateway.router.load_of(self.spec.key).slot
            if evicted:
                gateway.router.index.remove(slot, evicted)
            if stored:
                gateway.router.index.place(slot, stored)

    def report(self, now_s: float) -> None:
        """Tell the gateways how busy the engine is, and how far their requests are."""
        engine = self.engine
        report = EngineReport(
            taken_s=now_s,
            running=len(engine.batch.running),
            waiting=engine.batch.num_waiting,
            kv_usage=engine.kv_usage,
            queued_tokens=engine.batch.queued_tokens,
        )
        for gateway in self._gateways:
            gateway.router.reported(self.spec.key, report, tells=self.fleet.kv_delay_s >= 0.0)
        steps = engine.steps_at(now_s)
        for job in engine.batch.running:
            trip = job.trip
            if trip is not None and job.decoding:
                trip.progressed(job.generated + steps - job.entry_step)

    def cache_changed(self) -> None:
        """Note that the cache changed: what changes until the gateways learn it goes with one message."""
        self.timeline.at(self.timeline.now_s + self.fleet.kv_delay_s, _Telling(self, self.engine))

    def _new_engine(self) -> SimEngine:
        spec = self.spec
        return SimEngine(spec.time, spec.limits, self.timeline, self, spec.slowness, self._host, self._jitter)

    def happen(self, event: FleetEvent, now_s: float) -> None:
        """Let an event of the fleet happen."""
        if event.kind == "fail":
            self.fail(now_s)
        elif event.kind == "join":
            self.join(now_s)
        elif event.kind == "clear":
            self.engine.batch.cache.clear()
        else:
            self.engine.slow_down(event.slowness, now_s)


class Happening(Action):
    """An event of the fleet."""

    __slots__ = ("_event", "_replica")

    def __init__(self, replica: SimReplica, event: FleetEvent) -> None:
        self._replica = replica
        self._event = event

    def fire(self, now_s: float) -> None:
        self._replica.happen(self._event, now_s)


class _CacheNews:
    """Lets the gateways know, after a while, what a replica's cache stored and evicted."""

    __slots__ = ("_replica",)

    def __init__(self, replica: SimReplica) -> None:
        self._replica = replica

    def changed(self) -> None:
        self._replica.cache_changed()


class _OfEngine(Action):
    """An action of one engine, which comes to nothing once the engine has died."""

    __slots__ = ("_engine", "_replica")

    def __init__(self, replica: SimReplica, engine: SimEngine) -> None:
        self._replica = replica
        self._engine = engine

    def _lives(self) -> bool:
        return self._replica.engine is self._engine and self._replica.up


class _Telling(_OfEngine):
    """Changes of an engine's cache that reach the gateways."""

    __slots__ = ()

    def fire(self, now_s: float) -> None:
        if self._lives():
            self._replica.tell_changes(self._engine.batch.cache.take_changes())


class _Report(_OfEngine):
    """The periodic report of an engine, as long as it lives."""

    __slots__ = ()

    def fire(self, now_s: float) -> None:
        if self._lives():
            self._replica.report(now_s)
            self._replica.timeline.at(now_s + self._replica.fleet.report_s, self)


class _Lost(Action):
    """The news of a replica's death, with the requests that it had."""

    __slots__ = ("_jobs", "_replica")

    def __init__(self, replica: SimReplica, jobs: list[Job]) -> None:
        self._replica = replica
        self._jobs = jobs

    def fire(self, now_s: float) -> None:
        self._replica.lost(self._jobs, now_s)
