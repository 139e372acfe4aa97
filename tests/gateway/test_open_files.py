"""How many files a gateway may have open, and what it says when it has them all."""

from __future__ import annotations

import errno
import logging
import os
import resource
import subprocess
import sys

import pytest

from longboat.gateway.process import open_files
from longboat.gateway.process.open_files import OpenFilesWatch

_RAISE = """
import resource
from longboat.gateway.process.open_files import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
print(raise_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE), raise_open_files())
"""


def test_soft_limit_is_raised_to_the_hard_one() -> None:
    words = [sys.executable, "-c", _RAISE.format(hard=128)]
    assert subprocess.run(words, capture_output=True, text=True, timeout=60).stdout == "128 128 128 128\n"


def test_limit_that_the_kernel_refuses_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert open_files.raise_open_files() == 1024


def test_gateway_without_open_files_left_says_so_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    watch = OpenFilesWatch()
    with caplog.at_level(logging.ERROR), monkeypatch.context() as patch:
        watch.look(0.0)
        patch.setattr(os, "open", none_left)
        for now_s in (1.0, 2.0, 60.0, 61.5):
            watch.look(now_s)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("clients are refused: this process has no more open files")
