"""How much memory engines may have on this node, and what its accelerators are called."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ("accelerator_name", "node_memory_bytes", "processor_name")

CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
NVIDIA = Path("/proc/driver/nvidia/gpus")
PROCESSOR = Path("/proc/cpuinfo")
NAME_AND_FLAGS = re.compile(r"^(?:model name|flags|Features)\s*:\s*(.+?)\s*$", re.MULTILINE)
MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def node_memory_bytes() -> int:
    """Return the memory of the machine, or its limit, where that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *(limit for path in CGROUPS if (limit := _limit(path)))])


def _limit(path: Path) -> int:
    """0: none, or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


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
