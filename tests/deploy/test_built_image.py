"""The image for processors is built by buildah, and a container of it serves a fleet: ``make check-image``.

It needs root, buildah, podman and runc. LONGBOAT_TEST_IMAGE_BASE names the base image; without it, the tree that ``make
test-hosts`` left is the base, which needs no registry of images.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTS = Path(os.environ.get("LONGBOAT_TEST_HOSTS", "/var/tmp/longboat-test-hosts"))
TREE = HOSTS / "base.tar"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
BASE = os.environ.get("LONGBOAT_TEST_IMAGE_BASE", "")
IMAGE, CONTAINER, NETWORK = "localhost/longboat-test:cpu", "longboat-test-image", "lbimage"
MISSING = [name for name in ("buildah", "podman", "runc", "ip") if shutil.which(name) is None]
GIB = 1 << 30
FLEET = """name: boxed
models:
  - {name: a, source: 'builtin:tiny', engine: fake, replicas: 2, resources: {cpus: 0.1}}
"""
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.getuid() != 0, reason="building an image needs root here"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(not (BASE or TREE.exists()), reason="no base: make test-hosts, or LONGBOAT_TEST_IMAGE_BASE"),
]


def run(*words: str, check: bool = True, limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=check, capture_output=True, text=True, timeout=limit_s)


def podman(*words: str, check: bool = True, limit_s: float = 180.0) -> subprocess.CompletedProcess[str]:
    return run("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", *words, check=check, limit_s=limit_s)


def until(what: str, condition: Callable[[], bool], limit_s: float = 300.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {limit_s:.0f} s: {what}; {podman('logs', CONTAINER, check=False)}")
        time.sleep(2.0)


def base(folder: Path) -> str:
    """Return the base image; one made of a tree trusts the certificates that this machine trusts."""
    if BASE:
        return BASE
    tree = folder / "base.tar"
    shutil.copyfile(TREE, tree)
    settings = folder / "pip.conf"
    settings.write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")
    with tarfile.open(tree, "a") as archive:
        archive.add(settings, "./etc/pip.conf")
        for certificate in CERTIFICATES.glob("*.crt"):
            archive.add(certificate, f".{CERTIFICATES}/{certificate.name}")
    run("podman", "import", str(tree), "localhost/longboat-test-base:12.12-slim", limit_s=300.0)
    return "localhost/longboat-test-base:12.12-slim"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    words = ["buildah", "bud", "--format", "docker", "--layers", "--isolation", "chroot", "--network", "host"]
    words += ["--build-arg", f"BASE={base(tmp_path_factory.mktemp('base'))}", "--build-arg", "ENGINE="]
    words += ["-f", str(ROOT / "deploy" / "containers" / "cpu.Dockerfile"), "-t", IMAGE, str(ROOT)]
    done = run(*words, check=False, limit_s=1500.0)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return IMAGE


@pytest.fixture(scope="module")
def container(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A container as compose.yaml starts it, in a network of its own."""
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(FLEET)
    podman("rm", "-f", CONTAINER, check=False)
    run("ip", "netns", "del", NETWORK, check=False)
    run("ip", "netns", "add", NETWORK)
    for words in (
        ["link", "set", "lo", "up"],
        ["link", "add", "eth0", "type", "veth", "peer", "name", "peer0"],
        ["addr", "add", "10.93.0.1/24", "dev", "eth0"],
        ["link", "set", "peer0", "up"],
        ["link", "set", "eth0", "up"],
    ):
        run("ip", "-n", NETWORK, *words)
    words = ["run", "-d", "--name", CONTAINER, "--network", f"ns:/run/netns/{NETWORK}", "--ipc", "private"]
    words += ["--shm-size", "2g", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
    words += ["-e", "LONGBOAT_FLEET_FILE=/fleet/fleet.yaml", "-v", f"{file}:/fleet/fleet.yaml:ro", image]
    try:
        file.parent.chmod(0o755)
        podman(*words)
        yield CONTAINER
    finally:
        podman("rm", "-f", CONTAINER, check=False)
        run("ip", "netns", "del", NETWORK, check=False)


def inside(*words: str) -> subprocess.CompletedProcess[str]:
    return podman("exec", CONTAINER, *words, check=False)


def test_image_is_small_and_has_a_health_check(image: str) -> None:
    (found,) = json.loads(podman("image", "inspect", image).stdout)
    assert found["Size"] < 1.5 * GIB
    assert found["Config"]["User"] == "10001:10001"
    assert "health.py" in str(found.get("HealthCheck") or found.get("Healthcheck"))


def test_container_serves_a_fleet_without_root(container: str) -> None:
    until("the model answers", lambda: inside("longboat", "chat", "a", "-p", "hello").returncode == 0)
    assert inside("python3", "-S", "/usr/local/bin/health.py").returncode == 0
    assert inside("id", "-u").stdout.strip() == "10001"
    status = json.loads(inside("longboat", "status", "--json").stdout)
    assert [replica["phase"] for replica in status["replicas"]] == ["ready"] * 2


def test_killed_container_comes_back_with_its_state(container: str) -> None:
    podman("kill", "-s", "KILL", container)
    until(
        "the container has ended",
        lambda: "false" in podman("inspect", container, "--format", "{{.State.Running}}").stdout,
    )
    podman("start", container)
    until("the model answers again", lambda: inside("longboat", "chat", "a", "-p", "hello").returncode == 0)


def test_stopped_container_ends_its_node(container: str) -> None:
    podman("stop", "-t", "120", container, limit_s=180.0)
    assert podman("inspect", container, "--format", "{{.State.ExitCode}}").stdout.strip() == "143"
