"""Lines of Serve's log hold no arguments of applications: they hold the variables of engines."""

from __future__ import annotations

import logging

import pytest

from longboat.cluster.ray import calm_imports


def test_arguments_are_cut_and_other_lines_stay(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("ray.serve")
    assert calm_imports.without_arguments in log.filters
    with caplog.at_level(logging.INFO, logger="ray.serve"):
        log.info("Importing application 'm' with arguments {'env': {'TOKEN': 'a-secret'}}.")
        log.info("Deployed %s with arguments %s", "x", 1)
    assert [record.getMessage() for record in caplog.records] == [
        "Importing application 'm'",
        "Deployed x with arguments 1",
    ]
