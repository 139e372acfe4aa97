"""Measures what the control plane costs: many fake replicas, real gateway processes, the real controller, no engines.

Replicas announce themselves and send real, authenticated heartbeats from a few processes that stand for many each. The
controller is the real one without Ray: its calls go through Unix sockets, so what Ray adds to a call is not counted.
CPU time is counted for each process; the machine may be shared.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from scale_bench.links import Link  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
PER_PROCESS = 125
ENGINE_PORT, GATEWAY_PORT = 18400, 18500
START_S = 90.0
TRIALS = 3
IDLE_S = 3.0
SETTLE_S = 12.0
"""A new controller holds its first tables back for ten seconds."""


@dataclass(frozen=True)
class Cost:
    """What one kind of process used: seconds of CPU a second, and resident memory."""

    core: float
    mib: float

    @classmethod
    def of(cls, before: dict[int, float], after: dict[int, float], seconds: float, pick: Callable[..., float]) -> Cost:
        cores = [(after[pid] - before[pid]) / seconds for pid in after if pid in before]
        return cls(pick(cores), pick([_rss_mib(pid) for pid in after]))


class Stand:
    """The processes of one run."""

    def __init__(self, folder: Path, num_gateways: int, num_models: int) -> None:
        self._folder = folder
        self._num_models = num_models
        self.num_gateways = num_gateways
        self._processes: list[subprocess.Popen[bytes]] = []
        self.replica_links: list[Link] = []
        nodes, control = str(folder / "nodes.sock"), str(folder / "control.sock")
        self.nodes_pid = self._start("fleet_nodes", nodes, str(folder))
        self.control_pid = self._start(
            "fleet_control", control, nodes, str(num_gateways), str(num_models), str(GATEWAY_PORT)
        )
        self.nodes, self.control = Link(nodes), Link(control)
        self._control_path = control

    def _start(self, module: str, *args: str) -> int:
        command = [sys.executable, str(HERE / "scale_bench" / f"{module}.py"), *args]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self._processes.append(process)
        return process.pid

    async def add(self, first: int, number: int) -> None:
        """Make replicas, let them announce themselves at once, and wait until all gateways know all of them."""
        for begin in range(first, first + number, PER_PROCESS):
            path = str(self._folder / f"replicas-{begin}.sock")
            self._start("fleet_replicas", path, self._control_path, str(ENGINE_PORT))
            link = Link(path)
            self.replica_links.append(link)
            await _ready(link)
            end = min(begin + PER_PROCESS, first + number)
            await link.call("add", [self.row(index) for index in range(begin, end)])
        await asyncio.gather(*(link.call("begin") for link in self.replica_links))
        await self.settled(first + number)

    def row(self, index: int) -> tuple[str, str, int, int, int]:
        model = f"model-{index % self._num_models}"
        return f"{model}-{index:05}", model, index % self.num_gateways, index, ENGINE_PORT

    async def settled(self, ready: int) -> None:
        """Wait until every gateway has this number of ready endpoints."""
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s:
            states = await self.nodes.call("states")
            if len(states) == self.num_gateways and all(state.get("ready") == ready for state in states):
                return
            await asyncio.sleep(0.5)
        found = [state.get("ready") for state in states]
        raise TimeoutError(f"not all gateways know {ready} replicas: {found}")

    async def gateway_pids(self) -> list[int]:
        return [state["pid"] for state in await self.nodes.call("states")]

    async def seconds_until(self, ready: int, began_s: float) -> float:
        """Return when all gateways have this number of ready endpoints, in seconds since ``began_s``."""
        while time.monotonic() - began_s < 60.0:
            states = await self.nodes.call("states")
            if all(state.get("ready") == ready for state in states):
                return time.monotonic() - began_s
            await asyncio.sleep(0.1)
        return float("inf")

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in (self.nodes, self.control, *self.replica_links)))
        for process in reversed(self._processes):
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()


async def measure(num_replicas: int, num_gateways: int, num_models: int, window_s: float) -> dict[str, Any]:
    """Run one size; return its figures."""
    with tempfile.TemporaryDirectory(prefix="lb-scale-") as folder:
        stand = Stand(Path(folder), num_gateways, num_models)
        try:
            return await _measure(stand, num_replicas, window_s)
        finally:
            await stand.nodes.call("stop")
            await stand.close()


async def _measure(stand: Stand, num_replicas: int, window_s: float) -> dict[str, Any]:
    await _ready(stand.nodes)
    await _ready(stand.control)
    await stand.settled(0)
    await asyncio.sleep(IDLE_S)
    idle, _ = await _costs(stand, window_s / 2)
    began_s = time.monotonic()
    await stand.add(0, num_replicas)
    started_s = time.monotonic() - began_s
    await asyncio.sleep(SETTLE_S)
    busy, totals = await _costs(stand, window_s)
    latencies = await _latencies(stand, num_replicas)
    return {
        "replicas": num_replicas,
        "gateways": stand.num_gateways,
        "all known after s": started_s,
        "gateway core": busy["gateway"].core - idle["gateway"].core,
        "gateway core, whole": busy["gateway"].core,
        "gateway MiB": busy["gateway"].mib - idle["gateway"].mib,
        "gateway MiB, whole": busy["gateway"].mib,
        "controller core": busy["controller"].core,
        "controller MiB": busy["controller"].mib,
        "daemon core": busy["daemons"].core / stand.num_gateways,
        "replica core": totals["replicas"] / num_replicas,
        "all cores": sum(totals.values()),
        "load": os.getloadavg()[0],
        **latencies,
    }


async def _costs(stand: Stand, window_s: float) -> tuple[dict[str, Cost], dict[str, float]]:
    gateways = await stand.gateway_pids()
    kinds = {"gateway": gateways, "controller": [stand.control_pid], "daemons": [stand.nodes_pid]}
    kinds["replicas"] = [process.pid for process in stand._processes[2:]]
    before = {pid: _cpu_s(pid) for pids in kinds.values() for pid in pids}
    began_s = time.monotonic()
    await asyncio.sleep(window_s)
    seconds = time.monotonic() - began_s
    after = {kind: {pid: _cpu_s(pid) for pid in pids} for kind, pids in kinds.items()}
    costs = {kind: Cost.of(before, pids, seconds, max) for kind, pids in after.items() if pids}
    totals = {kind: sum(s - before[pid] for pid, s in pids.items()) / seconds for kind, pids in after.items()}
    return costs, totals


async def _latencies(stand: Stand, num_replicas: int) -> dict[str, float]:
    """Let replicas come and go, one at a time."""
    link, known, next_index = stand.replica_links[0], num_replicas, num_replicas
    came, silent, ended = [], [], []
    for trial in range(TRIALS):
        row = stand.row(next_index)
        began_s = time.monotonic()
        await link.call("add", [row])
        await link.call("begin")
        known, next_index = known + 1, next_index + 1
        came.append(await stand.seconds_until(known, began_s))
        for close, found in ((False, silent), (True, ended)):
            await asyncio.sleep(2.0)
            name = stand.row(2 * trial + int(close))[0]
            began_s = await link.call("silence", name, close)
            known -= 1
            found.append(await stand.seconds_until(known, began_s))
    return {
        "change in all tables s": max(came),
        "silent one out of all s": max(silent),
        "ended one out of all s": max(ended),
        "change, median s": statistics.median(came),
        "silent, median s": statistics.median(silent),
        "ended, median s": statistics.median(ended),
    }


async def _ready(link: Link) -> None:
    end_s = time.monotonic() + 30.0
    while True:
        try:
            await link.call("nothing")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end_s:
                raise
            await asyncio.sleep(0.1)
        except RuntimeError:
            return


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def show(rows: list[dict[str, Any]]) -> None:
    """One column for each size."""
    for name in rows[0]:
        values = "".join(f"{row[name]:12.3f}" if isinstance(row[name], float) else f"{row[name]:12}" for row in rows)
        print(f"  {name:30}{values}")


def paper() -> int:
    """Time single steps, and say what follows for larger fleets."""
    import uvloop
    from scale_bench.costs import measured, on_paper

    costs = uvloop.run(measured())
    for name, seconds in dataclasses.asdict(costs).items():
        print(f"  {name:32}{seconds * 1e6:10.2f} us")
    sizes = ((100, 13, 13), (1000, 16, 16), (1000, 125, 125), (10_000, 200, 1250), (10_000, 200, 200))
    show([on_paper(costs, *size) for size in sizes])
    return 0


def alone(sizes: list[int], num_nodes: int, window_s: float) -> int:
    """Measure one gateway and the controller, each without the rest of the stand."""
    from scale_bench.parts import controller_alone, gateway_alone

    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="lb-scale-") as folder:
            row = asyncio.run(gateway_alone(Path(folder), size, num_nodes, window_s, _cpu_s, _rss_mib))
        row |= asyncio.run(controller_alone(size, num_nodes, window_s))
        rows.append({**row, "load": os.getloadavg()[0]})
    show(rows)
    return 0


def main() -> int:
    """Measure every size and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", default="1000", help="sizes, separated by commas")
    parser.add_argument("--gateways", type=int, default=16)
    parser.add_argument("--models", type=int, default=4, help="models that the replicas are divided among")
    parser.add_argument("--window", type=float, default=20.0, help="seconds over which CPU time is counted")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--paper", action="store_true", help="only time single steps, and compute larger fleets")
    parser.add_argument("--alone", action="store_true", help="only one gateway, and the controller, each by itself")
    options = parser.parse_args()
    if options.alone:
        return alone([int(size) for size in options.replicas.split(",")], options.gateways, options.window)
    if options.paper:
        return paper()
    rows = []
    for size in options.replicas.split(","):
        rows.append(asyncio.run(measure(int(size), options.gateways, options.models, options.window)))
        show(rows[-1:])
    print()
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
