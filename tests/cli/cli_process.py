"""The command line in this process: as `longboat WORDS`, without the cost of a process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from longboat.cli.app import main

__all__ = ("Done", "runner")


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
