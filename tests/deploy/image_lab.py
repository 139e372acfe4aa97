"""What tests of the built image share: the image, containers by podman, and networks of their own.

They need root, buildah, podman and runc. LONGBOAT_TEST_IMAGE_BASE names the base image; without it, the tree that
``make test-hosts`` left is the base, which needs no registry of images.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ("FOLDER", "MARKS", "image", "networks", "podman", "run", "until")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "containers"
HOSTS = Path(os.environ.get("LONGBOAT_TEST_HOSTS", "/var/tmp/longboat-test-hosts"))
TREE = HOSTS / "base.tar"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
BASE = os.environ.get("LONGBOAT_TEST_IMAGE_BASE", "")
IMAGE = "localhost/longboat-test:cpu"
MISSING = [name for name in ("buildah", "podman", "runc", "ip", "nsenter") if shutil.which(name) is None]
MARKS = [
    pytest.mark.hosts,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.getuid() != 0, reason="building an image needs root here"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(not (BASE or TREE.exists()), reason="no base: make test-hosts, or LONGBOAT_TEST_IMAGE_BASE"),
]


def run(*words: str, check: bool = True, limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=check, capture_output=True, text=True, timeout=limit_s)


def podman(
    *words: str, check: bool = True, limit_s: float = 180.0, network: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run podman. network: the network namespace that it runs in"""
    way_in = ("nsenter", f"--net=/run/netns/{network}") if network else ()
    words = (*way_in, "podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", *words)
    return run(*words, check=check, limit_s=limit_s)


def until(what: str, condition: Callable[[], bool], container: str, limit_s: float = 600.0) -> None:
    """Wait for ``condition``; after a generous deadline, the test fails with the container's log."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {limit_s:.0f} s: {what}; {podman('logs', container, check=False)}")
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


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image for processors without an engine; layers that an earlier run made are used again."""
    words = ["buildah", "bud", "--format", "docker", "--layers", "--isolation", "chroot", "--network", "host"]
    words += ["--build-arg", f"BASE={base(tmp_path_factory.mktemp('base'))}", "--build-arg", "ENGINE="]
    words += ["-f", str(FOLDER / "cpu.Dockerfile"), "-t", IMAGE, str(ROOT)]
    done = run(*words, check=False, limit_s=1500.0)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return IMAGE


@contextmanager
def networks(*names: str, prefix: str) -> Iterator[None]:
    """Networks with the addresses PREFIX.1 and PREFIX.2, joined by one cable; the second may be missing."""
    peer = names[1] if len(names) > 1 else names[0]
    cable = ["eth0", "type", "veth", "peer", "name", "eth0" if len(names) > 1 else "peer0", "netns", peer]
    try:
        for name in names:
            run("ip", "netns", "del", name, check=False)
            run("ip", "netns", "add", name)
        run("ip", "-n", names[0], "link", "add", *cable)
        for index, name in enumerate(names, 1):
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "addr", "add", f"{prefix}.{index}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
        if len(names) == 1:
            run("ip", "-n", peer, "link", "set", "peer0", "up")
        yield
    finally:
        for name in names:
            run("ip", "netns", "del", name, check=False)
