"""A whole fleet in the network lab under chaos: two hosts with Ray, supervisors and agents, and clients on a third."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from chaos_suite.asks import Ask
from chaos_suite.loader import Loader
from chaos_suite.parts import MODEL
from chaos_suite.places import FAST_BITS_PER_S, SLOW_BITS_PER_S
from chaos_suite.resume_counts import ResumeCounts
from fleet.fleet_lab import COMMAND, FleetLab, wait_until
from fleet.liveness_lab import gateway_state, run_of
from longboat.gateway.admin.control_client import GatewayControl
from netlab.lab import Host, Lab

__all__ = ("FleetStand", "fleet_file")

GATEWAY_PORT = 8000
START_S = 400.0
STATUS_S = 60.0
ATTEMPTS = 3
COUNT_EVERY_S = 1.0
CONTROL_S = 5.0

Replica = dict[str, Any]


def fleet_file(engine: str, *, itl_ms: float, replicas: int, environment: str = "") -> str:
    """A fleet of one model with ``replicas`` on one host each, and one more whose gangs span both hosts.

    environment: of real vLLM
    """
    asked = f"{{environment: {environment}}}" if environment else "vllm"
    if engine == "fake":
        asked = f"{{kind: fake, options: {{itl_ms: {itl_ms:g}, ttft_ms: {2 * itl_ms:g}}}}}"
    resources = "{cpus: 0.1}" if engine == "fake" else "{cpus: 1}"
    common = f"source: 'builtin:tiny', engine: {asked}, resources: {resources}"
    common += "" if engine == "fake" else ", context: 2048"
    split = "split: {pipeline: 2}, placement: {nodes: 2}"
    models = [f"name: {MODEL}, {common}, replicas: {replicas}", f"name: {MODEL}-split, {common}, {split}"]
    head = f"name: chaos\ngateway: {{port: {GATEWAY_PORT}, host: 0.0.0.0, auth: none}}\nmodels:\n"
    return head + "".join(f"  - {{{model}}}\n" for model in models)


class FleetStand:
    """The lab's first host has the head, the second joins it, the third has the clients. It is used as a context."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(3)
        self.folder = folder
        self._resumes = ResumeCounts()
        first = self.lab.hosts[0]
        self.fleet = FleetLab(Path(first.env["LONGBOAT_RUN"]), port=GATEWAY_PORT, env=first.env, way_in=_way_in(first))
        self.load = Loader(_way_in(self.lab.hosts[2]), folder / "load.log")

    def __enter__(self) -> FleetStand:
        return self

    def __exit__(self, *exc: object) -> None:
        self.fleet.stop_watching()
        self.lab.close()

    def up(self, text: str) -> None:
        """Until every replica is ready."""
        head, other, _ = self.lab.hosts
        common = ("--num-cpus", "8", "--token-file", str(self.lab.folder / "token"))
        _persist(head, [*COMMAND, "node", "start", "--head", *common])
        _persist(other, [*COMMAND, "node", "start", "--join", head.address, *common])
        path = self.fleet.folder / "chaos.yaml"
        path.write_text(text)
        self.fleet.must("up", str(path), "--detach", timeout_s=START_S)
        for model in (MODEL, f"{MODEL}-split"):
            wait_until(f"{model} answers", partial(self._answers, model), START_S)

    async def start(self, asks: Sequence[Ask], *, concurrency: int, deadline_s: float) -> None:
        """The load; clients ask the first host's gateway."""
        addresses = [(self.lab.hosts[0].address, GATEWAY_PORT)]
        await self.load.start(asks, addresses, concurrency=concurrency, deadline_s=deadline_s)

    def replicas(self) -> list[Replica]:
        """Those that are ready, by their models and names. :raises TimeoutError: the fleet does not say"""
        end_s = time.monotonic() + STATUS_S
        while time.monotonic() < end_s:
            with contextlib.suppress(ValueError, AssertionError):  # Ray may say something in between
                return sorted(self.fleet.replicas(), key=lambda found: (str(found["model"]), str(found["replica"])))
            time.sleep(0.3)
        raise TimeoutError(f"no status of the fleet within {STATUS_S:.0f} s")

    def host_of(self, rank: Replica) -> Host:
        return next(host for host in self.lab.hosts if host.address == rank["address"])

    def signal(self, host: Host, number: int, *pids: int) -> float:
        """To processes as the host sees them; when. From outside: the way into a host takes too long to tell that."""
        found = [outer for outer, inner in _processes_in(host).items() if inner in pids]
        at_s = time.monotonic()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return at_s

    def zygotes(self, host: Host) -> list[int]:
        """As the host sees them. What is forked from one has its command line, until it gives itself another name."""
        inner = _processes_in(host)
        alike = {outer for outer in inner if b"longboat_vllm.process.zygote" in _read(outer, "cmdline")}
        return [inner[outer] for outer in alike if _parent(outer) not in alike]

    def gateway_pid(self) -> int | None:
        """None of one that has just begun."""
        return self._gateway_record().get("pid")

    def _gateway_record(self) -> dict[str, Any]:
        """Of the gateway that clients ask."""
        record: dict[str, Any] = json.loads((run_of(self.lab.hosts[0]) / "gateway" / "gateway.json").read_text())
        return record

    async def count_always(self) -> None:
        """Keep what the gateway counts: one that is killed takes it with it."""
        while True:
            await self.count()
            await asyncio.sleep(COUNT_EVERY_S)

    async def count(self) -> dict[str, int]:
        """How many answers were resumed until now, by reason and result."""
        with contextlib.suppress(OSError, ValueError):
            record = self._gateway_record()
            control = GatewayControl(record["socket"], record["token"], timeout_s=CONTROL_S)
            await self._resumes.ask(control, record["socket"])
        return dict(self._resumes.total())

    def has_lost(self, replica: str) -> bool:
        """Whether the gateway of the clients sends nothing to the replica any more."""
        try:
            state = gateway_state(self.fleet.folder)
        except (OSError, AssertionError, ValueError):
            return False
        known = [key for key in state.get("demands", {}) if key.startswith(replica)]
        return not known or any(key in state.get("lost", {}) for key in known)

    def slow(self, host: Host) -> None:
        self.lab.set_rate(host, SLOW_BITS_PER_S)

    def fast(self, host: Host) -> None:
        self.lab.set_rate(host, FAST_BITS_PER_S)

    def _answers(self, model: str) -> bool:
        body = json.dumps({"model": model, "prompt": "row", "max_tokens": 2})
        url = f"http://127.0.0.1:{GATEWAY_PORT}/v1/completions"
        ask = ["curl", "-sf", "-m", "20", "-H", "content-type: application/json", "-d", body, url]
        return self.lab.hosts[0].run(ask, check=False).returncode == 0


