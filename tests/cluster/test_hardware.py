"""What a container may use of its machine, from the files of cgroups in both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from longboat.cluster.host import hardware
from longboat.cluster.host.choices import NodeRequest, PortClaims, decide
from longboat.cluster.host.hardware import node_cpus, node_memory_bytes
from longboat.cluster.preflight.surroundings import this_machine
from longboat.core.errors import UserInputError

GIB = 1 << 30


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 CPUs. Returns the folder of its cgroups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(hardware, "OWN_CGROUPS", tmp_path / "own")
    return tmp_path / "cgroup"


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_limits_of_a_container_with_cgroups_of_version_2(cgroups: Path) -> None:
    _write(cgroups.parent, own="0::/")
    _write(cgroups, cpu__max="250000 100000", memory__max=str(GIB))
    assert (node_cpus(), node_memory_bytes()) == (2, GIB)
    _write(cgroups, cpu__max="50000 100000")
    assert node_cpus() == 1  # half a CPU can run a model of one
    _write(cgroups, cpu__max="max 100000", memory__max="max")
    assert node_cpus() == 64
    assert node_memory_bytes() > GIB


def test_limits_of_a_container_with_cgroups_of_version_1(cgroups: Path) -> None:
    _write(cgroups.parent, own="4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/")  # as the host names them
    _write(cgroups / "cpu,cpuacct", cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    _write(cgroups / "memory", memory__limit_in_bytes=str(GIB))
    assert (node_cpus(), node_memory_bytes()) == (4, GIB)
    _write(cgroups / "cpu,cpuacct", cpu__cfs_quota_us="-1")
    assert node_cpus() == 64


def test_limits_of_a_service_are_those_of_its_own_cgroup_and_of_all_above(cgroups: Path) -> None:
    _write(cgroups.parent, own="0::/system.slice/longboat.service")
    _write(cgroups / "system.slice", cpu__max="1600000 100000", memory__max=str(GIB))
    _write(cgroups / "system.slice" / "longboat.service", cpu__max="800000 100000", memory__max=str(2 * GIB))
    assert (node_cpus(), node_memory_bytes()) == (8, GIB)


def test_machine_without_cgroups_counts_the_processors_that_it_may_use(
    cgroups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 6})
    assert node_cpus() == 3


def test_plan_and_ray_count_alike(cgroups: Path, tmp_path: Path) -> None:
    _write(cgroups.parent, own="0::/")
    _write(cgroups, cpu__max="300000 100000")
    assert this_machine().num_cpus == 3.0
    with PortClaims() as claims:
        assert decide(NodeRequest(is_local=True), tmp_path, claims).num_cpus == 3.0
        assert decide(NodeRequest(is_local=True, num_cpus=0.0), tmp_path, claims).num_cpus == 0.0


def test_head_is_refused_where_its_cgroup_allows_too_few_threads(cgroups: Path, tmp_path: Path) -> None:
    _write(cgroups.parent, own="8:pids:/")
    _write(cgroups / "pids", pids__max="200")
    with PortClaims() as claims:
        with pytest.raises(UserInputError, match=r"only 200 processes and threads are allowed here \(pids.max\)"):
            decide(NodeRequest(is_local=True), tmp_path, claims)
        for enough in ("4096", "max"):
            _write(cgroups / "pids", pids__max=enough)
            assert decide(NodeRequest(is_local=True), tmp_path, claims).role == "head"
