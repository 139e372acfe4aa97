"""How many CPUs and how much memory engines may have on this node, and what its accelerators are called."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ("accelerator_name", "node_cpus", "node_memory_bytes", "processor_name", "shared_memory_bytes", "tasks_limit")

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
NVIDIA = Path("/proc/driver/nvidia/gpus")
PROCESSOR = Path("/proc/cpuinfo")
NAME_AND_FLAGS = re.compile(r"^(?:model name|flags|Features)\s*:\s*(.+?)\s*$", re.MULTILINE)
MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def node_memory_bytes() -> int:
    """Return the memory of the machine, or its limit, where that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")  # of version 2 and 1
    limits = (_first_number(folder / name) for folder in _cgroups() for name in names)
    return min([whole, *(limit for limit in limits if limit > 0)])


def node_cpus() -> int:
    """Return how many CPUs this process may use: those it is bound to, or its quota, where that is less; at least 1.

    Ray knows the quota too, but it rounds half a CPU to none, and takes CPUs that are closed to a container.
    """
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quotas = (quota for folder in _cgroups() if (quota := _quota(folder)) > 0)
    return max(1, int(min([usable, *quotas])))


def shared_memory_bytes(folder: Path = Path("/dev/shm")) -> int | None:  # noqa: S108
    """Return the size of the file system for shared memory; None where there is none."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def tasks_limit() -> int:
    """Return how many processes and threads the cgroups of this process may have together; 0: no limit."""
    return min([limit for folder in _cgroups() if (limit := _first_number(folder / "pids.max")) > 0], default=0)


def _cgroups() -> Iterator[Path]:
    """Yield the folders of this process's cgroups, and of those above them, as far as a container shows them."""
    try:
        rows = OWN_CGROUPS.read_text().splitlines()
    except OSError:
        rows = ["0::/"]
    for row in rows:
        controllers, _, path = row.partition(":")[2].partition(":")
        top = CGROUPS / controllers
        own = top / path.lstrip("/")
        yield from (own, *(folder for folder in own.parents if folder.is_relative_to(top)))


def _quota(cgroup: Path) -> float:
    """Return how many CPUs the cgroup's processes may have together; 0 without a limit."""
    match _numbers(cgroup / "cpu.max"):  # version 2: "200000 100000", or "max 100000"
        case [quota, period]:
            return quota / period if period else 0.0
    quota, period = _first_number(cgroup / "cpu.cfs_quota_us"), _first_number(cgroup / "cpu.cfs_period_us")
    return quota / period if period else 0.0


def _first_number(path: Path) -> int:
    """Return the number at the start of a file; 0 where it begins otherwise (``max``, -1), or does not exist."""
    return next(iter(_numbers(path)), 0)


def _numbers(path: Path) -> list[int]:
    """Return the words of a file, with 0 for each that is not a number; none where the file does not exist."""
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return [int(word) if word.isdecimal() else 0 for word in words]


def accelerator_name(folder: Path = NVIDIA) -> str:
    """Return the first card's name from NVIDIA's driver (``NVIDIA GeForce RTX 4090``); empty where there is none."""
    try:
        found = sorted(folder.glob("*/information"))
        told = MODEL.search(found[0].read_text()) if found else None
    except OSError:
        return ""
    return told[1] if told else ""


def processor_name(file: Path = PROCESSOR) -> str:
    """Return the first processor's name and abilities, for which compilers make code; empty where it is not known."""
    try:
        return "\n".join(dict.fromkeys(NAME_AND_FLAGS.findall(file.read_text())))
    except OSError:
        return ""
