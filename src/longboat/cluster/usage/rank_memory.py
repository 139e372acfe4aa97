"""Memory that a rank really takes: that of its GPUs, or of its processes, shared pages divided among them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from longboat.cluster.usage.proc_usage import process_tree

__all__ = ("gpu_bytes", "gpu_bytes_of", "pss_bytes", "rank_memory_bytes")

PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
ASK_S = 10.0


def rank_memory_bytes(root_pid: int, gpu_ids: Sequence[str], *, shares_gpu: bool = False) -> int:
    """Return the memory of the rank's GPUs, else of its processes. 0: not known.

    shares_gpu: other engines are on its GPU too; then only what its processes have there counts
    """
    if not gpu_ids:
        return pss_bytes(root_pid)
    return gpu_bytes_of(process_tree(root_pid)) if shares_gpu else gpu_bytes(gpu_ids)


def pss_bytes(root_pid: int) -> int:
    """Proportional set size of a process and its descendants; those that end meanwhile count as nothing."""
    return sum(_pss_of(pid) for pid in process_tree(root_pid))


def _pss_of(pid: int) -> int:
    try:
        found = PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def gpu_bytes(gpu_ids: Sequence[str]) -> int:
    """Return the memory in use on these GPUs, as ``nvidia-smi`` reports it."""
    lines = _asked("--query-gpu=memory.used", "-i", ",".join(gpu_ids))
    return sum(int(line) for line in lines if line.isdecimal()) * 1024**2


def gpu_bytes_of(pids: Collection[int]) -> int:
    """Return the memory that these processes have on all GPUs, as ``nvidia-smi`` reports it."""
    rows = (line.replace(" ", "").split(",") for line in _asked("--query-compute-apps=pid,used_memory"))
    own = (row for row in rows if len(row) == len(("pid", "MiB")) and all(word.isdecimal() for word in row))
    return sum(int(mib) for pid, mib in own if int(pid) in pids) * 1024**2


def _asked(*words: str) -> list[str]:
    """Return the lines of ``nvidia-smi``; none where it does not answer."""
    argv = ["nvidia-smi", *words, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=ASK_S, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
