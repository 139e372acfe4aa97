"""`longboat routes` and `longboat why`: asked through this node's daemon, and what the columns say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cli.cli_builders import gateway, report
from cli.cli_process import Done
from longboat.cli.shared import cluster_at_hand
from longboat.cluster.protocol.messages import FleetReport

HITS = dict.fromkeys(("requests", "prompt_tokens", "expected_tokens", "cached_tokens", "right_tokens"), 0)
COUNTS = dict.fromkeys(("in_flight", "prefilling", "prefill_tokens", "decode_tokens"), 0)
ROW = {"model": "chat", "replica": "r0", "ready": True, "suspect": False, "engine": {}, "hits": HITS, **COUNTS}


class Door:
    """A session through the daemon of this node, with two gateways that tell the same."""

    def __init__(self, **row: Any) -> None:
        self.row = {**ROW, **row}

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def report(self) -> FleetReport:
        return report(gateways=(gateway("n1"), gateway("n2")))

    def ask_daemon(self, node_id: str, method: str, query: bytes) -> dict[str, Any]:
        routes = {"routes": [self.row], "models": ["chat"], "policy": "cost"}
        return routes if json.loads(query)["query"] == "routes" else {"requests": [], "running": []}


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Opens the door of this node's daemon; Ray is out of reach."""

    def opened(**row: Any) -> None:
        def no_ray() -> Any:
            raise AssertionError("a session of Ray, although the daemon answers")

        monkeypatch.setattr(cluster_at_hand, "quick_session", lambda: Door(**row))
        monkeypatch.setattr(cluster_at_hand, "connect", no_ray)

    return opened


@pytest.mark.parametrize("command", ["routes", "why"])
def test_the_daemon_of_this_node_is_asked_without_ray(
    command: str, longboat: Callable[..., Done], door: Callable[..., None]
) -> None:
    door()
    assert longboat(command, "--json").returncode == 0


def test_requests_are_those_that_were_sent_and_empty_cells_have_a_reason(
    longboat: Callable[..., Done], door: Callable[..., None]
) -> None:
    door(sent=3)
    shown = longboat("routes").stdout
    assert next(line for line in shown.splitlines() if "chat/r0" in line).split()[-1] == "6"  # of both gateways
    assert "CACHED and EXPECTED are empty" in shown


def test_a_gateway_of_an_older_version_counts_what_engines_told(
    longboat: Callable[..., Done], door: Callable[..., None]
) -> None:
    door(hits={**HITS, "requests": 4, "prompt_tokens": 100, "cached_tokens": 50, "expected_tokens": 25})
    shown = longboat("routes").stdout
    assert next(line for line in shown.splitlines() if "chat/r0" in line).split()[-3:] == ["8", "50%", "25%"]
    assert "are empty" not in shown
