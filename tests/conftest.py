"""Fixtures that every room's tests may use, and how thoroughly properties are tried."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of clusters before those of engines: they take the longest, and a process that ends early has work."""
    items.sort(key=lambda item: not any(item.get_closest_marker(mark) for mark in ("ray", "net", "slow")))
