"""Compiled modules are used whole and fresh, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from longboat import compiled

needs_compiled = pytest.mark.skipif(not compiled.IS_COMPILED, reason="nothing is compiled (no C compiler or headers)")
SAYS = (
    "import longboat.compiled as c, longboat.gateway.calls.model_request as m;"
    "print(c.IS_COMPILED, m.__file__.endswith('.py'))"
)


def says(source: Path, **variables: str) -> str:
    """What a process that imports Longboat from there says of itself."""
    env = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(
        [sys.executable, "-c", SAYS], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip() or done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Longboat elsewhere, with the same times."""
    source = compiled.FOLDER.parent
    shutil.copytree(source, tmp_path / "longboat", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    return tmp_path


@needs_compiled
def test_compiled_modules_are_used_unless_they_are_turned_off(copy: Path) -> None:
    assert says(copy) == "True False"
    assert says(copy, LONGBOAT_NATIVE="0") == "False True"


@needs_compiled
def test_an_edited_source_turns_all_of_them_off(copy: Path) -> None:
    edited = copy / "longboat/routing/capacity/quota.py"
    edited.write_text(edited.read_text() + "\n")
    assert says(copy) == "False True"


@needs_compiled
@pytest.mark.parametrize("part", [compiled.MANIFEST, compiled.LIBRARY])
def test_what_is_not_whole_is_not_used(copy: Path, part: str) -> None:
    for path in (copy / "longboat/_compiled").glob(f"{part}*"):
        path.unlink()
    assert says(copy) == "False True"


@needs_compiled
def test_those_of_another_python_are_not_used(copy: Path) -> None:
    manifest = copy / "longboat/_compiled" / compiled.MANIFEST
    document = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({**document, "suffix": ".cpython-30-other.so"}))
    assert says(copy) == "False True"


@needs_compiled
def test_times_say_nothing(copy: Path) -> None:
    """An installed wheel has those of its installation."""
    os.utime(copy / "longboat/routing/capacity/quota.py")
    assert says(copy) == "True False"


@needs_compiled
def test_every_compiled_module_can_be_imported() -> None:
    names = json.loads((compiled.FOLDER / compiled.MANIFEST).read_bytes())["sources"]
    modules = [f"longboat.{name.removesuffix('.py').replace('/', '.')}" for name in names]
    program = f"import importlib\nfor name in {modules}: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
