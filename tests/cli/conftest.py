"""The command line as a function of its words, and tables of a pipe's width whatever the shell says."""

from __future__ import annotations

import pytest

from cli.cli_process import longboat

__all__ = ("longboat",)


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
