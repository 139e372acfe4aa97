"""The image for processors is built by buildah, and a container of it serves a fleet: ``make check-image``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from image_lab import MARKS, networks, podman, until

CONTAINER, NETWORK = "longboat-test-image", "lbimage"
GIB = 1 << 30
FLEET = """name: boxed
models:
  - {name: a, source: 'builtin:tiny', engine: fake, replicas: 2, resources: {cpus: 0.1}}
"""
pytestmark = MARKS


@contextmanager
def running(image: str, tmp_path_factory: pytest.TempPathFactory, user: str = "") -> Iterator[str]:
    """Run a container as compose.yaml starts it, in a network of its own. user: empty for the image's own"""
    file = tmp_path_factory.mktemp("fleet") / "fleet.yaml"
    file.write_text(FLEET)
    podman("rm", "-f", CONTAINER, check=False)
    words = ["run", "-d", "--name", CONTAINER, "--network", f"ns:/run/netns/{NETWORK}", "--ipc", "private"]
    words += ["--shm-size", "2g", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
    words += ["-e", "LONGBOAT_FLEET_FILE=/fleet/fleet.yaml", "-v", f"{file}:/fleet/fleet.yaml:ro"]
    words += ["--user", user] if user else []
    file.parent.chmod(0o755)
    with networks(NETWORK, prefix="10.93.0"):
        try:
            podman(*words, image)
            yield CONTAINER
        finally:
            podman("rm", "-f", CONTAINER, check=False)


@pytest.fixture(scope="module")
def container(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(image, tmp_path_factory) as name:
        yield name


def inside(*words: str) -> subprocess.CompletedProcess[str]:
    return podman("exec", CONTAINER, *words, check=False)


def answers() -> bool:
    return inside("longboat", "chat", "a", "-p", "hello").returncode == 0


def test_image_is_small_and_has_a_health_check(image: str) -> None:
    (found,) = json.loads(podman("image", "inspect", image).stdout)
    assert found["Size"] < 1.5 * GIB
    assert found["Config"]["User"] == "10001:10001"
    assert "health.py" in str(found.get("HealthCheck") or found.get("Healthcheck"))


def test_user_without_a_name_serves_a_fleet(image: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """OpenShift gives each project users of its own, all of group 0."""
    with running(image, tmp_path_factory, user="1000680000:0") as name:
        until("the model answers", answers, name)
        assert inside("id", "-u").stdout.strip() == "1000680000"
        assert inside("longboat", "keys", "list").returncode == 0


def test_container_serves_a_fleet_without_root(container: str) -> None:
    until("the model answers", answers, container)
    assert inside("python3", "-S", "/usr/local/bin/health.py").returncode == 0
    assert inside("id", "-u").stdout.strip() == "10001"
    status = json.loads(inside("longboat", "status", "--json").stdout)
    assert [replica["phase"] for replica in status["replicas"]] == ["ready"] * 2


def test_killed_container_comes_back_with_its_state(container: str) -> None:
    podman("kill", "-s", "KILL", container)
    until(
        "the container has ended",
        lambda: "false" in podman("inspect", container, "--format", "{{.State.Running}}").stdout,
        container,
    )
    podman("start", container)
    until("the model answers again", answers, container)


def test_stopped_container_ends_its_node(container: str) -> None:
    podman("stop", "-t", "120", container, limit_s=180.0)
    assert podman("inspect", container, "--format", "{{.State.ExitCode}}").stdout.strip() == "143"
