"""Weights on a node: which order an agent believes, and what is fetched before a replica needs it."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from longboat.cluster.preflight.checks import PreflightRequest, inspect_node, options_in_preflight
from longboat.cluster.preflight.on_nodes import _TIMEOUT_S
from longboat.cluster.protocol.messages import WeightsOrder
from longboat.cluster.weights import member as member_module
from longboat.cluster.weights.here import hold_weights, write_order
from longboat.cluster.weights.member import WeightsMember
from longboat.cluster.weights.prewarm import FIRST_RETRY_S, Prewarm
from longboat.core.errors import ClusterError, TransferError
from longboat.spec.types.weights import WeightsSpec
from longboat.weights.fetch.node_weights import HeldWeights, NodeWeights
from longboat.weights.pieces.rate import Progress
from longboat.weights.store.store import Store
from weights.range_server import serving

TOKEN = "a token of the tests"


def order(*sources: str, trackers: tuple[str, ...] = (), **changes: object) -> WeightsOrder:
    spec = WeightsSpec().model_dump(mode="json") | changes
    return WeightsOrder(spec=spec, sources=sources, trackers=trackers, token=TOKEN)


UNWARMED = order(trackers=("127.0.0.1:9",))


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


async def test_a_home_folder_that_hangs_holds_up_no_other_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = WeightsMember(tmp_path, tmp_path, "127.0.0.1", {})
    first = await member.report(order())
    assert first is not None
    monkeypatch.setattr(member_module, "WAIT_S", 0.05)
    goes_on, looked = threading.Event(), member._sources
    monkeypatch.setattr(member, "_sources", lambda: (goes_on.wait(30.0), ("s3://new",))[1])
    assert await member.report(order()) == first, "as it was reported last"
    assert await member.report(order()) == first
    goes_on.set()
    monkeypatch.setattr(member_module, "WAIT_S", 30.0)
    last = await member.report(order())
    assert last is not None
    assert last.sources == ("s3://new",)
    monkeypatch.setattr(member, "_sources", looked)
    await member.end()
    assert not (tmp_path / "weights.json").exists()


async def test_an_end_during_a_report_leaves_neither_an_order_nor_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = WeightsMember(tmp_path, tmp_path, "127.0.0.1", {})
    monkeypatch.setattr(member_module, "WAIT_S", 30.0)
    joining, goes_on = threading.Event(), threading.Event()

    def join(*_: object) -> None:
        joining.set()
        goes_on.wait(30.0)

    monkeypatch.setattr(member, "_joined", join)
    report = asyncio.create_task(member.report(order()))
    await asyncio.to_thread(joining.wait, 30.0)
    await member.end()
    goes_on.set()
    assert await report is None
    assert not (tmp_path / "weights.json").exists()


async def test_an_end_that_fails_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unretrieved: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unretrieved.append(context))
    member = WeightsMember(tmp_path, tmp_path, "127.0.0.1", {})
    (tmp_path / "weights.json").mkdir()  # it cannot be removed as a file
    await member.end()
    gc.collect()
    await asyncio.sleep(0)
    assert not unretrieved
    assert caplog.text.count("did not end well") == 1


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


def test_a_fetch_of_weights_that_are_no_longer_wanted_ends_and_others_do_not() -> None:
    tries: list[str] = []
    ended: list[str] = []

    def hold(source: str, on_progress: Callable[[Progress], None]) -> HeldWeights:
        tries.append(source)
        try:
            for _ in range(3000):
                on_progress(Progress(source=source, total_bytes=1, have_bytes=0))
                time.sleep(0.02)
            raise TransferError("the fetch was not ended")
        finally:
            ended.append(source)

    prewarm, now_s = Prewarm(hold), time.monotonic()
    prewarm.want(["a", "b", "c"], now_s)
    until(lambda: tries == ["a"])
    prewarm.want(["a", "c"], now_s)
    assert not ended
    prewarm.want(["c"], now_s)
    until(lambda: tries == ["a", "c"])  # "b" is not begun
    prewarm.want([], now_s)
    until(lambda: not prewarm.is_busy)
    assert ended == ["a", "c"]
    prewarm.want(["c"], now_s)  # it comes back, and needs no patience
    until(lambda: tries == ["a", "c", "c"])
    prewarm.want([], now_s)
    until(lambda: not prewarm.is_busy)


@pytest.mark.parametrize("next_order", [None, order("http://127.0.0.1:9/other", trackers=("127.0.0.1:9",)), UNWARMED])
async def test_a_model_that_left_the_fleet_is_not_fetched_to_its_end(
    tmp_path: Path, next_order: WeightsOrder | None
) -> None:
    member = WeightsMember(tmp_path, tmp_path, "127.0.0.1", {})
    joined = await member.follow(order())
    assert joined is not None
    with serving() as server:
        server.put("model.safetensors", bytes(48 << 20))
        server.before = lambda name: time.sleep(1.0)
        changes = {"prewarm": [{"node": "127.0.0.1"}], "limits": {"requests": 1}}
        await member.follow(order(server.source, trackers=(joined.member,), **changes))
        await asyncio.to_thread(until, lambda: Store(tmp_path).list())
        (key,) = (stored.key for stored in Store(tmp_path).list())
        await member.follow(next_order)
        lock = Store(tmp_path).fetch_lock
        await asyncio.to_thread(until, lambda: (taken := lock(key)) and not taken.release())
        assert [stored.is_whole for stored in Store(tmp_path).list()] == [False]
    await member.stop()


async def test_a_node_of_a_fleet_without_fetched_models_leaves_the_swarm(tmp_path: Path) -> None:
    member = WeightsMember(tmp_path, tmp_path, "127.0.0.1", {})
    report = await member.follow(order())
    assert report is not None
    host, _, port = report.member.partition(":")
    socket.create_connection((host, int(port)), 10).close()
    assert await member.follow(None) is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 10)
    again = await member.follow(order())
    assert again is not None
    await member.stop()


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


def test_a_node_asks_for_all_its_sources_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    config = '{"model_type": "llama"}'
    together = threading.Barrier(3)

    def meet(name: str) -> None:
        together.wait(4)

    with serving() as server:
        for name in ("a", "b", "c"):
            server.put(f"{name}/config.json", config.encode())
        server.before = meet
        sources = tuple(f"{server.source}/{name}" for name in ("a", "b", "c"))
        found = inspect_node(PreflightRequest(paths=(), engines={}, gateway=None, fetched=sources)).paths
    assert {source: finding.config for source, finding in found.items()} == dict.fromkeys(sources, config)


def test_a_storage_that_hangs_leaves_time_for_the_weights_that_a_node_has() -> None:
    options = options_in_preflight(WeightsSpec())
    tries = options.retries + 1
    assert tries * options.stall_s < _TIMEOUT_S / 2
    assert tries * options.request_s <= _TIMEOUT_S / 2
