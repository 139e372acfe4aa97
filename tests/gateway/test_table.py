"""Which pushed tables are taken, and how they are read."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
from gateway_lab import endpoint, table

from longboat.core.errors import UserInputError
from longboat.core.states import Asleep, EndpointTable, ResumeLevel
from longboat.core.table_changes import TableUpdate
from longboat.gateway.config import GatewayLimits
from longboat.gateway.upstreams.table import LiveTable
from longboat.gateway.upstreams.table_document import decode_update, encode_update

URL = "http://10.0.0.1:8000"


def sent_on(given: EndpointTable) -> EndpointTable:
    """Return the table as a gateway reads it."""
    return decode_update(encode_update(TableUpdate(epoch="e", number=1, table=given))).table


@pytest.mark.parametrize(
    ("epoch", "version", "taken"), [("e", 4, False), ("e", 5, True), ("e", 6, True), ("other", 1, True)]
)
def test_table_is_taken_unless_older_in_the_same_epoch(epoch: str, version: int, taken: bool) -> None:
    live = LiveTable(GatewayLimits())
    assert live.offer("e", table(version=5, models=("old",)))
    assert live.offer(epoch, table(version=version, models=("new",))) is taken
    assert live.models == (("new",) if taken else ("old",))


def test_endpoint_that_stays_keeps_its_counts_and_one_that_changed_starts_anew() -> None:
    live = LiveTable(GatewayLimits())
    live.offer("e", table(endpoint(URL, "a"), endpoint(URL, "b")))
    for upstream in live.upstreams():
        upstream.streams.update(range(7))  # type: ignore[arg-type]
    live.offer("e", table(endpoint(URL, "a", ready=False), endpoint(URL, "b", generation=2), version=2))
    assert [(u.replica, u.outstanding, u.ready) for u in live.upstreams()] == [("a", 7, False), ("b", 0, True)]


def test_routing_knows_how_many_sequences_each_engine_runs() -> None:
    live = LiveTable(GatewayLimits(max_outstanding=5))
    endpoints = (endpoint(URL, "a", capacity=8), endpoint(URL, "b", capacity=4, engine_capacity=16), endpoint(URL, "c"))
    live.offer("e", table(*endpoints))
    (pool,) = live.pools()
    assert [pool.router.load_of(u.key).sequences for u in pool.upstreams] == [8, 16, 0]
    live.offer("e", table(endpoint(URL, "a", capacity=9), version=2))
    assert [pool.router.load_of(u.key).sequences for u in pool.upstreams] == [9]


def test_model_of_an_endpoint_is_known_though_not_listed() -> None:
    live = LiveTable(GatewayLimits())
    live.offer("e", table(endpoint(URL, model="b"), models=("a",)))
    assert live.models == ("a", "b")
    assert live.endpoints("a") == ()
    assert live.endpoints("c") is None


@pytest.mark.parametrize("url", ["https://h:1", "http://h", "h:1", "http://h:x", "http://u@h:1", "ftp://h:1"])
def test_table_with_a_useless_address_changes_nothing(url: str) -> None:
    live = LiveTable(GatewayLimits())
    live.offer("e", table(endpoint(URL)))
    with pytest.raises(UserInputError, match="http://HOST:PORT"):
        live.offer("e", table(endpoint(url), version=2))
    assert live.version == 1 and live.has_ready()


def test_document_round_trips() -> None:
    given = table(endpoint(URL, "a"), endpoint(URL, "b", ready=False), version=9, models=("tiny", "other"))
    sent = TableUpdate(epoch="e", number=3, table=given)
    assert decode_update(encode_update(sent)) == sent


def test_a_replica_that_a_relay_found_unwell_does_not_drain() -> None:
    unwell, draining = endpoint(URL, "a", ready=False, unwell=True), endpoint(URL, "b", ready=False)
    live = LiveTable(GatewayLimits())
    live.offer("e", sent_on(table(unwell, draining)))
    assert [(u.replica, u.ready, u.drains) for u in live.upstreams()] == [("a", False, False), ("b", False, True)]
    live.offer("e", table(endpoint(URL, "a"), draining, version=2))
    assert [(u.replica, u.ready) for u in live.upstreams()] == [("a", True), ("b", False)]


def test_document_tells_how_an_endpoint_resumes() -> None:
    given = table(endpoint(URL, resume=ResumeLevel.CARRIED, revision="abc", beats="10.0.0.1:7001"))
    assert sent_on(given).endpoints == given.endpoints


def test_resume_level_that_is_unknown_here_counts_as_none() -> None:
    document = orjson.loads(encode_update(TableUpdate(epoch="e", number=1, table=table(endpoint(URL)))))
    document["endpoints"][0]["resume"] = "teleport"
    assert decode_update(orjson.dumps(document)).table.endpoints[0].resume is ResumeLevel.NONE


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 1},
        {"version": "1"},
        {"models": "tiny"},
        {"endpoints": [{}]},
        {"endpoints": ["x"]},
        {"endpoints": [{"model": "m", "replica": "r", "generation": "1", "url": URL}]},
        {"endpoints": [{"model": "m", "replica": "r\r\nx: y", "generation": 1, "url": URL}]},
        {"endpoints": [{"model": "m", "replica": "r", "generation": 1, "url": URL, "api_key": "a\nb"}]},
    ],
)
def test_document_with_a_wrong_value_is_refused(change: dict[str, object]) -> None:
    good = {"epoch": "e", "version": 1, "models": [], "endpoints": []}
    with pytest.raises(UserInputError):
        decode_update(orjson.dumps({**good, **change}))


def keys(live: LiveTable) -> list[str]:
    return sorted(upstream.replica for upstream in live.upstreams())


def test_a_partial_table_takes_nothing_away_but_models() -> None:
    live = LiveTable(GatewayLimits())
    live.offer("old", table(endpoint(URL, "r0"), endpoint(URL, "r1")))
    live.offer("new", dataclasses.replace(table(endpoint(URL, "r2")), partial=True))
    assert keys(live) == ["r0", "r1", "r2"]
    live.offer("new", dataclasses.replace(table(endpoint(URL, "r2", ready=False), version=2), partial=True))
    assert [u.ready for u in live.upstreams() if u.replica == "r2"] == [False]
    live.offer("new", table(endpoint(URL, "r2"), version=3))
    assert keys(live) == ["r2"]
    live.offer("newer", dataclasses.replace(table(models=("other",)), partial=True))
    assert keys(live) == []


def test_a_partial_table_lets_sleeping_models_sleep() -> None:
    asleep = {name: Asleep(cold_start_s=9.0) for name in ("tiny", "other", "left")}
    older = dataclasses.replace(table(models=("tiny", "other", "left")), asleep=asleep)
    young = dataclasses.replace(table(endpoint(URL), models=("tiny", "other")), partial=True)
    assert set(young.over(older).asleep) == {"other"}, "tiny has a replica, and another left the fleet"
    assert not dataclasses.replace(young, partial=False).over(older).asleep


class Stream:
    """An answer that can go on elsewhere."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def replica_lost(self, detail: str, reason: str) -> None:
        self.reasons.append(reason)


def test_streams_are_told_to_move_when_the_table_says_so() -> None:
    live, stream = LiveTable(GatewayLimits()), Stream()
    live.offer("e", table(endpoint(URL, ready=False)))
    live.upstreams()[0].streams.add(stream)
    live.offer("e", table(endpoint(URL, ready=False), version=2))
    assert not stream.reasons
    live.offer("e", table(dataclasses.replace(endpoint(URL, ready=False), moving=True), version=3))
    assert stream.reasons == ["moved"]


def test_streams_of_a_replica_that_is_taken_out_are_moved_however_it_ends() -> None:
    live, stream = LiveTable(GatewayLimits()), Stream()
    live.offer("e", table(dataclasses.replace(endpoint(URL, ready=False), moving=True)))
    upstream = live.upstreams()[0]
    upstream.streams.add(stream)
    upstream.mark_down("rank 0: its process has ended")
    live.offer("e", table(endpoint(URL), version=2))
    upstream.mark_down("rank 0: its process has ended")
    assert stream.reasons == ["moved", "heartbeat"]
