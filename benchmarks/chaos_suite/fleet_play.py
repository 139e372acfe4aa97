"""Plays faults on a fleet: any rank, its agent or supervisor, the zygote, the gateway, the link of a host."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Sequence

from chaos_suite.fleet_stand import FleetStand, Replica
from chaos_suite.play import Played
from chaos_suite.schedule import Fault
from netlab.lab import Host

__all__ = ("FLEET_FAULTS", "fleet_schedule", "play_fleet")

FLEET_FAULTS = (
    *("rank-kill", "rank-stop", "supervisor-kill", "agent-kill", "zygote-kill", "gateway-kill"),
    *("link-cut", "link-slow"),
)
LASTS_S = {"link-cut": 6.0, "link-slow": 4.0}
WATCHED = ("rank-kill", "rank-stop", "link-cut")
DETECTION_LIMIT_S = 8.0
LOOK_EVERY_S = 0.03
BACK_S = 120.0


def fleet_schedule(seed: int, count: int, kinds: Sequence[str]) -> list[Fault]:
    """Faults in turn; each is played when the fleet has got over the one before. ``target`` chooses among victims."""
    rng = random.Random(f"fleet {seed}")
    first = rng.sample(list(kinds), k=min(count, len(kinds)))
    chosen = first + rng.choices(list(kinds), k=count - len(first))
    return [
        Fault(at_s=0.0, kind=kind, target=rng.randrange(1 << 16), lasts_s=LASTS_S.get(kind, 0.0)) for kind in chosen
    ]


async def play_fleet(stand: FleetStand, faults: Sequence[Fault], calm_s: float) -> list[Played]:
    """One after the other: between two of them all replicas are ready again, and ``calm_s`` pass."""
    num_replicas = len(await asyncio.to_thread(stand.replicas))
    played: list[Played] = []
    for fault in faults:
        await asyncio.sleep(calm_s)
        replicas = await asyncio.to_thread(stand.replicas)
        played.append(await _play(stand, fault, replicas))
        end_s = time.monotonic() + BACK_S
        while (  # noqa: ASYNC110 - the fleet is another process
            len(await asyncio.to_thread(stand.replicas)) < num_replicas and time.monotonic() < end_s
        ):
            await asyncio.sleep(0.2)
    return played


async def _play(stand: FleetStand, fault: Fault, replicas: Sequence[Replica]) -> Played:
    models = sorted({str(replica["model"]) for replica in replicas})
    own = [replica for replica in replicas if replica["model"] == models[fault.target % len(models)]]
    victim = own[fault.target // 7 % len(own)]
    rank = victim["ranks"][fault.target // 11 % len(victim["ranks"])]
    host, played = stand.host_of(rank), Played(fault, time.monotonic())
    played.name = str(victim["replica"])
    match fault.kind:
        case "link-cut" | "link-slow":
            far = stand.lab.hosts[1]
            played.name = next(
                (str(r["replica"]) for r in replicas if any(stand.host_of(k) is far for k in r["ranks"])), ""
            )
            await _play_on_link(stand, played, far)
        case "gateway-kill":
            played.name = "g0"
            await _signal(stand, played, stand.lab.hosts[0], signal.SIGKILL, stand.gateway_pid())
        case "zygote-kill":
            played.name = "-"
            await _signal(stand, played, host, signal.SIGKILL, *stand.zygotes(host))
        case "supervisor-kill":
            first = stand.host_of(victim["ranks"][0])
            await _signal(stand, played, first, signal.SIGKILL, victim["supervisor_pid"])
        case "agent-kill":
            last = victim["ranks"][-1]
            await _signal(stand, played, stand.host_of(last), signal.SIGKILL, last["agent_pid"])
        case _:
            number = signal.SIGSTOP if fault.kind == "rank-stop" else signal.SIGKILL
            await _signal(stand, played, host, number, rank["pid"])
    return played


async def _signal(stand: FleetStand, played: Played, host: Host, number: int, *pids: int | None) -> None:
    played.at_s = await asyncio.to_thread(stand.signal, host, number, *(pid for pid in pids if pid))
    if played.fault.kind in WATCHED:
        await _watch(stand, played)


async def _play_on_link(stand: FleetStand, played: Played, host: Host) -> None:
    is_cut = played.fault.kind == "link-cut"
    played.at_s = time.monotonic()  # the way into the lab takes its time: detection is told as longer than it was
    await asyncio.to_thread(stand.lab.cut if is_cut else stand.slow, host)
    end_s = played.at_s + played.fault.lasts_s
    if is_cut:
        await _watch(stand, played)
    await asyncio.sleep(max(0.0, end_s - time.monotonic()))
    await asyncio.to_thread(stand.lab.restore if is_cut else stand.fast, host)


async def _watch(stand: FleetStand, played: Played) -> None:
    """Until the clients' gateway holds the replica for lost."""
    while time.monotonic() - played.at_s < DETECTION_LIMIT_S:
        if await asyncio.to_thread(stand.has_lost, played.name):
            played.detected_s = time.monotonic() - played.at_s
            return
        await asyncio.sleep(LOOK_EVERY_S)
