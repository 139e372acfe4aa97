"""A run: requests go through gateways to engines, and what they see is collected."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from longboat.routing.capacity.shares import divided_slots
from longboat.routing.policies.contract import RoutingPolicy
from longboat.routing.prefixes.index import DictIndex, PrefixIndex
from longboat.routing.prefixes.prompt import Prompt
from longboat.routing.router import Router
from longboat.simulator.engine.host import Host
from longboat.simulator.engine.job import Job
from longboat.simulator.fleet.fleet import Fleet
from longboat.simulator.fleet.gateway import Endpoint, SimGateway
from longboat.simulator.fleet.recorder import Recorder
from longboat.simulator.fleet.replica import Happening, SimReplica
from longboat.simulator.results.result import Result
from longboat.simulator.timeline import Action, Timeline
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("simulate",)

_SWEEP_S: Final = 0.1
_COLLECT_AFTER = 200_000
"""Objects after which Python looks for cycles during a run: what a request leaves behind is in none."""


def simulate(
    fleet: Fleet,
    requests: Iterable[TraceRequest],
    policy: Callable[[], RoutingPolicy],
    *,
    seed: int = 0,
    index: Callable[[], PrefixIndex] = DictIndex,
) -> Result:
    """Play requests on a fleet, and return what they saw.

    requests: in the order of their times; they are read one by one
    policy, index: make those of one gateway
    seed: of the choice of a gateway for each request, and of the jitter of steps and requests
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(max(_COLLECT_AFTER, thresholds[0]), *thresholds[1:])
    try:
        return _Simulation(fleet, iter(requests), policy, index, seed).run()
    finally:
        gc.set_threshold(*thresholds)


class _Simulation:
    """A run under way."""

    __slots__ = (
        "_gateways",
        "_next",
        "_random",
        "_recorder",
        "_replicas",
        "_requests",
        "_smallest",
        "_sweeping",
        "fleet",
        "timeline",
        "turn",
    )

    def __init__(
        self, fleet: Fleet, requests: Iterator[TraceRequest], policy: Callable[[], RoutingPolicy],
        index: Callable[[], PrefixIndex], seed: int,
    ) -> None:  # fmt: skip
        self.fleet = fleet
        self.timeline = Timeline()
        self.turn = 0
        self._requests = requests
        self._next: TraceRequest | None = None  # that comes next
        self._random = random.Random(seed)
        self._gateways: list[SimGateway] = []
        name = ""
        for shares in self._shares():
            made = policy()
            name = made.name
            made.explains = False
            self._gateways.append(SimGateway(Router(made, index()), fleet.queue, self._endpoints(shares), self))
        self._recorder = Recorder(name, fleet)
        hosts = {spec.host: Host(fleet.crowding) for spec in fleet.replicas if spec.host}
        self._replicas = [
            SimReplica(
                at, spec, fleet, self.timeline, self._gateways, self._recorder, hosts.get(spec.host), seed << 16 | at
            )
            for at, spec in enumerate(fleet.replicas)
        ]
        self._smallest = min(self._replicas, key=_room)  # any replica can hold what this one can
        self._sweeping = False

    def run(self) -> Result:
        """Play everything."""
        self._prepare()
        timeline, recorder = self.timeline, self._recorder
        self._read_next(0.0)
        while len(timeline):
            timeline.step()
            if not recorder.in_flight and self._next is None:
                break
        for replica in self._replicas:
            recorder.busy(replica.at, replica.engine.busy_s)
        return recorder.result(timeline.now_s)

    def carry(self, job: Job, replica: int, now_s: float) -> None:
        fleet = self.fleet
        received_s = fleet.network_s + fleet.received_token_s * job.prompt.num_tokens
        if fleet.received_jitter_s:
            received_s = max(0.0, received_s + self._random.choice(fleet.received_jitter_s))
        self.timeline.at(now_s + received_s, _Delivery(self._replicas[replica], job))

    def refused(self, job: Job, now_s: float) -> None:
        self._recorder.refused(too_long=False)

    def waits(self, now_s: float) -> None:
        if not self._sweeping:
            self._sweeping = True
            self.timeline.at(now_s + _SWEEP_S, _Sweep(self))

    def arrive(self, request: TraceRequest, now_s: float) -> None:
        """Bring a request to a gateway, and look which one comes next."""
        self._read_next(now_s)
        self.turn += 1
        job = _job(request, self.turn, now_s)
        self._recorder.arrived()
        if not self._smallest.engine.fits(job):
            self._recorder.refused(too_long=True)
            return
        if len(self._gateways) > 1:
            job.gateway = self._random.randrange(len(self._gateways))
        self._gateways[job.gateway].arrived(job, now_s)

    def sweep(self, now_s: float) -> None:
        """Look after the requests that wait in gateways."""
        waiting = False
        for gateway in self._gateways:
            if gateway.num_waiting:
                gateway.sweep(now_s)
                waiting = waiting or gateway.num_waiting > 0
        self._sweeping = waiting
        if waiting:
            self.timeline.at(now_s + _SWEEP_S, _Sweep(self))

    def _shares(self) -> Sequence[Sequence[int | None]]:
        """Return the slots of each gateway at each replica, divided as idle gateways get them."""
        fleet = self.fleet
        if fleet.slots is None:
            return [[None] * len(fleet.replicas)] * fleet.gateways
        return divided_slots([fleet.slots] * len(fleet.replicas), [{}] * fleet.gateways)

    def _endpoints(self, shares: Sequence[int | None]) -> list[Endpoint]:
        return [
            Endpoint(at, replica.key, share, replica.limits.max_num_seqs)
            for at, (replica, share) in enumerate(zip(self.fleet.replicas, shares, strict=True))
        ]

    def _prepare(self) -> None:
        by_key = {replica.spec.key: replica for replica in self._replicas}
        for replica in self._replicas:
            if replica.spec.joins_s > 0.0:
                self.timeline.at(replica.spec.joins_s, _Join(replica))
            else:
                replica.join(0.0)
        for event in self.fleet.events:
            self.timeline.at(event.at_s, Happening(by_key[event.key], event))

    def _read_next(self, now_s: float) -> None:
        self._next = next(self._requests, None)
        if self._next is not None:
            self.timeline.at(max(now_s, self._next.at_s), _Arrival(self, self._next))


