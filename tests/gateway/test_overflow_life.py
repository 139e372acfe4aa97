"""Overflow and external models in the life of a request, without a loop."""

from __future__ import annotations

import pytest
from test_lifecycle import EMPTY, NOW_S, Engine, Fleet, Walk

from longboat.core.policy import ResumePolicy, TenantPolicy
from longboat.gateway.api.apis import APIS
from longboat.gateway.calls.model_request import Call
from longboat.gateway.exchange.life import (
    GRANTED,
    MOVE,
    NOTHING,
    OFFER,
    OVERFLOW,
    RELAY,
    START,
    STAY,
    TICK,
    FallBack,
    Head,
    Leave,
    Lost,
    NoRoom,
    Park,
    Refuse,
    Send,
)
from longboat.gateway.http import error_responses
from longboat.gateway.http.request import Request
from longboat.routing.route_rules import Overflowing

FULL = NoRoom(error_responses.waited_too_long("m", 60))
TWO = {"m": (Engine("a"),), "out": (Engine("x"),)}


def walk(*, fleet: Fleet | None = None, after_s: float = 5.0) -> Walk:
    return Walk(fleet or Fleet(pools=dict(TWO)), pools=("m", "out"), overflow=Overflowing(1, 1, after_s), began_s=NOW_S)


def test_request_for_one_replica_only_does_not_overflow() -> None:
    call = Call(
        Request(),
        APIS[b"/v1/responses"],
        path=b"/v1/responses",
        tenant=TenantPolicy(name="a"),
        pools=("m", "out"),
        requested="m",
    )
    call.overflow = Overflowing(1, 1, 5.0)
    call.pin(model="m", key="a")
    assert call.overflow is None


def test_queued_request_moves_only_after_its_time_and_only_where_there_is_room() -> None:
    request = walk()
    assert request.go(START) is OFFER
    assert request.go(TICK, after_s=4.9) is NOTHING
    assert request.go(TICK, after_s=0.2) is OVERFLOW
    assert request.go(TICK) is OVERFLOW  # there was no room: it still waits, and asks again
    action = request.go(MOVE)
    assert isinstance(action, FallBack)
    assert action.at_pool == 1
    assert request.go(START) is OFFER
    assert isinstance(request.go(GRANTED), Send)


def test_slot_that_comes_meanwhile_is_taken() -> None:
    request = walk()
    request.go(START)
    assert request.go(TICK, after_s=6.0) is OVERFLOW
    action = request.go(GRANTED)
    assert isinstance(action, Send)
    assert action.engine.key == "a"
    assert request.go(TICK, after_s=6.0) is NOTHING


def test_full_model_overflows_at_once_or_refuses() -> None:
    request = walk(after_s=600.0)
    request.go(START)
    assert request.go(FULL) is OVERFLOW
    action = request.go(STAY)
    assert isinstance(action, Refuse)
    assert action.refusal.status == 429
    moved = walk(after_s=600.0)
    moved.go(START, FULL)
    assert isinstance(moved.go(MOVE), FallBack)


def test_parked_request_overflows_after_its_time() -> None:
    request = walk(fleet=Fleet(pools={"m": (), "out": (Engine("x"),)}, policy=ResumePolicy(wait_s=60)))
    request.go(START)
    assert isinstance(request.go(EMPTY), Park)
    assert request.go(TICK, after_s=1.0) is NOTHING
    assert request.go(TICK, after_s=5.0) is OVERFLOW


def test_overflow_that_fails_waits_for_its_own_model_again_and_moves_no_more() -> None:
    request = walk()
    request.go(START)
    request.go(TICK, MOVE, after_s=6.0)
    request.go(START, GRANTED)
    action = request.go(Lost("unreachable", "it is down", "x"))
    assert isinstance(action, FallBack)
    assert action.at_pool == 0
    assert request.go(START) is OFFER
    assert request.go(TICK, after_s=60.0) is NOTHING


def test_overflow_is_no_fallback() -> None:
    request = walk()
    request.go(START, GRANTED)
    action = request.go(Lost("unreachable", "it is down", "a"))
    assert not isinstance(action, FallBack)


@pytest.mark.parametrize("status", [401, 402, 403, 408, 429, 500, 503])
def test_external_error_goes_elsewhere_where_there_is_another_model(status: int) -> None:
    request = Walk(Fleet(pools=dict(TWO)), pools=("out", "m"))
    request.go(START, GRANTED)
    action = request.go(Head(status, fits=True, turned_away_by="x"))
    assert isinstance(action, Leave)
    assert isinstance(request.go(Lost("declined", "it answered", "x")), FallBack)


@pytest.mark.parametrize("status", [401, 429, 500])
def test_external_error_is_passed_on_where_there_is_none(status: int) -> None:
    request = Walk(Fleet(pools=dict(TWO)), pools=("out",))
    request.go(START, GRANTED)
    assert request.go(Head(status, fits=True, turned_away_by="x")) is RELAY


def test_second_address_is_asked_before_another_model() -> None:
    request = Walk(Fleet(pools={"out": (Engine("x"), Engine("y")), "m": (Engine("a"),)}), pools=("out", "m"))
    request.go(START, GRANTED)
    request.go(Head(500, fits=True, turned_away_by="x"))
    action = request.go(Lost("declined", "it answered 500", "x"))
    assert isinstance(action, Send)
    assert action.engine.key == "y"
