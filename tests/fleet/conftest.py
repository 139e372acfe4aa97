"""A fleet per test module: a local cluster takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.fleet_lab import FleetLab, fleet_in_new_folder


@pytest.fixture(scope="module")
def lab() -> Iterator[FleetLab]:
    with fleet_in_new_folder() as fleet:
        yield fleet
