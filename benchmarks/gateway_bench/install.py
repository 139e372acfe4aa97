"""Installs the peers of the benchmark, each in an environment of its own, from the package index that pip uses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway_bench.targets import Target, installed_version, peer_folder
from longboat.engines.environments.package_sources import package_sources

__all__ = ("install_peers",)


def install_peers(peers: Sequence[Target]) -> int:
    """Number of peers that could not be installed."""
    failed = 0
    for peer in peers:
        version = installed_version(peer)
        if version and version == peer.package.rpartition("==")[2]:
            print(f"{peer.name}: {version} is there", flush=True)
            continue
        works = install(peer)
        print(f"{peer.name}: {'installed' if works else 'could not be installed; see above'}", flush=True)
        failed += not works
    return failed


def install(peer: Target) -> bool:
    """Make the environment anew. A wheel is taken where there is one; nobody waits for a compiler."""
    folder = peer_folder(peer.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    sources = package_sources()
    python = str(folder / "bin" / "python")
    make = [uv(), "venv", "--quiet", "--python", sys.executable, str(folder)]
    fill = [uv(), "pip", "install", "--quiet", "--python", python, *sources.uv_arguments(), peer.package]
    env = {**os.environ, **sources.uv_variables()}
    return all(subprocess.run(command, env=env, check=False).returncode == 0 for command in (make, fill))


def uv() -> str:
    """The uv beside this Python, else the one on the path."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else "uv"
