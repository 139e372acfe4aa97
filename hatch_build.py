"""Compiles the gateway's C extension in place: at an installation, as a build hook, or by ``python hatch_build.py``.

Without a compiler or Python's headers it says so in one line and goes on; the gateway then runs its Python twins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "src/longboat/gateway/_native.c"
FLAGS = ("-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-DNDEBUG")
_DEADLINE_S = 120


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before a wheel is packed and before an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """version: ``standard``, or ``editable`` where the checkout itself is what gets imported."""
        if self.target_name != "wheel":
            return
        built = build()
        if built is not None and version == "standard":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"].append(f"/{built.relative_to(ROOT).as_posix()}")


def build() -> Path | None:
    """The extension, compiled anew if its source has changed; None, after a line that says why, where that fails."""
    target = SOURCE.with_name(f"_native{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}")
    if _is_fresh(target):
        return target
    why = _why_not(target)
    if not why:
        return target
    target.unlink(missing_ok=True)  # what an older source made must not stay
    print(f"longboat: the gateway runs without its C extension, only slower: {why}", file=sys.stderr, flush=True)
    return None


def _is_fresh(target: Path) -> bool:
    try:
        built_ns = target.stat().st_mtime_ns
    except OSError:
        return False
    return built_ns > max(SOURCE.stat().st_mtime_ns, Path(__file__).stat().st_mtime_ns)


def _why_not(target: Path) -> str:
    """Compile; the reason where that fails, else empty."""
    headers = Path(sysconfig.get_path("include"))
    if sys.implementation.name != "cpython":
        return f"it is written for CPython, and this is {sys.implementation.name}"
    if not (headers / "Python.h").exists():
        return f"Python's headers are not in {headers} (on Debian and Ubuntu: install python3-dev)"
    linker = _linker()
    if linker is None:
        return "no C compiler was found (on Debian and Ubuntu: install gcc)"
    return _compile(linker, headers, target)


def _linker() -> list[str] | None:
    """The words that compile and link a shared object, with a compiler that exists."""
    words = str(sysconfig.get_config_var("LDSHARED") or "cc -shared").split()
    for compiler in (os.environ.get("CC", ""), words[0], "cc", "gcc", "clang"):
        if compiler and shutil.which(compiler):
            return [compiler, *words[1:]]
    return None


def _compile(linker: list[str], headers: Path, target: Path) -> str:
    """Running processes keep the old file: the new one is moved into its place whole."""
    try:
        with tempfile.TemporaryDirectory(prefix=".native-", dir=target.parent) as folder:
            fresh = Path(folder) / target.name
            command = [*linker, *FLAGS, f"-I{headers}", str(SOURCE), "-o", str(fresh)]
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_DEADLINE_S, check=False
            )
            if done.returncode == 0:
                os.replace(fresh, target)
                return ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
    return f"{linker[0]} failed: {lines[0][:300]}"


if __name__ == "__main__":
    build()
