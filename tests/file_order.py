"""In which order files of tests run, and which of them one process takes."""

from __future__ import annotations

from typing import Any

__all__ = ("LONGEST", "SHARING", "make_scheduler", "place_of", "scope_of")

LONGEST = (
    "fleet/shared/test_changes.py",
    "fleet/test_two_hosts.py",
    "fleet/test_three_hosts.py",
    "fleet/test_counts.py",
    "fleet/test_mixed_hosts.py",
    "fleet/test_fake_fleet.py",
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
SHARING = ("fleet/shared/", "gateway/conformance/", "longboat_sglang/", "longboat_vllm/")
"""Folders whose tests share a cluster or engines: one process takes all their files, so that it starts them once."""


def place_of(file: str, *, is_of_cluster: bool) -> tuple[int, bool, bool]:
    """Return where a test comes: the longest files first, then tests of clusters, then those that share engines.

    file: its path from the folder of tests
    """
    return PLACES.get(file, len(LONGEST)), not is_of_cluster, not file.startswith(SHARING)


def scope_of(file: str) -> str:
    """Return what one process takes as a whole: a file, or the folder that shares what its files start."""
    return next((folder for folder in SHARING if file.startswith(folder)), file)


def make_scheduler(config: Any, log: Any, *, root: str = "tests/") -> Any:
    """Return pytest-xdist's scheduler for ``--dist=loadfile``; None for another one. root: where all tests are"""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler.loadfile import LoadFileScheduling

    class ByFileOrFolder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(super()._split_scope(nodeid).removeprefix(root))

    return ByFileOrFolder(config, log)
