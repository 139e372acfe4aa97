"""In which order files of tests run, which of them one process takes, and which a group of tests has to collect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ("LONGEST", "SHARING", "files_marked", "make_scheduler", "place_of", "scope_of")

HERE = Path(__file__).parent

LONGEST = (
    "fleet/shared/vllm/test_changes_engine.py",
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
SHARING = ("fleet/shared/vllm/", "fleet/shared/", "gateway/conformance/", "longboat_sglang/", "longboat_vllm/")
"""Folders whose tests share a cluster or engines: one process takes all their files, so that it starts them once.

A folder within another one comes before it: all fleets together are too long for one process.
"""


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


def files_marked(marks: Sequence[str], root: Path = HERE) -> list[str]:
    """Return the files of tests that have one of these marks, from the folder of tests.

    The words ``pytest.mark.NAME`` stand in such a file, or in a ``conftest.py`` above it: nothing is imported to find
    them, so that a group of tests does not collect thousands of others.
    """
    words = re.compile(rf"\bpytest\.mark\.({'|'.join(marks)})\b")
    having = {path for path in root.rglob("*.py") if words.search(path.read_text(encoding="utf-8"))}
    folders = {path.parent for path in having if path.name == "conftest.py"}
    files = (path for path in root.rglob("test_*.py") if path in having or folders & set(path.parents))
    return sorted(path.relative_to(root).as_posix() for path in files)
