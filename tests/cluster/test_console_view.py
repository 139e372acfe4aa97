"""The view of the fleet for consoles: it is valid JSON, and a defect in it costs little."""

from __future__ import annotations

import json
from math import inf, nan

from longboat.cluster.protocol.console_view import ConsoleViews
from longboat.cluster.protocol.messages import FleetReport


def report(*decisions: dict[str, object]) -> FleetReport:
    return FleetReport(
        fleet="f", document="", at_s=1.0, replicas=(), gateways=(), failures={}, decisions=decisions, planned={}
    )


def test_numbers_that_json_does_not_have_are_null() -> None:
    view = ConsoleViews().view(lambda: report({"at_s": 2.5, "rest": inf, "each": [nan, 1]}), {"n": {"CPU": inf}})
    found = json.loads(view, parse_constant=lambda name: f"not JSON: {name}")
    assert found["decisions"] == [{"at_s": 2.5, "rest": None, "each": [None, 1]}]
    assert found["nodes"][0]["cpus"] is None and found["at_s"] == 1.0


def test_view_that_fails_is_tried_once_for_all_nodes() -> None:
    tries: list[int] = []

    def fails() -> FleetReport:
        tries.append(1)
        raise RuntimeError("a defect")

    views = ConsoleViews()
    assert [views.view(fails, {}) for _ in range(3)] == [b"", b"", b""]
    assert len(tries) == 1
