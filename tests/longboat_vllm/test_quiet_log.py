"""Tests that the engine's access log leaves out Longboat's own frequent requests, and nothing else."""

from __future__ import annotations

import logging

import pytest

from longboat_vllm.quiet_log import hush


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("/longboat/v1/steps", False),
        ("/metrics", False),
        ("/longboat/v1/resume", True),
        ("/v1/chat/completions", True),
    ],
)
def test_only_what_is_asked_all_the_time_is_left_out(
    path: str, written: bool, caplog: pytest.LogCaptureFixture
) -> None:
    hush()
    hush()
    access = logging.getLogger("uvicorn.access")
    with caplog.at_level(logging.INFO, logger="uvicorn.access"):
        access.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", path, "1.1", 200)
        access.info("a line of another form")
    assert (path in caplog.text) is written
    assert "another form" in caplog.text
