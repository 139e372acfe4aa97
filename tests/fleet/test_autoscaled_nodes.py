"""A cluster with Ray's autoscaler (its provider for tests): nodes come for replicas that find no room."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.fleet_lab import FleetLab, fleet_at, wait_until
from netlab.lab import Host, Lab, why_unavailable

pytestmark = [pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(500)]

RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6379
WORKER = {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2}
FLEET = """
name: t
models:
  - name: a
    source: builtin:tiny
    engine: fake
    resources: {cpus: 1}
    replicas: {min: 1, max: 4, target_ongoing_requests: 4}
"""


def autoscaling(host: Host) -> str:
    """Write the configuration of an autoscaler whose nodes are processes of this host; returns its path."""
    config = {
        "cluster_name": "t",
        "max_workers": 2,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.1,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": f"{host.address}:{PORT}",
            "use_node_id_as_ip": True,  # all nodes have one address
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
            "worker": WORKER,
        },
        "head_node_type": "ray.head.default",
        **{name: [] for name in ("initialization_commands", "setup_commands", "head_setup_commands")},
        **{name: [] for name in ("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")},
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
        "file_mounts_sync_continuously": False,
    }
    path = host.folder / "autoscaling.json"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture(scope="module")
def fleet() -> Iterator[FleetLab]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with Lab(1) as lab:
        (host,) = lab.hosts
        host.env |= {"RAY_ADDRESS": f"{host.address}:{PORT}", "RAY_FAKE_CLUSTER": "1"}
        host.env |= {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_DISABLE_IMPORT_WARNING": "1"}
        words = ["start", "--head", "--num-cpus", "1", "--port", str(PORT), "--node-ip-address", host.address]
        words += [
            "--temp-dir",
            str(host.folder / "ray"),
            "--include-dashboard",
            "true",
            "--dashboard-host",
            host.address,
        ]
        words += ["--autoscaling-config", autoscaling(host), "--object-store-memory", str(100 << 20)]
        host.run([RAY, *words, "--disable-usage-stats"], timeout=120)
        lab_fleet = fleet_at(lab, host)
        try:
            yield lab_fleet
        finally:
            lab_fleet.end()


def asked_for(fleet: FleetLab) -> str:
    """Return what the autoscaler was asked for last, as Ray keeps it."""
    script = (
        "import ray; from ray.experimental.internal_kv import _internal_kv_get; ray.init(address='auto');"
        "print((_internal_kv_get(b'autoscaler_resource_request') or b'').decode())"
    )
    words = (*fleet.way_in, sys.executable, "-c", script)
    done = subprocess.run(words, env=fleet.env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip().splitlines()[-1]


def num_nodes(fleet: FleetLab) -> int:
    return len(json.loads(fleet.must("status", "--json"))["nodes"])


def test_nodes_come_for_replicas_that_find_no_room(fleet: FleetLab) -> None:
    path = fleet.folder / "fleet.yaml"
    path.write_text(FLEET)
    fleet.must("up", str(path), "--detach", timeout_s=200)
    assert len(fleet.status()["nodes"]) == 1
    fleet.must("scale", "a", "3", "--no-wait")
    wait_until("three replicas are ready", lambda: len(fleet.replicas("a")) == 3, 200)
    assert num_nodes(fleet) == 3
    seen = (fleet.folder / "status.jsonl").read_text()
    assert "find no room: needs 2 more nodes like the largest one; Ray's autoscaler was asked for nodes" in seen
    assert len({replica["ranks"][0]["node_id"] for replica in fleet.replicas("a")}) == 3
    wait_until("nothing is short any more", lambda: not fleet.status()["counts"]["a"]["problem"], 60)


def test_the_request_ends_with_the_need(fleet: FleetLab) -> None:
    wait_until("nothing is short", lambda: not fleet.status()["counts"]["a"]["problem"], 60)
    wait_until("nothing is asked for", lambda: asked_for(fleet) == "[]", 60)
    assert len(fleet.replicas("a")) == 3


def test_down_ends_the_request_of_a_controller_that_does_not_answer(fleet: FleetLab) -> None:
    fleet.must("scale", "a", "4", "--no-wait")
    wait_until("a fourth place is asked for", lambda: json.loads(asked_for(fleet)), 120)
    for pid in fleet.processes():
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::ServeReplica:longboat:FleetController"):
            os.kill(pid, signal.SIGSTOP)
    done = fleet.cli("down", timeout_s=200)
    assert done.returncode == 0, done.stderr
    assert "without its controller" in done.stderr
    assert asked_for(fleet) == "[]"
