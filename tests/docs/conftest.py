"""The command line as a function of its words, without the Internet."""

from __future__ import annotations

import pytest

from cli.cli_process import longboat

__all__ = ("longboat",)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