def _room(replica: SimReplica) -> int:
    return replica.spec.limits.kv_blocks * replica.spec.limits.block_tokens


def _job(request: TraceRequest, number: int, now_s: float) -> Job:
    prompt = Prompt(
        str(number),
        request.prompt_tokens,
        blocks=request.blocks,
        ends=request.ends,
        max_output_tokens=request.max_tokens,
        session=request.session,
    )
    job = Job(prompt, request.output_tokens, now_s)
    job.answer_blocks = request.answer_blocks
    job.answer_ends = request.answer_ends
    return job


class _Arrival(Action):
    """A request that comes."""

    __slots__ = ("_request", "_simulation")

    def __init__(self, simulation: _Simulation, request: TraceRequest) -> None:
        self._simulation = simulation
        self._request = request

    def fire(self, now_s: float) -> None:
        self._simulation.arrive(self._request, now_s)


class _Delivery(Action):
    """A request that reaches its replica."""

    __slots__ = ("_job", "_replica")

    def __init__(self, replica: SimReplica, job: Job) -> None:
        self._replica = replica
        self._job = job

    def fire(self, now_s: float) -> None:
        self._replica.deliver(self._job, now_s)


class _Join(Action):
    """A replica that becomes ready."""

    __slots__ = ("_replica",)

    def __init__(self, replica: SimReplica) -> None:
        self._replica = replica

    def fire(self, now_s: float) -> None:
        self._replica.join(now_s)


class _Sweep(Action):
    """The periodic look at requests that wait."""

    __slots__ = ("_simulation",)

    def __init__(self, simulation: _Simulation) -> None:
        self._simulation = simulation

    def fire(self, now_s: float) -> None:
        self._simulation.sweep(now_s)
