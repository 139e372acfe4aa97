"""Loops that must not end, and what they log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from longboat.telemetry import Guard


def test_a_guard_logs_the_first_of_several_failures_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    guard, failing = Guard(logging.getLogger("guarded"), "the work"), []
    for fails in (False, True, True, False, False):
        with guard:
            if fails:
                raise ValueError("broken")
        failing.append(guard.is_failing)
    assert failing == [False, True, True, False, False]
    words = ["the work failed, and is tried again", "the work works again"]
    assert [record.getMessage() for record in caplog.records] == words
    assert "ValueError: broken" in caplog.text


def test_a_guard_lets_cancellations_pass() -> None:
    guard = Guard(logging.getLogger("guarded"), "the work")
    with pytest.raises(asyncio.CancelledError), guard:
        raise asyncio.CancelledError
