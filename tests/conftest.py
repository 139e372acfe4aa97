"""Fixtures that every room's tests may use, and how thoroughly properties are tried."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from file_order import files_marked, make_scheduler, place_of

HERE = Path(__file__).parent
pytest_plugins = ("netlab.plugin", "engines.sglang_node", "engines.vllm_node")

# A shell ignores SIGINT for what it starts in the background, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What tests print to is a pipe, whatever terminal a shell names; workers of pytest-xdist name one of 80 columns.
os.environ.pop("COLUMNS", None)

# A busy machine is no failure: no deadline for an example. Where CI is set, every run tries the same examples.
settings.register_profile(
    "longboat",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("longboat")


COLLECTED_BY = ("engine", "ray", "net", "slow")
"""Marks by whose words in a file ``make test`` finds the files that it collects."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests into the order of ``file_order``. Other order stays random."""
    items.sort(key=_place)
    having = {item.path for item in items if any(item.get_closest_marker(mark) for mark in COLLECTED_BY)}
    found = {HERE / file for file in files_marked(COLLECTED_BY)}
    if lost := sorted(str(path) for path in having - found if path.is_relative_to(HERE)):
        raise pytest.UsageError(f"write pytest.mark.NAME in these files, or make test leaves them out: {lost}")


def _place(item: pytest.Item) -> tuple[int, bool, bool]:
    is_of_cluster = any(item.get_closest_marker(mark) for mark in ("ray", "net", "slow"))
    return place_of(item.path.relative_to(HERE).as_posix(), is_of_cluster=is_of_cluster)


MOST_RUNNABLE = 12.0 * (os.cpu_count() or 1)
"""Load average above which no process begins another test of a cluster or of an engine. Processors are busy far below
it; above it, deadlines are missed, and what starts again after a missed deadline adds to the load."""
MOST_WAIT_S = 120.0


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let others' tests end first where the machine is too slow for as many as run beside each other.

    A test's deadline begins afterwards.
    """
    if "PYTEST_XDIST_WORKER" in os.environ and any(map(item.get_closest_marker, COLLECTED_BY)):
        until_s = time.monotonic() + MOST_WAIT_S
        while os.getloadavg()[0] > MOST_RUNNABLE and time.monotonic() < until_s:
            time.sleep(random.uniform(1.0, 5.0))  # so that they do not all begin at once
    return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process, and each of the folders that share something."""
    return make_scheduler(config, log, root=f"{HERE.name}/")
