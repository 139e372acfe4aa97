"""The command line as a function of its words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_process import Done, runner


@pytest.fixture
def longboat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Done]:
    """Runs a command with folders of its own, and no cluster."""
    monkeypatch.setenv("LONGBOAT_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return runner(monkeypatch, capsys)
