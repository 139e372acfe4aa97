"""The command line in this process: as `longboat WORDS`, without the cost of a process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from longboat.cli.app import main

__all__ = ("Done", "longboat", "runner")


@dataclass(frozen=True)
class Done:
    """returncode, stdout, stderr: as of a process."""

    returncode: int
    stdout: str
    stderr: str


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """A function that runs one command."""

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["longboat", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return Done(int(caught.value.code or 0), out, err)

    return run


@pytest.fixture
def longboat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Done]:
    """Runs a command with folders of its own, and no cluster."""
    monkeypatch.setenv("LONGBOAT_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return runner(monkeypatch, capsys)
