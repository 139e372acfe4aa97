"""``longboat bundle``: shows the steps and the size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from longboat.cli.node.engine_progress import Progress
from longboat.engines.environments.package_sources import package_sources
from longboat.hosts.bundle import BundleRequest, make_bundle

__all__ = ("run_bundle",)


def run_bundle(
    folder: Path, wheel: Path, *, engines: Sequence[str], platform: str, with_python: bool, python: str
) -> None:
    """Make the bundle."""
    request = BundleRequest(
        folder=folder, wheel=wheel, python=python, engines=tuple(engines), platform=platform, with_python=with_python
    )
    with Progress() as progress:
        num_bytes = make_bundle(request, package_sources(), progress.step)
    typer.echo(
        f"{folder} is ready: {num_bytes / 1e9:.2f} GB; write it into the hosts file: install: {{bundle: {folder}}}"
    )
