"""Plays faults on a stand, in their time, and says when each of them began and when gateways knew of it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from chaos_suite.parts import until
from chaos_suite.schedule import GATEWAY_FAULTS, Fault
from chaos_suite.stand import Stand

__all__ = ("Played", "play_all")

WATCHED = ("link-cut", "stop", "pause")
LOOK_EVERY_S = 0.05
DETECTION_LIMIT_S = 8.0
SEEN_S = 1.0
"""An engine that was killed is no longer said to serve after so long."""


@dataclass(slots=True)
class Played:
    """A fault that was played.

    at_s: of the monotonic clock; detected_s: seconds until every gateway had noticed
    name: of the replica or gateway that it hit, where the fault's target is not its number
    """

    fault: Fault
    at_s: float
    detected_s: float | None = None
    name: str = ""

    @property
    def victim(self) -> str:
        """``e1`` or ``g0`` or a replica's own name; ``*`` for all engines."""
        if self.name:
            return self.name
        if self.fault.kind == "kill-all":
            return "*"
        return f"{'g' if self.fault.kind in GATEWAY_FAULTS else 'e'}{self.fault.target}"


async def play_all(
    stand: Stand, faults: Sequence[Fault], *, calm_s: float | None = None, within_s: float = math.inf
) -> list[Played]:
    """Until the last one is undone.

    calm_s: each fault comes as long after every engine serves, whenever it was to come. within_s: none begins later
    """
    began_s = time.monotonic()
    ends_s = began_s + within_s
    played: list[Played] = []
    async with asyncio.TaskGroup() as group:
        for fault in faults:
            if calm_s is None:
                await asyncio.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
            else:
                await _wait_until_whole(stand, ends_s)
                await asyncio.sleep(calm_s)
            if time.monotonic() > ends_s:
                break
            played.append(Played(fault, time.monotonic()))
            group.create_task(_play(stand, played[-1]))
    return played


async def _wait_until_whole(stand: Stand, ends_s: float) -> None:
    """Until every engine serves, or the time is over."""
    await asyncio.sleep(SEEN_S)
    with contextlib.suppress(TimeoutError):
        left_s = ends_s - time.monotonic()
        await until("all engines serve", lambda: all(engine.is_ready for engine in stand.engines), left_s)


async def _play(stand: Stand, played: Played) -> None:
    fault = played.fault
    async with asyncio.TaskGroup() as group:
        if fault.kind == "link-cut":
            await asyncio.to_thread(stand.place.cut, fault.target + 1)
            played.at_s = time.monotonic()  # a way into a host takes its time
        if fault.kind in WATCHED:
            group.create_task(_watch(stand, played))
        if fault.kind in GATEWAY_FAULTS:
            await _play_on_gateway(stand, fault)
        else:
            await _play_on_engine(stand, fault)


async def _play_on_gateway(stand: Stand, fault: Fault) -> None:
    gateway = stand.gateways[fault.target]
    match fault.kind:
        case "gateway-kill":
            gateway.signal(signal.SIGKILL)
        case "gateway-term":
            gateway.signal(signal.SIGTERM)
        case "disk-full":
            gateway.limit_files(to_nothing=True)
            await asyncio.sleep(fault.lasts_s)
            gateway.limit_files(to_nothing=False)


async def _play_on_engine(stand: Stand, fault: Fault) -> None:
    engine, host = stand.engines[fault.target], fault.target + 1
    match fault.kind:
        case "kill":
            engine.tell(signal=signal.SIGKILL)
        case "term":
            engine.tell(signal=signal.SIGTERM)
        case "kill-all":
            for each in stand.engines:
                each.tell(signal=signal.SIGKILL)
        case "agent-kill":
            engine.kill_host()
        case "stop" | "pause":
            engine.tell(signal=signal.SIGSTOP)
            await asyncio.sleep(fault.lasts_s)
            engine.tell(signal=signal.SIGKILL if fault.kind == "stop" else signal.SIGCONT)
        case "link-cut" | "link-slow":
            if fault.kind == "link-slow":
                await asyncio.to_thread(stand.place.slow, host)
            await asyncio.sleep(fault.lasts_s)
            await asyncio.to_thread(stand.place.mend, host)
        case "hang" | "slow":
            engine.tell(post="/fault", body={"kind": fault.kind})
            await asyncio.sleep(fault.lasts_s)
            engine.tell(post="/fault", body={"kind": "none"})
        case _:
            body = {"kind": fault.kind, "after_tokens": fault.after_tokens, "times": fault.times}
            engine.tell(post="/fault", body=body)


async def _watch(stand: Stand, played: Played) -> None:
    """Until every gateway holds the engine for lost."""
    prefix = f"e{played.fault.target}/"
    end_s = time.monotonic() + min(DETECTION_LIMIT_S, played.fault.lasts_s)
    while time.monotonic() < end_s:
        up = [gateway for gateway in stand.gateways if gateway.is_up]
        lost = await asyncio.gather(*(gateway.lost() for gateway in up))
        if up and all(any(key.startswith(prefix) for key in found) for found in lost):
            played.detected_s = time.monotonic() - played.at_s
            return
        await asyncio.sleep(LOOK_EVERY_S)
