"""Two bare Debian hosts with systemd and sshd: one command, a model that answers, faults, power cuts, upgrade, removal.

The tests tell one story and run in order.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from booted import BootedHost, Site, why_unavailable

from fleet.lasting import Streams
from longboat.core.errors import UserInputError
from longboat.engines.environments.environment import find_environment
from longboat.folders import home_folder

ROOT = Path(__file__).resolve().parents[2]
LONGBOAT = Path(sys.executable).parent / "longboat"
UP_S = 900.0
NEW_VERSION = "0.1.1"
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable() or "-"),
]


@dataclass
class Story:
    """The hosts and the operator's folder."""

    site: Site
    folder: Path
    # Files of each host before Longboat came.
    before: list[set[str]] = field(default_factory=list)

    @property
    def head(self) -> BootedHost:
        return self.site.hosts[0]

    @property
    def worker(self) -> BootedHost:
        return self.site.hosts[1]

    def write(self, *, user: str = "deploy", sudo: bool = True, bundle: str = "bundle", more: str = "") -> None:
        """Write the hosts file."""
        hosts = "".join(f"- {{host: {host.address}, cpus: 2}}\n" for host in self.site.hosts)
        (self.folder / "hosts.yaml").write_text(
            f"hosts:\n{hosts}user: {user}\nsudo: {str(sudo).lower()}\nfleet: fleet.yaml\n"
            f"install: {{bundle: {bundle}}}\nssh_config: {self.site.folder}/ssh_config\n{more}"
        )

    def cluster(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [str(LONGBOAT), "cluster", command, *words]
        return subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=UP_S, check=False)

    def refused(self) -> str:
        """What ``up`` says where it must change nothing."""
        before = [host.files() for host in self.site.hosts]
        done = self.cluster("up")
        assert done.returncode == 3, done.stdout + done.stderr
        assert [host.files() for host in self.site.hosts] == before
        return done.stderr

    def answers(self, host: BootedHost, limit_s: float = 600.0) -> bool:
        """Ask the model on a host until it answers."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            done = host.ssh("timeout 60 .longboat/bin/longboat chat tiny -p 'What is your name?'")
            if done.returncode == 0 and done.stdout.strip():
                return True
            time.sleep(2.0)
        return False


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("operator")
    engine, binds = _engine()
    (folder / "fleet.yaml").write_text(
        "name: split\nmodels:\n  - {name: tiny, source: builtin:tiny, split: {pipeline: 2}, placement: {nodes: 2}, "
        f"resources: {{cpus: 0.5}}, engine: {engine}}}\n"
        "  - {name: flow, source: builtin:tiny, replicas: 2, resources: {cpus: 1.2}, "  # a node has room for one
        "engine: {kind: fake, options: {itl_ms: 400}}}\n"
    )
    wheel = _wheel(folder)
    _bundle(folder / "bundle", wheel)
    newer = _as_version(wheel, NEW_VERSION)
    shutil.copytree(folder / "bundle", folder / "bundle2", copy_function=_link)
    for old in (folder / "bundle2/wheels").glob("longboat-*.whl"):
        old.unlink()
    shutil.copyfile(newer, folder / "bundle2/wheels" / newer.name)
    site = Site(folder, binds)
    try:
        site.boot()
        yield Story(site, folder)
    finally:
        site.end()


def _engine() -> tuple[str, list[str]]:
    """The real vLLM of this machine, seen by both hosts; else the fake engine."""
    try:
        environment = find_environment("vllm", version=None, path=None, home=home_folder())
    except UserInputError:
        return "{kind: fake}", []
    python = Path(environment.python)
    base = python.resolve().parent.parent
    binds = [f"{python.parent.parent}:/engines/vllm", *([str(base)] if not str(base).startswith("/usr") else [])]
    return "{kind: vllm, environment: /engines/vllm}", binds


def _wheel(folder: Path) -> Path:
    if given := os.environ.get("LONGBOAT_TEST_WHEEL"):
        (folder / "dist").mkdir()
        return Path(shutil.copy(given, folder / "dist"))
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=600)
    return next((folder / "dist").glob("*.whl"))


def _bundle(folder: Path, wheel: Path) -> None:
    argv = [str(LONGBOAT), "bundle", str(folder), "--wheel", str(wheel)]
    subprocess.run(argv, check=True, timeout=900)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)


def _as_version(wheel: Path, version: str) -> Path:
    """The same wheel under a newer version."""
    old = wheel.name.split("-")[1]
    target = wheel.with_name(wheel.name.replace(f"-{old}-", f"-{version}-"))
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        for item in source.infolist():
            data, name = source.read(item), item.filename.replace(f"longboat-{old}.", f"longboat-{version}.")
            if name.endswith(("METADATA", "RECORD")):
                data = data.replace(f"Version: {old}".encode(), f"Version: {version}".encode())
                data = re.sub(rf"longboat-{re.escape(old)}\.".encode(), f"longboat-{version}.".encode(), data)
                data = re.sub(rb"(METADATA),[^\n]*", rb"\1,,", data)
            copy.writestr(name, data)
    return target


def test_unknown_host_key_and_wrong_key_are_told(story: Story) -> None:
    story.write()
    known = story.folder / "known"
    text = known.read_text()
    known.write_text("")
    assert story.refused().count("its host key is not known here") >= 2
    known.write_text(text)
    config = story.folder / "ssh_config"
    right = config.read_text()
    config.write_text(right.replace("/key\n", "/other_key\n"))
    assert "it accepts none of your keys" in story.refused()
    config.write_text(right)


def test_missing_sudo_disk_and_port_are_told_at_once(story: Story) -> None:
    story.write(user="plain")
    assert "user plain may not use sudo without a password" in story.refused()
    story.write(user="plain", sudo=False)
    assert "services of user plain end with its login" in story.refused()
    for host in story.site.hosts:
        host.ssh("sudo mkdir /small; sudo mount -t tmpfs -o size=100M tmpfs /small; sudo chown deploy /small")
    listener = 'import socket,time; s=socket.create_server(("0.0.0.0", 6379)); time.sleep(600)'
    story.head.ssh(f"sudo systemd-run --unit taker python3 -c '{listener}'")
    time.sleep(1.0)
    story.write(more="folders: {software: /small/longboat}\n")
    told = story.refused()
    assert "0.1 GB are free on /small" in told and "port 6379, which the head needs, is taken" in told
    story.head.ssh("sudo systemctl stop taker")
    for host in story.site.hosts:
        host.ssh("sudo umount /small; sudo rmdir /small")


def test_host_that_dies_half_way_is_told_and_the_next_run_finishes(story: Story) -> None:
    story.write()
    story.before = [host.files() for host in story.site.hosts]
    argv = [str(LONGBOAT), "cluster", "up"]
    with subprocess.Popen(argv, cwd=story.folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as up:
        assert up.stderr is not None
        lines = []
        for line in up.stderr:
            lines.append(line)
            if line.startswith(f"{story.worker.address}: install Longboat") and "(" not in line:
                time.sleep(2.0)
                story.worker.kill()
        assert up.wait(UP_S) == 3
    told = "".join(lines)
    assert f"{story.worker.address}: failed: install Longboat" in told
    story.worker.boot()
    story.worker.wait()
    done = story.cluster("up")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{story.worker.address}: install Longboat" in done.stderr
    assert f"{story.head.address}: install Longboat" not in done.stderr


def test_split_model_answers_on_both_hosts(story: Story) -> None:
    assert story.answers(story.head) and story.answers(story.worker)


def test_second_run_changes_nothing(story: Story) -> None:
    units = [
        host.ssh("systemctl show longboat-node -p MainPID -p ActiveEnterTimestamp").stdout for host in story.site.hosts
    ]
    done = story.cluster("up")
    assert done.returncode == 0 and "nothing to change" in done.stdout
    assert units == [
        host.ssh("systemctl show longboat-node -p MainPID -p ActiveEnterTimestamp").stdout for host in story.site.hosts
    ]


@pytest.mark.parametrize("number", [2, 1], ids=["worker", "head"])
def test_host_without_power_comes_back_by_itself(story: Story, number: int) -> None:
    host = story.site.hosts[number - 1]
    host.kill()
    host.boot()
    host.wait()
    assert story.answers(host)
    assert story.cluster("status").returncode == 0


def test_killed_node_is_restarted_by_systemd(story: Story) -> None:
    before = _num_restarts(story.worker)
    story.worker.ssh("sudo systemctl kill -s KILL longboat-node")
    end_s = time.monotonic() + 300.0
    while story.cluster("status").returncode and time.monotonic() < end_s:
        time.sleep(2.0)
    journal = story.worker.ssh("sudo journalctl -u longboat-node -n 60 --no-pager").stdout
    assert _num_restarts(story.worker) == before + 1, journal
    assert story.answers(story.head)


def _num_restarts(host: BootedHost) -> int:
    """How often systemd has restarted the node's unit: more than once, where a start on a busy machine failed."""
    return int(host.ssh("systemctl show longboat-node -p NRestarts --value").stdout)


