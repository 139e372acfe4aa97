"""A fleet per test module: a local cluster takes seconds to start."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.fleet_lab import FleetLab


@pytest.fixture(scope="module")
def lab() -> Iterator[FleetLab]:
    """A run folder with a short path (Unix sockets), and an end to everything in it."""
    with tempfile.TemporaryDirectory(prefix="lb-", ignore_cleanup_errors=True) as folder:
        fleet = FleetLab(Path(folder))
        try:
            yield fleet
        finally:
            fleet.end()
