"""The machine on which a gateway runs: its load, memory and disk, for metrics."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ("host_gauges",)

_KIB = 1024
_MEMORY = re.compile(r"^(MemTotal|MemAvailable): +(\d+) kB$", re.MULTILINE)


def host_gauges(folder: str | None, proc: Path = Path("/proc")) -> dict[str, float]:
    """Return what can be read; it takes about 0.1 ms. folder: its disk is measured; None: the one of the root folder"""
    gauges = {"load1": os.getloadavg()[0], "cpus": float(os.cpu_count() or 1)}
    try:
        found = dict(_MEMORY.findall((proc / "meminfo").read_text()))
        gauges["memory_bytes"] = float(found["MemTotal"]) * _KIB
        gauges["memory_available_bytes"] = float(found["MemAvailable"]) * _KIB
        disk = os.statvfs(folder or "/")
        gauges["disk_bytes"] = float(disk.f_blocks * disk.f_frsize)
        gauges["disk_available_bytes"] = float(disk.f_bavail * disk.f_frsize)
    except (OSError, KeyError):
        pass
    return gauges
