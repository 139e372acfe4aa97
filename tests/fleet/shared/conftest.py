"""One cluster for all fleets of this folder: Ray, the controller and the engines' zygotes start once.

A module gets the cluster without models. Where one leaves anything behind, or a test of it failed, the next module gets
a new cluster.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.fleet_lab import FleetLab, environments, fleet_in_new_folder, wait_until
from free_ports import free_port

NO_MODELS = """name: t
models:
  - {name: outside, engine: {kind: external, urls: ['http://127.0.0.1:9/v1'], model: none}}"""
"""A fleet has at least one model; nothing is started for an external one."""
EMPTY_DEADLINE_S = 30.0
"""Replicas still drain when ``longboat up --detach`` returns; starting another cluster costs 25 processor seconds."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[FleetLab]:
    """Make the run folder of the cluster, which the first ``longboat up`` starts."""
    with fleet_in_new_folder() as fleet:
        yield fleet


@pytest.fixture(scope="module")
def lab(cluster: FleetLab, request: pytest.FixtureRequest) -> Iterator[FleetLab]:
    num_failed = request.session.testsfailed
    yield cluster
    if request.session.testsfailed > num_failed or not is_emptied(cluster):
        cluster.end()
        cluster.port = cluster.local_port = free_port()


def is_emptied(fleet: FleetLab) -> bool:
    """Take all models down; return whether nothing of them is left: no replica, no engine, no order by hand."""
    if fleet.cli("up", fleet.write(NO_MODELS, "none.yaml"), "--detach", "--end-started").returncode != 0:
        return False
    try:
        wait_until("nothing is left", lambda: is_empty(fleet), EMPTY_DEADLINE_S)
    except AssertionError:
        return False
    finally:
        fleet.stop_watching()
    return True


def is_empty(fleet: FleetLab) -> bool:
    status = fleet.status()
    is_quiet = not any(status.get(name) for name in ("updating", "taken_back", "counts", "adapters"))
    alive = [replica for replica in status["replicas"] if replica["phase"] not in ("gone", "failed")]
    return is_quiet and not alive and not engines(fleet) and not status["gateways"][0]["draining"]


def engines(fleet: FleetLab) -> list[int]:
    """Return the processes of engines that run."""
    wanted = f"LONGBOAT_RUN={fleet.folder}"
    return [pid for pid, env in environments() if wanted in env and any(m.startswith("LONGBOAT_GANG=") for m in env)]