def _persist(host: Host, argv: Sequence[str]) -> None:
    """Ray gives up by itself where the machine is busy. :raises AssertionError: it did so each time"""
    for _ in range(ATTEMPTS - 1):
        if host.run(argv, timeout=START_S, check=False).returncode == 0:
            return
    host.run(argv, timeout=START_S)


def _processes_in(host: Host) -> dict[int, int]:
    """Ids as we see them → as the host does."""
    assert host.namespaces is not None
    space, found = os.readlink(f"/proc/{host.namespaces.pid}/ns/pid"), {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(f"/proc/{pid}/ns/pid") == space and (told := _field(pid, b"NSpid")):
                found[pid] = told
    return found


def _parent(pid: int) -> int:
    return _field(pid, b"PPid")


def _field(pid: int, name: bytes) -> int:
    """The last number of a line of a process's status; 0: it has ended."""
    line = _read(pid, "status").partition(b"\n%b:" % name)[2].partition(b"\n")[0]
    return int(line.split()[-1]) if line else 0


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _way_in(host: Host) -> tuple[str, ...]:
    assert host.namespaces is not None
    return tuple(host.namespaces.way_in())


def engine_environment() -> str:
    """The folder of an engine environment that tests are told of; empty: the one that is installed."""
    python = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
    return str(Path(python).parent.parent) if python else ""
