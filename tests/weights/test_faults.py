"""Hosts that die, cables that are cut and disks that are full, in the middle of a fetch."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netlab.lab import Host, HostProcess, Lab
from netlab.plugin import MakeLab

pytestmark = [pytest.mark.net, pytest.mark.timeout(180)]

TESTS = str(Path(__file__).parents[1])
LONGBOAT = str(Path(sys.executable).parent / "longboat")
SIZE = 48 << 20
RATE_BITS_PER_S = 80_000_000
SERVE = """
import sys
sys.path.insert(0, sys.argv[1])
from weights.range_server import main
main(sys.argv[2], 80, sys.argv[3])
"""


def serve(host: Host) -> HostProcess:
    return host.popen([sys.executable, "-c", SERVE, TESTS, host.address, str(SIZE)], output=subprocess.DEVNULL)


def pull(host: Host, storage: Host, tracker: Host, home: str = "lb") -> HostProcess:
    env = {"LONGBOAT_HOME": str(host.folder / home), "LONGBOAT_WEIGHTS_TOKEN": "a token that is long enough"}
    swarm = ["--swarm", f"{tracker.address}:8470", "--address", host.address, "--port", "8470", "--stay", "60"]
    return host.popen([LONGBOAT, "weights", "pull", f"http://{storage.address}/model", "--json", *swarm], env=env)


def have_bytes(host: Host) -> int:
    """Bytes that are on the host's disk, also of one that is down."""
    found = list((host.folder / "lb" / "weights").glob("*/*/pieces"))
    return sum(
        4 << 20 for path in found for at in range(0, path.stat().st_size, 32) if any(path.read_bytes()[at : at + 32])
    )


def until(condition: object, deadline_s: float = 60.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s
        time.sleep(0.05)


def until_it_listens(storage: Host) -> None:
    until(lambda: storage.run(["bash", "-c", f"exec 3<>/dev/tcp/{storage.address}/80"], check=False).returncode == 0)


def ended(process: HostProcess) -> dict[str, object]:
    output = process.communicate(timeout=90)[0]
    assert process.returncode == 0, output
    return dict(json.loads(output.splitlines()[-1]))


@pytest.fixture
def lab(netlab: MakeLab) -> Iterator[Lab]:
    yield netlab(4, rate_bits_per_s=RATE_BITS_PER_S, bucket_bytes=65536)


def test_a_dead_host_and_a_cut_cable_stop_no_other_and_are_continued(lab: Lab) -> None:
    storage, steady, dying, cut = lab.hosts
    server = serve(storage)
    try:
        until_it_listens(storage)
        fetches = {host: pull(host, storage, steady) for host in (steady, dying, cut)}
        until(lambda: have_bytes(dying) >= SIZE // 5)
        lab.kill_host(dying)
        lab.cut(cut)
        kept = have_bytes(dying)
        ended_at_once = ended(fetches[steady])
        lab.restore(cut)
        ended(fetches[cut])
        fetches[dying].communicate(timeout=30)
        lab.boot(dying)
        progress = ended(pull(dying, storage, steady))["progress"]
        assert isinstance(progress, dict)
        assert progress["from_storage_bytes"] + progress["from_nodes_bytes"] <= SIZE - kept
        for host in (steady, dying, cut):
            env = {"LONGBOAT_HOME": str(host.folder / "lb")}
            assert "every piece is right" in host.run([LONGBOAT, "weights", "verify"], env=env).stdout
        print("\nthe host beside them:", ended_at_once)
    finally:
        server.kill()
        server.wait()


def test_a_full_disk_is_told_and_nothing_of_it_is_served(lab: Lab) -> None:
    storage, node, *_ = lab.hosts
    server = serve(storage)
    small = node.folder / "small"
    small.mkdir()
    script = f"""
mount -t tmpfs -o size=30m tmpfs {small}
{LONGBOAT} weights pull http://{storage.address}/model --json && exit 9
find {small}/weights/models -type f 2>/dev/null | grep . && exit 8
mount -o remount,size=100m {small}
room() {{ df --output=avail -k {small} | tail -1; }}
fill() {{
  until test $(du -sm {small} | cut -f1) -gt 8; do sleep 0.02; done
  until fallocate -l $(room | tr -d ' ')k {small}/fill 2>/dev/null; do :; done
}}
fill &
{LONGBOAT} weights pull http://{storage.address}/model --json && exit 7
wait
find {small}/weights/models -type f 2>/dev/null | grep . && exit 6
rm {small}/fill
{LONGBOAT} weights pull http://{storage.address}/model --json
"""
    try:
        until_it_listens(storage)
        done = node.run(["bash", "-c", script], env={"LONGBOAT_HOME": str(small)}, timeout=90)
    finally:
        server.kill()
        server.wait()
    told, full = (line for line in done.stdout.splitlines() if line.startswith("error"))
    result = [line for line in done.stdout.splitlines() if line.startswith("{")][-1]
    assert "the disk is too full for 48MiB of weights" in told
    assert "is full; what was fetched stays" in full
    assert json.loads(result)["progress"]["from_storage_bytes"] < SIZE
