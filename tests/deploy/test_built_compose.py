"""The compose files bring up one host and two, by podman-compose and the image that was built: ``make check-image``."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from image_lab import FOLDER, MARKS, networks, podman, until

pytest.importorskip("podman_compose", reason="make check-image installs podman-compose and runs this")

ENGINE = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
MODEL = "name: boxed\nmodels:\n  - {name: a, source: 'builtin:tiny', engine: fake, resources: {cpus: 0.1}, %s}\n"
SPLIT = "split: {pipeline: 2}, placement: {stages: [{host: one}, {host: two}]}"
USER = 10001
pytestmark = MARKS


@dataclass(frozen=True, kw_only=True)
class Host:
    """A host with a compose file: a folder, and a network of its own, which the file calls the host's."""

    folder: Path
    network: str
    image: str
    profile: str = ""
    head: str = ""

    def compose(self, *words: str, limit_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        (file,) = self.folder.glob("compose*.yaml")
        program = ("nsenter", f"--net=/run/netns/{self.network}", sys.executable, "-m", "podman_compose")
        options = ("-p", self.network, "-f", str(file), *(("--profile", self.profile) if self.profile else ()))
        env = os.environ | {"CONTAINERS_CONF": str(self.folder / "engine.conf"), "LONGBOAT_IMAGE": self.image}
        env |= {"HEAD_ADDRESS": self.head}
        return subprocess.run(
            (*program, *options, *words), env=env, capture_output=True, text=True, timeout=limit_s, check=False
        )

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container. With the host's network, it gets the network of who asks for it."""
        return podman("exec", self.container, *words, check=False, network=self.network)

    @property
    def container(self) -> str:
        return f"{self.network}_{self.profile or 'fleet'}_1"

    def answers(self) -> bool:
        return self.inside("longboat", "chat", "a", "-p", "hello").returncode == 0

    def up(self) -> None:
        done = self.compose("up", "--detach")
        assert done.returncode == 0, done.stderr[-2000:]

    def down(self, *words: str) -> None:
        self.compose("down", *words)


def host(folder: Path, file: str, model: str, **given: str) -> Host:
    """Write a host's folder. Its file is the one that users get, without the block that asks for cards."""
    folder.chmod(0o755)
    content = yaml.safe_load((FOLDER / file).read_text())
    for part in (content.get("x-node", {}), *content["services"].values()):
        part.pop("deploy", None)
    (folder / file).write_text(yaml.safe_dump(content, sort_keys=False))
    (folder / "fleet.yaml").write_text(MODEL % model)
    (folder / "engine.conf").write_text(ENGINE)
    return Host(folder=folder, **given)


@pytest.fixture
def alone(image: str, tmp_path: Path) -> Iterator[Host]:
    one = host(tmp_path, "compose.yaml", "replicas: 2", network="lbcompose", image=image)
    with networks(one.network, prefix="10.94.0"):
        try:
            one.up()
            yield one
        finally:
            one.down("--volumes")


@pytest.fixture
def pair(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    token, hosts = secrets.token_hex(32), []
    for network, profile in (("lbcompose1", "head"), ("lbcompose2", "node")):
        folder, file = tmp_path_factory.mktemp(profile), "compose.two-hosts.yaml"
        given = {"network": network, "profile": profile, "head": "10.95.0.1", "image": image}
        hosts.append(host(folder, file, SPLIT, **given))
        (folder / "cluster_token").write_text(token)
        (folder / "cluster_token").chmod(0o400)
    with networks(*(one.network for one in hosts), prefix="10.95.0"):
        try:
            yield hosts[0], hosts[1]
        finally:
            for one in reversed(hosts):
                one.down("--volumes")


def test_one_host_serves_and_keeps_its_state(alone: Host) -> None:
    until("the model answers", alone.answers, alone.container)
    made = alone.inside("longboat", "scale", "a", "1")
    assert made.returncode == 0, made.stderr
    alone.down()
    alone.up()
    until("the model answers again", alone.answers, alone.container)
    status = json.loads(alone.inside("longboat", "status", "--json").stdout)
    assert status["fleet"] == "boxed"


def test_two_hosts_serve_a_split_model_once_the_token_can_be_read(pair: tuple[Host, Host]) -> None:
    head, node = pair
    head.up()
    until("the head says what is wrong", lambda: "chown 10001" in _log(head), head.container)
    head.down()
    for one in pair:
        os.chown(one.folder / "cluster_token", USER, USER)
        one.up()
    words = ("longboat", "up", "/fleet/fleet.yaml", "--detach")
    until("the fleet is up", lambda: head.inside(*words).returncode == 0, head.container)
    until("the model answers", head.answers, head.container)
    status = json.loads(head.inside("longboat", "status", "--json").stdout)
    (replica,) = [one for one in status["replicas"] if one["phase"] == "ready"]
    assert [rank["address"] for rank in replica["ranks"]] == ["10.95.0.1", "10.95.0.2"]
    assert node.inside("longboat", "status").returncode == 0


def _log(one: Host) -> str:
    done = podman("logs", one.container, check=False)
    return done.stdout + done.stderr
