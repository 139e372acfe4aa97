"""Fixtures that every room's tests may use, and how thoroughly properties are tried."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
pytest_plugins = ("netlab.plugin", "engines.sglang_node", "engines.vllm_node")

# A shell ignores SIGINT for what it starts in the background, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure: no deadline for an example. Where CI is set, every run tries the same examples.
settings.register_profile(
    "longboat",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("longboat")


LONGEST = (
    "fleet/test_two_hosts.py",
    "fleet/test_three_hosts.py",
    "fleet/test_changes.py",
    "fleet/test_changes_engine.py",
    "fleet/test_counts.py",
    "fleet/test_mixed_hosts.py",
    "fleet/test_fake_fleet.py",
    "fleet/test_adapters_sglang.py",
    "cluster/test_ray_node.py",
    "gateway/test_resume_on_requests.py",
    "gateway/test_reconnect_on_requests.py",
    "gateway/test_adapters_on_requests.py",
    "gateway/test_whole_journal.py",
    "docs/test_site.py",
    "cli/test_plan_properties.py",
    "cli/test_chat.py",
    "cli/test_gateway_run.py",
    "gateway/test_workers.py",
)
"""Files that take the longest; the end of ``make test`` names some. They begin first: a process that begins one at the
end works alone."""
PLACES = {file: place for place, file in enumerate(LONGEST)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and tests of clusters before those of engines. All else keeps its random order."""
    items.sort(key=place_of)


def place_of(item: pytest.Item) -> tuple[int, bool]:
    """Return where a test comes, by its file and its marks."""
    file = item.path.relative_to(HERE).as_posix()
    return PLACES.get(file, len(LONGEST)), not any(item.get_closest_marker(mark) for mark in ("ray", "net", "slow"))
