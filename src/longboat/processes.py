"""Finds the processes of this machine in /proc, and tells a process from a later one that has its number."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ("all_pids", "boot_id", "born_ticks", "environment_of")


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def born_ticks(pid: int) -> int:
    """Return when ``pid`` started, in ticks since boot, which tells reused pids apart; 0 where it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if stat[0] in "ZX" else int(stat[19])


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with; none where it is gone."""
    try:
        rows = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    return dict(row.split("=", 1) for row in rows if "=" in row)


def boot_id() -> str:
    """Return the name of this boot of the machine; empty where the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
