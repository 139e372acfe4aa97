"""Memory that a rank really takes: that of its GPUs, or of its processes, shared pages divided among them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from longboat.cluster.host.proc_usage import children_of

__all__ = ("gpu_bytes", "pss_bytes", "rank_memory_bytes")

PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
ASK_S = 10.0


def rank_memory_bytes(root_pid: int, gpu_ids: Sequence[str]) -> int:
    """Return the memory of the rank's GPUs, which are its own, else of its processes. 0: not known."""
    return gpu_bytes(gpu_ids) if gpu_ids else pss_bytes(root_pid)


def pss_bytes(root_pid: int) -> int:
    """Proportional set size of a process and its descendants; those that end meanwhile count as nothing."""
    total, pending = 0, [root_pid]
    while pending:
        pid = pending.pop()
        try:
            pending.extend(children_of(pid))
            found = PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
        except OSError:
            continue
        total += int(found[1]) * 1024 if found else 0
    return total


def gpu_bytes(gpu_ids: Sequence[str]) -> int:
    """Memory in use on these GPUs, as ``nvidia-smi`` tells."""
    argv = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", ",".join(gpu_ids)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(int(line) for line in done.stdout.split() if line.isdecimal()) * 1024**2
