"""Gives an environment the bytecode of its modules: what another one has of the same files, and compiles the others."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
from pathlib import Path

__all__ = ("compile_modules", "share_bytecode")

_DEADLINE_S = 1800.0
_RARE = (
    "/(tests?|torch/testing|pygments|anthropic|openai/resources|transformers/models|multimodal_gen"
    "|(vllm|model_executor|srt)/models)/"
)
"""Folders of which an engine imports few modules or none: one model's. Python compiles those at their first import."""


def compile_modules(python: str, folder: Path) -> None:
    """Compile what has no bytecode yet: imports are three times faster after it. Files of other Pythons are skipped."""
    command = [python, "-m", "compileall", "-q", "-j0", "-x", _RARE, str(folder / "lib")]
    with contextlib.suppress(subprocess.TimeoutExpired):  # imports compile what is left
        subprocess.run(command, capture_output=True, timeout=_DEADLINE_S, check=False)


def share_bytecode(folder: Path) -> int:
    """Link the bytecode that environments beside ``folder`` have of the same files; return for how many there is one.

    uv links one file of its cache into all environments of a disk, so equal inodes are equal files. Python checks
    bytecode by its source's time and size, and corrects the path in it.
    """
    known: dict[tuple[int, int], str] = {}
    for other in folder.parent.iterdir():
        if other != folder:
            for parent, _, names in os.walk(other / "lib"):
                for name in names if parent.endswith("__pycache__") else ():
                    with contextlib.suppress(OSError, ValueError):  # it has no source
                        known[_inode(importlib.util.source_from_cache(f"{parent}/{name}"))] = f"{parent}/{name}"
    num_shared = 0
    for parent, _, names in os.walk(folder / "lib") if known else ():
        for name in names:
            if name.endswith(".py") and (compiled := known.get(_inode(f"{parent}/{name}"))):
                with contextlib.suppress(OSError):  # no links here, or its environment is being removed: it is compiled
                    os.makedirs(f"{parent}/__pycache__", exist_ok=True)
                    os.link(compiled, f"{parent}/__pycache__/{os.path.basename(compiled)}")
                    num_shared += 1
    return num_shared


def _inode(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
