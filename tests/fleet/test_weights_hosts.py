"""Two hosts of a cluster and a model in storage: read once, pinned while it is used, prewarmed, refused in time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleet.fleet_lab import COMMAND, FleetLab, fleet_at, wait_until
from longboat.weights.store.store import Store
from netlab.lab import Host, Lab, why_unavailable

pytestmark = [pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
TINY = ROOT / "src" / "longboat" / "builtin" / "tiny"
SERVE = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); from weights.range_server import main; main(*{{}})"
SENT = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1] + '/sent').read().decode())"
FLEET = """
name: t
models:
  - {{name: a, source: '{source}', engine: fake, resources: {{cpus: 0.1}}, placement: {{labels: {{host: a}}}}}}
  - {{name: b, source: '{source}', engine: fake, resources: {{cpus: 0.1}}, placement: {{labels: {{host: b}}}}}}
"""


@dataclass
class Weighed:
    """Two hosts with Ray on both, the first with a storage."""

    lab: Lab
    fleet: FleetLab

    @property
    def source(self) -> str:
        return f"http://{self.lab.hosts[0].address}/model"

    def up(self, text: str) -> subprocess.CompletedProcess[str]:
        path = self.fleet.folder / "fleet.yaml"
        path.write_text(text)
        return self.fleet.cli("up", str(path), "--detach", timeout_s=200)

    def whole(self, host: Host) -> set[str]:
        return {stored.source for stored in Store(host.folder / "lb").list() if stored.is_whole}


@pytest.fixture(scope="module")
def two() -> Iterator[Weighed]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with Lab(2) as lab:
        first, second = lab.hosts
        served = SERVE.format((first.address, 80, str(TINY)))
        storage = first.popen([sys.executable, "-c", served], output=subprocess.DEVNULL)
        common = ("--num-cpus", "4", "--token-file", str(lab.folder / "token"))
        for host in lab.hosts:
            host.env["LONGBOAT_HOME"] = str(host.folder / "lb")
        first.run([*COMMAND, "node", "start", "--head", "--label", "host=a", *common], timeout=200)
        second.run([*COMMAND, "node", "start", "--join", first.address, "--label", "host=b", *common], timeout=200)
        fleet = fleet_at(lab, first)
        try:
            yield Weighed(lab, fleet)
        finally:
            fleet.end()
            storage.kill()
            storage.wait()


def test_hosts_of_a_cluster_read_each_byte_once(two: Weighed) -> None:
    first, second = two.lab.hosts
    done = two.up(FLEET.format(source=two.source))
    assert done.returncode == 0, done.stderr
    assert {replica["model"] for replica in two.fleet.replicas()} == {"a", "b"}
    assert two.whole(first) == two.whole(second) == {two.source}
    weights = (TINY / "model.safetensors").stat().st_size
    sent = int(first.python(SENT, f"http://{first.address}"))
    print(f"\nthe storage sent {sent / weights:.2f} times the weights to two hosts")
    assert weights <= sent < 2 * weights


def test_weights_stay_while_they_are_used_and_the_token_is_private(two: Weighed) -> None:
    assert all("fetching" in replica["phase_s"] for replica in two.fleet.replicas())
    (stored,) = json.loads(two.fleet.must("weights", "list", "--json"))
    assert stored["in_use"]
    assert two.fleet.cli("weights", "evict", two.source).returncode == 3
    path = two.fleet.folder / "weights.json"
    order = json.loads(path.read_text())
    assert len(order["trackers"]) == 2
    assert order["member"] in order["trackers"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert order["token"] not in two.fleet.must("status", "--json")


def test_a_node_fetches_before_a_replica_needs_it_and_nothing_restarts(two: Weighed) -> None:
    first, second = two.lab.hosts
    shutil.copytree(TINY, two.lab.folder / "tiny-c")
    source = f"file://{two.lab.folder}/tiny-c"
    more = f"  - {{name: c, source: '{source}', engine: fake, replicas: 0, resources: {{cpus: 0.1}}}}\n"
    before = {replica["replica"] for replica in two.fleet.replicas()}
    done = two.up(FLEET.format(source=two.source) + more + f"weights: {{prewarm: [{second.address}], disk: 1GiB}}\n")
    assert done.returncode == 0, done.stderr
    assert "~ weights.disk" in done.stdout + done.stderr
    wait_until("c is on the second host", lambda: source in two.whole(second))
    assert source not in two.whole(first)
    assert {replica["replica"] for replica in two.fleet.replicas()} == before


def test_a_model_that_is_not_there_is_refused_before_anything_changes(two: Weighed) -> None:
    done = two.up(FLEET.format(source=two.source + "-not"))
    assert done.returncode == 2
    assert "models[0].source" in done.stderr
    assert len(two.fleet.replicas()) == 2
