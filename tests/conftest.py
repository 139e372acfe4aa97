"""Fixtures that every room's tests may use, and how thoroughly properties are tried."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

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
    "fleet/test_sglang_fleet.py",
    "fleet/test_llama_cpp_hosts.py",
    "fleet/test_sglang_hosts.py",
    "fleet/test_llama_cpp_unlike.py",
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
SHARING = ("gateway/conformance/", "longboat_sglang/", "longboat_vllm/")
"""Folders whose tests share engines for a whole run: one process takes all their files, so that it starts them once."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, then tests of clusters, then those that share engines. Other order stays random."""
    items.sort(key=place_of)


def place_of(item: pytest.Item) -> tuple[int, bool, bool]:
    """Return where a test comes, by its file and its marks."""
    file = item.path.relative_to(HERE).as_posix()
    is_of_cluster = any(item.get_closest_marker(mark) for mark in ("ray", "net", "slow"))
    return PLACES.get(file, len(LONGEST)), not is_of_cluster, not file.startswith(SHARING)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one process, and each of the folders ``SHARING``."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler.loadfile import LoadFileScheduling

    class ByFileOrFolder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            inside = file.removeprefix(f"{HERE.name}/")
            return next((folder for folder in SHARING if inside.startswith(folder)), file)

    return ByFileOrFolder(config, log)
