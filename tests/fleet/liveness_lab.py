"""Two hosts of the network lab with a fleet, what their gateways hold for lost, and how soon they find out."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, wait_until
from netlab.lab import Host, Lab

__all__ = ("LivenessLab", "gateway_state", "liveness_lab", "run_of")

POLL_S = 0.02
LOST_S = 60.0


@dataclass
class LivenessLab:
    """The first host has the command line and the head."""

    lab: Lab
    fleet: FleetLab

    @property
    def hosts(self) -> list[Host]:
        return self.lab.hosts

    def up(self, models: Sequence[str]) -> None:
        path = self.fleet.folder / "liveness.yaml"
        path.write_text("name: l\nmodels:\n" + "".join(f"  - {{{model}}}\n" for model in models))
        self.fleet.must("up", str(path), "--detach", timeout_s=400)

    def ready(self, model: str) -> dict[str, Any]:
        """The only replica of a model, once both gateways know it and take it for alive."""
        wait_until(f"{model} answers", lambda: self.fleet.answers(model), 180)
        (replica,) = self.fleet.replicas(model)
        wait_until("both gateways serve it", lambda: all(self.serves(h, replica) for h in self.hosts), 60)
        return replica

    def host_of(self, rank: dict[str, Any]) -> Host:
        return next(host for host in self.hosts if host.address == rank["address"])

    def serves(self, host: Host, replica: dict[str, Any]) -> bool:
        """Whether the host's gateway has the replica and takes it for alive."""
        state = gateway_state(run_of(host))
        return _has(state.get("demands", {}), replica) and not _has(state.get("lost", {}), replica)

    def lost_after(self, host: Host, replica: dict[str, Any], began_s: float) -> tuple[float, str]:
        """Seconds from ``began_s`` until the host's gateway sends the replica nothing any more, and why.

        Raises AssertionError when that does not happen.
        """
        while time.monotonic() - began_s < LOST_S:
            state = gateway_state(run_of(host))
            reasons = [why for key, why in state.get("lost", {}).items() if key.startswith(replica["replica"])]
            if reasons or not _has(state.get("demands", {}), replica):
                return time.monotonic() - began_s, reasons[0] if reasons else "the table"
            time.sleep(POLL_S)
        raise AssertionError(f"{host.name} does not find out that {replica['replica']} is lost")


def run_of(host: Host) -> Path:
    """The host's run folder."""
    return host.folder / "run"


def gateway_state(run: Path) -> dict[str, Any]:
    """What the gateway of this run folder says of itself: its control socket is a file, which no cut cable hides."""
    record = json.loads((run / "gateway" / "gateway.json").read_text())
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(10.0)
        control.connect(record["socket"])
        lines = ("GET /control/v1/state HTTP/1.1", "host: g", f"authorization: Bearer {record['token']}")
        control.sendall("\r\n".join((*lines, "", "")).encode())
        head, _, body = _until(control, b"\r\n\r\n").partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        while len(body) < length:
            body += control.recv(65536)
    state: dict[str, Any] = json.loads(body)
    return state


def _until(control: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        piece = control.recv(65536)
        assert piece, "the gateway closed its control socket"
        data += piece
    return data


def _has(keys: dict[str, Any], replica: dict[str, Any]) -> bool:
    return any(key.startswith(replica["replica"]) for key in keys)


@contextlib.contextmanager
def liveness_lab(models: Sequence[str]) -> Iterator[LivenessLab]:
    """Ray on both hosts, labelled a and b, and the models up."""
    with Lab(2) as lab:
        first, second = lab.hosts
        common = ("--num-cpus", "4", "--token-file", str(lab.folder / "token"))
        first.run([*COMMAND, "node", "start", "--head", "--label", "host=a", *common], timeout=240)
        second.run([*COMMAND, "node", "start", "--join", first.address, "--label", "host=b", *common], timeout=240)
        fleet = fleet_at(lab, first)
        made = LivenessLab(lab, fleet)
        try:
            made.up(models)
            yield made
        finally:
            fleet.stop_watching()
