"""Weights on a node: which order an agent believes, and what is fetched before a replica needs it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longboat.cluster.preflight.checks import PreflightRequest, inspect_node
from longboat.cluster.protocol.messages import WeightsOrder
from longboat.cluster.weights.here import hold_weights, write_order
from longboat.cluster.weights.member import WeightsMember
from longboat.cluster.weights.prewarm import FIRST_RETRY_S, Prewarm
from longboat.core.errors import ClusterError, TransferError
from longboat.spec.types.weights import WeightsSpec
from longboat.weights.fetch.node_weights import HeldWeights, NodeWeights
from longboat.weights.pieces.rate import Progress
from weights.range_server import serving

TOKEN = "a token of the tests"


def order(**changes: object) -> WeightsOrder:
    spec = WeightsSpec().model_dump(mode="json") | changes
    return WeightsOrder(spec=spec, sources=(), trackers=(), token=TOKEN)


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_an_agent_without_an_order_fetches_nothing(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="has not written how weights are fetched") as caught:
        hold_weights("s3://bucket/model", tmp_path, tmp_path, lambda progress: None, wait_s=0.0)
    assert "daemon" in caught.value.hint


def test_an_agent_without_trackers_fetches_as_the_fleet_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "K")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S")
    with serving() as server:
        server.before = lambda name: 403
        write_order(tmp_path, order(endpoint=server.source.removesuffix("/model")), "")
        with pytest.raises(TransferError):
            hold_weights("s3://bucket/model", tmp_path, tmp_path, lambda progress: None, wait_s=0.0)
        assert server.requests


async def test_an_order_does_not_outlive_its_daemon(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    file.write_text(json.dumps({"spec": {}, "member": "x:1", "trackers": ["gone:1"], "token": "t"}))
    member = WeightsMember(tmp_path, tmp_path, "127.0.0.1", {})
    assert not file.exists()
    report = await member.follow(order())
    assert report is not None
    first = json.loads(file.read_text())
    assert first["member"] == report.member
    again = await member.follow(order(limits={"requests": 2}))
    assert again is not None
    assert again.member == report.member
    await member.follow(None)
    assert not file.exists()
    await member.follow(order())
    await member.stop()
    assert not file.exists()


async def test_a_node_that_cannot_join_tells_its_agents_to_fetch_alone(tmp_path: Path) -> None:
    member = WeightsMember(tmp_path, tmp_path, "203.0.113.1", {})
    with pytest.raises(OSError, match="assign"):
        await member.follow(order())
    assert json.loads((tmp_path / "weights.json").read_text())["trackers"] == []


def test_weights_that_cannot_be_fetched_early_are_tried_again_later() -> None:
    tries: list[str] = []

    def hold(source: str, on_progress: Callable[[Progress], None]) -> HeldWeights:
        tries.append(source)
        raise ValueError("no error of ours")

    prewarm, now_s = Prewarm(hold), time.monotonic()
    for number in range(1, 3):
        prewarm.want(["a", "b"], now_s)
        until(lambda number=number: tries == ["a", "b"] * number and not prewarm.is_busy)  # type: ignore[misc]
        prewarm.want(["a", "b"], now_s)
        assert not prewarm.is_busy
        now_s = time.monotonic() + FIRST_RETRY_S
    prewarm.want(["a", "b"], now_s)
    assert not prewarm.is_busy  # the second wait is longer
    prewarm.stop()


def test_a_storage_that_is_away_does_not_refuse_a_node_that_has_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    config = '{"model_type": "llama"}'
    with serving() as server:
        server.put("config.json", config.encode())
        request = PreflightRequest(paths=(), engines={}, gateway=None, fetched=(server.source,))
        server.before = lambda name: 401
        without = inspect_node(request).paths[server.source]
        assert "401" in without.detail
        assert "netrc" in without.hint
        server.before = lambda name: None
        NodeWeights(tmp_path / "home").hold(server.source).release()
        server.before = lambda name: 401
        found = inspect_node(request).paths[server.source]
        assert (found.exists, found.config, found.detail) == (True, config, "")
