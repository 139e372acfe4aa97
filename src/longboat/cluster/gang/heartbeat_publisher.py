"""The pulse of one gang: agents' heartbeats and the engine's steps, published to gateways and judged here."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable

from longboat.cluster.protocol.messages import RankLoss
from longboat.core.plan import GangPlan
from longboat.gateway.http.message import ask
from longboat.heartbeat.line_server import door_socket
from longboat.heartbeat.listener import listen
from longboat.heartbeat.server import BeatDoor
from longboat.heartbeat.wire import BEAT_EVERY_S, door_word
from longboat.routing.health.liveness import (
    CUT,
    ENDED,
    QUIT,
    STOPPED,
    Beat,
    Health,
    Life,
    Liveness,
    LivenessLimits,
    RankBeat,
    Silence,
)
from longboat.telemetry import logger

__all__ = ("DOOR", "GangPulse", "OwnBeat")

log = logger("supervisor")

DOOR = "beats"
"""Purpose of the agent's port that publishes its rank's heartbeats."""

LIMITS = LivenessLimits(unreached_s=2.5, stopped_beats=8, unacked_s=3.0, hang_s=60.0)
"""Gateways send streams elsewhere sooner: a gang that comes back gets new ones, one that was ended must start again."""

OwnBeat = Callable[[], Beat | None]
"""Returns None until the rank runs."""

STEPS_EVERY_S, STEPS_IDLE_S = 0.5, 2.0
"""An engine with no request in it makes no steps, so that it is asked less often."""

STEPS_PATH = "/longboat/v1/steps"
NO_STEPS_S = 10.0
_ASK_S = 2.0


class GangPulse:
    """The pulse of one gang. It is made when the plan is complete, and needs a heartbeat port at every agent."""

    def __init__(self, plan: GangPlan, own: OwnBeat | None = None) -> None:
        """own: the heartbeat of rank 0, where its agent lives in this process; it is then not heard through its port"""
        now_s = time.monotonic()
        self._url = f"http://{plan.head.address}:{plan.head.ports.get('api', 0)}"
        self._api_key = plan.api_key
        word = door_word(plan.api_key)
        self._ears = [_RankEar(rank.node_rank, now_s) for rank in plan.ranks]
        self._socket = door_socket(plan.head.address)
        self._own = own
        self._door = BeatDoor(self._socket, word, self._turn)
        self.address = f"{plan.head.address}:{self._socket.getsockname()[1]}"
        self._liveness = Liveness(LIMITS, now_s)
        self._judged_s = now_s
        self._lost: asyncio.Future[RankLoss] | None = None
        self._steps: tuple[int | None, int | None] = None, None
        doors = [(rank.address, rank.ports[DOOR]) for rank in plan.ranks]
        heard = list(zip(doors, self._ears, strict=True))[0 if own is None else 1 :]
        works = [listen(*door, word, ear) for door, ear in heard]
        works += [self._door.open(), self._ask_for_steps()]
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    @classmethod
    def of(cls, plan: GangPlan, own: OwnBeat | None = None) -> GangPulse | None:
        """Make the pulse of a gang; None where an agent, or this process, has no heartbeat port."""
        if any(DOOR not in rank.ports for rank in plan.ranks):
            return None
        try:
            return cls(plan, own)
        except OSError as error:
            log.warning("%s/%s publishes no heartbeats: %s", plan.model, plan.replica, error)
            return None

    def tell(self) -> Beat:
        """Return the gang's heartbeat as it is known here now."""
        now_s = time.monotonic()
        if self._own is not None and (beat := self._own()) is not None:
            self._ears[0].on_beat(beat)
        steps, running = self._steps
        return Beat(ranks=tuple(ear.told(now_s) for ear in self._ears), steps=steps, num_running=running)

    async def loss(self) -> RankLoss:
        """Return when a rank does not work any more. Its agent reports an ended rank, with the reason."""
        self._lost = self._lost or asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._lost)

    def _turn(self) -> Beat:
        """Return the gang's heartbeat, and judge it: a process that wakes up seldom takes less of a core."""
        beat, now_s = self.tell(), time.monotonic()
        if self._lost is None or now_s - self._judged_s < BEAT_EVERY_S / 2:  # a client has just been welcomed
            return beat
        self._judged_s = now_s
        self._liveness.hear(beat, now_s)
        judged = self._liveness.judge(now_s)
        if judged.health is Health.LOST and judged.cause not in (ENDED, QUIT) and not self._lost.done():
            is_outside = judged.cause in (CUT, STOPPED)
            loss = RankLoss(node_rank=judged.node_rank or 0, reason=judged.detail, on_request=is_outside)
            self._lost.set_result(loss)
        return beat

    def close(self) -> None:
        """End it. Gateways hear at last how the ranks ended, before they blame a request for it."""
        for task in self._tasks:
            task.cancel()
        self._door.turn()
        self._door.close()

    async def _ask_for_steps(self) -> None:
        """Ask the engine for its steps. A busy engine answers late: its last answer counts until then."""
        while True:
            pause_s = STEPS_EVERY_S
            with contextlib.suppress(OSError, ValueError):
                answer = await ask(self._url, STEPS_PATH, api_key=self._api_key, timeout_s=_ASK_S)
                self._steps = _steps(answer.body) if answer.status == 200 else (None, None)
                pause_s = _pause_s(answer.status == 200, self._steps[1])
            await asyncio.sleep(pause_s)


class _RankEar:
    """The heartbeats received from one rank."""

    def __init__(self, node_rank: int, now_s: float) -> None:
        self._last = RankBeat(node_rank=node_rank, life=Life.RUNS)
        self._was_heard = False
        self._silence = Silence(now_s)
        self._reached = Silence(now_s)

    def on_beat(self, beat: Beat) -> None:
        now_s = time.monotonic()
        self._was_heard = True
        self._silence.hear(now_s)
        self._reached.hear(now_s)
        for rank in beat.ranks:
            if rank.node_rank == self._last.node_rank:
                self._last = rank

    def on_reached(self, *, is_refused: bool = False) -> None:
        self._reached.hear(time.monotonic())

    def told(self, now_s: float) -> RankBeat:
        """Return the last heartbeat and its age; a rank that was not heard yet does not count as silent."""
        silent_s, unreached_s = self._silence.seconds(now_s), self._reached.seconds(now_s)
        if not self._was_heard:
            return self._last
        return dataclasses.replace(self._last, silent_s=silent_s, unreached_s=unreached_s)


def _pause_s(has_steps: bool, num_running: int | None) -> float:
    """Return how long not to ask an engine that answered."""
    if not has_steps:
        return NO_STEPS_S
    return STEPS_IDLE_S if num_running == 0 else STEPS_EVERY_S


def _steps(text: bytes) -> tuple[int | None, int | None]:
    """Return the steps so far, and the requests that run or wait; None for a number that is missing."""
    try:
        values = json.loads(text)
        steps, running, waiting = (values.get(name) for name in ("steps", "running", "waiting"))
    except (ValueError, AttributeError):
        return None, None
    busy = running + (waiting or 0) if isinstance(running, int) else None
    return (steps if isinstance(steps, int) else None), busy
