"""Measure what open consoles cost a gateway: ``make bench-console``; ``--viewers 10 --seconds 20 --rounds 5``.

A gateway in a process of its own has 64 nodes, 200 replicas and 1,000 tenants, and no requests. In each round, its CPU
time is read while no console is open, and then while viewers ask for what the pages ask for, every two seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/gateway"), str(ROOT / "tests")]

LIMIT = 0.02
EVERY_S = 2.0
PAGES = ("fleet", "models", "requests", "traffic", "tenants")
NODES, REPLICAS, TENANTS = 64, 200, 1000
VIEW_EVERY_S = NODES / 50
"""The controller sends its view of a fleet of this size so often."""

PAUSE_S = 12.0
"""After it, the gateway knows that no page is open."""

_TICKS = os.sysconf("SC_CLK_TCK")


async def serve() -> None:
    """Run the gateway until stdin ends; its address and a key are the first line of stdout."""
    import orjson
    from console_lab import fleet_view, opened_lab

    view = fleet_view(NODES, REPLICAS)
    tenants = tuple(f"tenant-{number}" for number in range(TENANTS))
    async with opened_lab(view=view, tenants=tenants, with_engines=False) as lab:
        print(json.dumps({"url": lab.url, "key": lab.keys["operator"]}), flush=True)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        views = [orjson.dumps(view | {"at_s": view["at_s"] + number}) for number in range(2)]  # made by the controller
        state, number = lab.gateway.state, 0
        while not ended.done():
            if state.console.is_watched(state.clock.monotonic_s()):
                await lab.gateway.steering.offer_view(views[number % 2])
            number += 1
            await asyncio.sleep(VIEW_EVERY_S)


class Viewer:
    """A browser with a page open, as far as the gateway sees it."""

    def __init__(self, client: httpx.AsyncClient, url: str, page: str) -> None:
        self._client = client
        self._api = f"{url}/api/"
        self._sections = dict.fromkeys((page, "traffic"), "")  # section → the tag that the page has
        self.num_bytes = 0

    async def sign_in(self, key: str) -> None:
        answer = await self._client.post(f"{self._api}sign-in", json={"key": key})
        answer.raise_for_status()

    async def look(self) -> None:
        """Ask for both sections, as a page does every two seconds."""
        for section, tag in self._sections.items():
            answer = await self._client.get(f"{self._api}live/{section}", params={"have": tag})
            answer.raise_for_status()
            self.num_bytes += len(answer.content)
            self._sections[section] = answer.json()["tag"]

    async def watch(self, seconds: float, late_s: float) -> None:
        """Look until the time is over. late_s: after the first viewer"""
        await asyncio.sleep(late_s)
        for _ in range(int(seconds / EVERY_S)):
            await asyncio.gather(self.look(), asyncio.sleep(EVERY_S))


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, with its kernel's part."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def measure(pid: int, found: dict[str, str], options: argparse.Namespace) -> list[tuple[float, float]]:
    """Return the share of a core without and with viewers, of each round."""
    rounds, late_s = [], EVERY_S / options.viewers
    viewers = [Viewer(httpx.AsyncClient(), found["url"], PAGES[n % len(PAGES)]) for n in range(options.viewers)]
    for viewer in viewers:
        await viewer.sign_in(found["key"])
    for _ in range(options.rounds):
        idle = await _share(pid, [asyncio.sleep(options.seconds)])
        looks = [viewer.watch(options.seconds, n * late_s) for n, viewer in enumerate(viewers)]
        rounds.append((idle, await _share(pid, looks)))
        await asyncio.sleep(PAUSE_S)
    print(f"{sum(viewer.num_bytes for viewer in viewers) / 2**20:.1f} MiB were sent")
    return rounds


async def _share(pid: int, works: Iterable[Coroutine[Any, Any, object]]) -> float:
    """Return the share of a core that a process takes while the works run."""
    began_s, before_s = time.monotonic(), cpu_s(pid)
    await asyncio.gather(*works)
    return (cpu_s(pid) - before_s) / (time.monotonic() - began_s)


def show(rounds: Sequence[tuple[float, float]], num_viewers: int) -> int:
    """Print the table; return the exit status: 1 where the limit does not hold."""
    print("| gateway | share of a core, median | lowest | highest |\n| --- | --- | --- | --- |")
    added = [open_ - idle for idle, open_ in rounds]
    named: dict[str, Any] = {"idle": [r[0] for r in rounds], f"{num_viewers} consoles": [r[1] for r in rounds]}
    for name, values in {**named, "added": added}.items():
        print(f"| {name} | {statistics.median(values):.2%} | {min(values):.2%} | {max(values):.2%} |")
    holds = statistics.median(added) <= LIMIT
    print(f"limit {LIMIT:.0%}: {'holds' if holds else 'does not hold'}; load {os.getloadavg()[0]:.1f}")
    return int(not holds)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each half of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
        return 0
    words = (sys.executable, __file__, "--serve")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            found = json.loads(process.stdout.readline())
            rounds = asyncio.run(measure(process.pid, found, options))
        finally:
            process.stdin.close()
    return show(rounds, options.viewers)


if __name__ == "__main__":
    sys.exit(main())