def test_host_is_removed_and_added_again(story: Story) -> None:
    done = story.cluster("remove", story.worker.address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert story.worker.address not in (story.folder / "hosts.yaml").read_text()
    story.worker.ssh("sudo systemctl reset-failed")
    assert story.worker.files() - story.before[1] == set()
    done = story.cluster("add", story.worker.address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert story.worker.address in (story.folder / "hosts.yaml").read_text()
    assert story.answers(story.worker)


def test_upgrade_restarts_node_by_node_and_loses_no_stream(story: Story) -> None:
    story.write(bundle="bundle2")
    with story.site.gateways() as bases, Streams(bases, "flow", num_clients=200) as streams:
        done = story.cluster("upgrade")
    print(f"{streams.num_whole} streams of 200 clients, {streams.num_continued} continued over another gateway")
    assert (streams.failed, streams.differing) == ([], [])
    assert done.returncode == 0, done.stdout + done.stderr
    restarts = re.findall(r"^(\S+): restart the node$", done.stderr, re.MULTILINE)
    assert restarts == [story.worker.address, story.head.address]
    for host in story.site.hosts:
        found = host.ssh("ls -d .longboat/current/lib/python*/site-packages/longboat-*.dist-info").stdout
        assert f"longboat-{NEW_VERSION}.dist-info" in found
        assert len(host.ssh("ls .longboat/releases").stdout.split()) == 1
    assert story.answers(story.head)


def test_removal_leaves_only_the_data_folder(story: Story) -> None:
    done = story.cluster("remove")
    assert done.returncode == 0, done.stdout + done.stderr
    for host, before in zip(story.site.hosts, story.before, strict=True):
        host.ssh("sudo systemctl reset-failed")
        assert host.files() - before == set()
        assert host.ssh("pgrep -fa '[l]ongboat|[r]aylet'").stdout == ""
        assert host.ssh("ls .local/share/longboat").stdout
