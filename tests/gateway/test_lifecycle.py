"""The life of a request, without a loop: each rule by itself, and what must hold whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.core.policy import ResumePolicy
from longboat.core.states import ResumeLevel
from longboat.gateway.exchange.life import (
    ASK_TURN,
    CLIENT_GONE,
    COMPLETE,
    CONTENT,
    FINISH,
    GRANTED,
    JUDGE,
    LEFT,
    NOTHING,
    OFFER,
    PREEMPTED,
    RELAY,
    START,
    STREAM,
    TELL,
    TICK,
    TURN,
    Action,
    Ended,
    Event,
    Failed,
    FallBack,
    Has,
    Head,
    Judged,
    Leave,
    Life,
    Lost,
    NoRoom,
    Park,
    Pause,
    Phase,
    Refuse,
    Send,
    Sleep,
    Terms,
    View,
    begin,
)  # fmt: skip
from longboat.gateway.exchange.lifecycle import step
from longboat.gateway.http import error_responses
from longboat.routing.adapters import pick_with_adapter
from longboat.routing.pick import pick

EMPTY = NoRoom(error_responses.no_ready_endpoint("m"))
FULL = NoRoom(error_responses.waited_too_long("m", 60))
NOW_S = 1000.0


@dataclass(frozen=True)
class Engine:
    key: str
    ready: bool = True
    drains: bool = False
    suspect: bool = False
    outstanding: int = 0
    capacity: int | None = None
    resume: ResumeLevel = ResumeLevel.CARRIED
    revision: str = "one"
    adapters: tuple[str, ...] = ()  # that it holds

    def revision_of(self, model: str) -> str:
        return self.revision

    def holds(self, adapter: str) -> bool:
        return adapter in self.adapters


class Fleet(View):
    """What the rules see. Equal engines take turns in the order of their keys."""

    def __init__(
        self, pools: dict[str, tuple[Engine, ...]] | None = None, policy: ResumePolicy | None = None, *,
        poison: bool = False, ready_at_s: float = NOW_S, sleep: Sleep | None = None,
    ) -> None:  # fmt: skip
        self.pools = {"m": (Engine("a"), Engine("b"))} if pools is None else pools
        self.rules = policy or ResumePolicy()
        self.poison = poison
        self.ready_at_s = ready_at_s
        self.turn = -1
        self.sleep = sleep

    @property
    def policy(self) -> ResumePolicy:
        return self.rules

    def sleep_of(self, model: str) -> Sleep | None:
        return self.sleep

    def endpoints(self, model: str) -> tuple[Engine, ...] | None:
        return self.pools.get(model)

    def ready_s(self, model: str) -> float:
        return self.ready_at_s

    def choose(
        self, model: str, engines: Sequence[Any], tried: frozenset[str], *, adapter: str, overfull: bool
    ) -> tuple[Any, str] | None:
        self.turn += 1
        if adapter:
            return pick_with_adapter(engines, adapter, turn=self.turn, tried=tried, overfull=overfull)
        engine = pick(engines, turn=self.turn, tried=tried, overfull=overfull)
        return None if engine is None else (engine, "")

    def is_poison(self) -> bool:
        return self.poison


class Walk:
    """One request that is led through events."""

    def __init__(self, fleet: Fleet | None = None, **terms: Any) -> None:
        self.fleet = fleet or Fleet()
        self.life: Life = begin(Terms(terms.pop("pools", ("m",)), **terms))
        self.now_s = NOW_S
        self.action: Action = NOTHING

    def go(self, *events: Event, after_s: float = 0.0) -> Action:
        """The action that the last of these events leads to."""
        self.now_s += after_s
        for event in events:
            self.life, self.action = step(self.life, event, self.fleet, self.now_s)
        return self.action

    def enter(self, event: Event = START) -> Action:
        """The action where the pool has no engine: it says so when it is asked for a slot."""
        assert self.go(event) is OFFER
        return self.go(EMPTY)

    def asked(self) -> Walk:
        """Led to an engine that has the request."""
        self.go(START, GRANTED)
        assert isinstance(self.action, Send)
        return self

    def streaming(self) -> Walk:
        self.asked().go(Head(200, fits=True), CONTENT)
        return self

    def lost(self, reason: str = "lost", **changes: Any) -> Action:
        """The engine that was asked last is lost."""
        key = changes.pop("key", "a")
        return self.go(Lost(reason, "it died", key, **changes))

    def broken_off(self, has: Has = Has.BEGINNING) -> Action:
        return self.lost(has=has, revision="one")


def code_of(action: Action) -> str:
    assert isinstance(action, Refuse), action.name
    return action.refusal.code


def engine_of(action: Action) -> str:
    assert isinstance(action, Send), action.name
    return action.engine.key


# the ordinary way


def test_ordinary_request_asks_for_a_slot_an_engine_and_ends() -> None:
    walk = Walk()
    assert walk.go(START) is OFFER and walk.life.phase is Phase.QUEUED
    assert engine_of(walk.go(GRANTED)) == "a" and walk.life.phase is Phase.ASKING
    assert walk.go(Head(200, fits=True)) is RELAY
    assert walk.go(CONTENT) is STREAM and walk.life.phase is Phase.STREAMING
    assert walk.go(COMPLETE) is FINISH and walk.life.phase is Phase.ENDED


def test_request_that_costs_no_work_needs_no_slot() -> None:
    assert engine_of(Walk(needs_slot=False).go(START)) == "a"


# the rules, in their order


def preempted() -> Walk:
    walk = Walk().streaming()
    paused = walk.lost(PREEMPTED, has=Has.BEGINNING, revision="one")
    assert isinstance(paused, Pause)
    return walk


def test_stream_whose_slot_another_gets_waits_for_a_slot_and_goes_on_at_any_engine() -> None:
    walk = preempted()
    assert (walk.life.phase, walk.life.has_slot) == (Phase.QUEUED, False)
    assert walk.go(TICK, after_s=10_000.0) is NOTHING
    assert walk.go(GRANTED) is ASK_TURN
    assert engine_of(walk.go(TURN)) in ("a", "b")
    assert walk.go(Head(200, fits=True), CONTENT) is STREAM


def test_paused_stream_whose_revision_leaves_ends_at_its_last_replica() -> None:
    walk = preempted()
    walk.fleet.pools = {"m": (Engine("a", ready=False, drains=True), Engine("c", revision="two"))}
    assert engine_of(walk.go(TICK)) == "a"


def test_paused_stream_keeps_its_place_in_the_queue_while_its_engine_is_lost() -> None:
    walk = preempted()
    walk.fleet.pools = {"m": (Engine("a", ready=False), Engine("c", revision="two"))}
    assert walk.go(TICK, after_s=60.0) is NOTHING and walk.life.phase is Phase.QUEUED
    walk.fleet.pools = {"m": (Engine("a"),)}
    assert walk.go(TICK) is NOTHING
    assert walk.go(GRANTED) is ASK_TURN and engine_of(walk.go(TURN)) == "a"


def test_paused_stream_ends_at_the_replica_that_leaves_though_a_lost_one_may_come_back() -> None:
    walk = preempted()
    walk.fleet.pools = {"m": (Engine("a", ready=False), Engine("b", ready=False, drains=True))}
    assert engine_of(walk.go(TICK)) == "b"


def test_paused_stream_without_a_replica_of_its_revision_waits_for_one_and_then_for_a_slot() -> None:
    walk = preempted()
    walk.fleet.pools = {"m": (Engine("c", revision="two"),)}
    assert isinstance(walk.go(TICK), Park)
    walk.fleet.pools = {"m": (Engine("d"),)}
    assert isinstance(walk.go(TICK), Pause)
    assert walk.go(GRANTED) is ASK_TURN and engine_of(walk.go(TURN)) == "d"


def test_paused_stream_whose_model_leaves_ends_with_an_error() -> None:
    walk = preempted()
    walk.fleet.pools = {}
    assert code_of(walk.go(EMPTY)) == "engine_lost"


@pytest.mark.parametrize("events", [(START,), (START, GRANTED), (START, GRANTED, Head(200, fits=True), CONTENT)])
def test_client_that_leaves_ends_it(events: tuple[Event, ...]) -> None:
    walk = Walk()
    walk.go(*events)
    assert walk.go(CLIENT_GONE) is LEFT


def test_what_no_engine_can_help_is_answered_as_it_is() -> None:
    assert code_of(Walk().asked().go(Failed(error_responses.internal()))) == "gateway_failed"


def test_engine_that_dies_behind_the_end_takes_nothing_away() -> None:
    assert Walk().streaming().broken_off(Has.ALL) is FINISH


def test_error_of_an_engine_is_the_answer_after_three() -> None:
    walk = Walk()
    walk.asked()
    for _ in range(2):
        assert isinstance(walk.go(Head(500, fits=True)), Leave)
        walk.lost("error")
        assert walk.life.phase is Phase.ASKING
    assert walk.go(Head(500, fits=True)) is RELAY


@pytest.mark.parametrize("status", [200, 400, 429])
def test_error_behind_the_head_of_a_stream_is_told_and_asked_for_once(status: int) -> None:
    walk = Walk()
    assert walk.asked().go(Head(status, fits=False)) is TELL
    refused = walk.go(Failed(error_responses.internal()))
    assert isinstance(refused, Refuse)


def test_third_error_of_an_engine_behind_the_head_of_a_stream_is_told() -> None:
    walk = Walk()
    walk.asked()
    for _ in range(2):
        assert isinstance(walk.go(Head(500, fits=False)), Leave)
        walk.lost("error")
    assert walk.go(Head(500, fits=False)) is TELL


@pytest.mark.parametrize("status", [200, 400, 404])
def test_answer_that_is_no_error_of_the_engine_is_passed_on(status: int) -> None:
    assert Walk().asked().go(Head(status, fits=True)) is RELAY


def test_answer_that_cannot_follow_what_the_client_has_is_left() -> None:
    walk = Walk()
    walk.streaming().broken_off()
    walk.go(TURN)
    refused = walk.go(Head(409, fits=False))
    assert isinstance(refused, Leave) and refused.cause == "refused"


@pytest.mark.parametrize("events", [(START,), (START, GRANTED)])
def test_deadline_ends_what_has_no_first_byte(events: tuple[Event, ...]) -> None:
    walk = Walk(deadline_s=NOW_S + 1)
    walk.go(*events)
    assert walk.go(TICK) is NOTHING
    expired = walk.go(TICK, after_s=1.0)
    assert code_of(expired) == "deadline_passed"
    assert isinstance(expired, Refuse) and expired.outcome == "expired"


def test_deadline_does_not_end_an_answer_that_has_begun() -> None:
    walk = Walk(deadline_s=NOW_S + 1).streaming()
    assert walk.go(TICK, after_s=5.0) is NOTHING


def test_wait_ends_with_503_and_a_time_to_come_back() -> None:
    walk = Walk(Fleet({"m": ()}), streams=True)
    assert isinstance(walk.enter(), Park)
    assert walk.go(TICK, after_s=299.0) is NOTHING
    refused = walk.go(TICK, after_s=2.0)
    assert isinstance(refused, Refuse)
    assert (refused.refusal.status, refused.refusal.retry_after_s) == (503, 5)


def test_request_whose_client_can_be_told_nothing_waits_less() -> None:
    """Its only engine died: it gets an answer before its client gives up by itself."""
    walk = Walk(Fleet({"m": (Engine("a"),)}))
    walk.asked()
    assert isinstance(walk.lost(), Park)
    walk.fleet.pools = {"m": ()}
    assert walk.go(TICK, after_s=49.0) is NOTHING
    refused = walk.go(TICK, after_s=2.0)
    assert isinstance(refused, Refuse)
    assert (refused.refusal.status, refused.refusal.retry_after_s) == (503, 5)
    assert "it died" in refused.refusal.message


def test_its_own_deadline_says_how_long_a_request_waits() -> None:
    walk = Walk(Fleet({"m": ()}), deadline_s=NOW_S + 200)
    assert isinstance(walk.enter(), Park)
    assert walk.go(TICK, after_s=199.0) is NOTHING
    assert code_of(walk.go(TICK, after_s=2.0)) == "deadline_passed"


def test_model_without_an_engine_for_long_is_refused_at_once() -> None:
    fleet = Fleet({"m": ()}, ready_at_s=NOW_S - 60)
    assert code_of(Walk(fleet).enter()) == "model_not_ready"
    assert isinstance(Walk(fleet, streams=True).enter(), Park)
    fleet.ready_at_s = NOW_S - 400
    assert code_of(Walk(fleet, streams=True).enter()) == "model_not_ready"


def asleep(ready_in_s: float | None = 5.0, *, paused: bool = False, has_room: bool = True) -> Fleet:
    sleep = Sleep(paused, ready_in_s, has_room, 300.0)
    return Fleet({"m": ()}, ready_at_s=NOW_S - 1e6, sleep=sleep)


@pytest.mark.parametrize("ready_in_s", [None, 0.0, 40.0])
def test_request_for_a_model_that_sleeps_waits_until_it_is_ready(ready_in_s: float | None) -> None:
    walk = Walk(asleep(ready_in_s))
    assert isinstance(walk.enter(), Park)
    walk.fleet.pools, walk.fleet.sleep = {"m": (Engine("a"),)}, None
    assert walk.go(TICK, after_s=30.0) is OFFER
    assert engine_of(walk.go(GRANTED)) == "a"


def test_request_that_cannot_wait_for_a_start_is_refused_with_its_seconds() -> None:
    for walk in (Walk(asleep(70.0)), Walk(asleep(70.0), deadline_s=NOW_S + 60), Walk(asleep(400.0), streams=True)):
        refused = walk.enter()
        assert code_of(refused) == "model_starting"
        assert isinstance(refused, Refuse) and refused.refusal.retry_after_s in (70, 400)
    assert isinstance(Walk(asleep(70.0), streams=True).enter(), Park)
    assert isinstance(Walk(asleep(70.0), deadline_s=NOW_S + 80).enter(), Park)


def test_only_a_bounded_number_waits_for_a_start() -> None:
    assert code_of(Walk(asleep(has_room=False), streams=True).enter()) == "model_starting"


def test_paused_model_is_refused_and_those_that_wait_learn_of_it() -> None:
    assert code_of(Walk(asleep(paused=True), streams=True).enter()) == "model_paused"
    walk = Walk(asleep(), streams=True)
    assert isinstance(walk.enter(), Park)
    walk.fleet.sleep = Sleep(True, None, True, 300.0)
    assert code_of(walk.go(TICK, after_s=1.0)) == "model_paused"


def test_start_that_takes_too_long_ends_the_wait() -> None:
    walk = Walk(asleep(None), streams=True)
    assert isinstance(walk.enter(), Park)
    assert walk.go(TICK, after_s=299.0) is NOTHING
    assert code_of(walk.go(TICK, after_s=2.0)) == "model_not_ready"


def test_model_that_sleeps_has_fallbacks_first() -> None:
    fleet = asleep()
    fleet.pools["n"] = (Engine("a"),)
    assert isinstance(Walk(fleet, pools=("m", "n")).enter(), FallBack)


def test_time_and_news_change_nothing_while_an_engine_works() -> None:
    for walk in (Walk().asked(), Walk().streaming()):
        assert walk.go(TICK, TICK, after_s=100.0) is NOTHING
        assert walk.go(TURN) is NOTHING


def test_suspected_request_waits_until_its_engine_was_looked_at() -> None:
    walk = Walk().asked()
    assert walk.lost(suspect=True) is JUDGE and walk.life.phase is Phase.JUDGING
    assert walk.go(TICK) is NOTHING
    assert engine_of(walk.go(Judged("a", dead=True))) == "b"


def test_request_on_a_connection_used_before_waits_as_well_and_may_go_to_the_same_engine() -> None:
    walk = Walk().asked()
    assert walk.lost(suspect=True, stale=True) is JUDGE
    assert walk.go(Judged("a", dead=False)) is not JUDGE
    assert not walk.life.past.tried


def test_poison_is_sent_to_no_engine() -> None:
    walk = Walk().asked()
    walk.fleet.poison = True
    assert code_of(walk.lost()) == "poison_request"
    assert code_of(Walk(Fleet(poison=True)).go(START, GRANTED)) == "poison_request"


def test_answer_that_no_engine_can_go_on_with_ends() -> None:
    walk = Walk().streaming()
    walk.fleet.poison = True  # its body is gone by now: nothing can be looked up by it
    assert code_of(walk.broken_off(Has.STUMP)) == "engine_lost"
    assert code_of(Walk().streaming().broken_off(Has.STUMP)) == "engine_lost"
    assert code_of(Walk(revision="one").asked().lost("gone")) == "resume_gone"


def test_answer_goes_on_at_an_engine_of_the_same_revision_when_it_is_its_turn() -> None:
    walk = Walk(Fleet({"m": (Engine("a"), Engine("x", revision="two"), Engine("b"))})).streaming()
    assert walk.broken_off() is ASK_TURN and walk.life.phase is Phase.RESUMING
    assert walk.go(TICK) is NOTHING
    assert engine_of(walk.go(TURN)) == "b"
    assert walk.go(Head(200, fits=True), CONTENT) is STREAM
    assert not walk.life.past.tried


def test_answer_waits_for_an_engine_of_its_revision_and_keeps_its_slot() -> None:
    walk = Walk(Fleet({"m": (Engine("a"), Engine("x", revision="two"))})).streaming()
    walk.broken_off()
    assert isinstance(walk.go(TURN), Park) and walk.life.has_slot
    walk.fleet.pools["m"] = (Engine("x", revision="two"),)
    assert walk.go(TICK) is NOTHING
    walk.fleet.pools["m"] = (Engine("c"),)
    assert walk.go(TICK) is ASK_TURN
    assert engine_of(walk.go(TURN)) == "c"


def test_answer_whose_model_left_the_fleet_ends() -> None:
    walk = Walk().streaming()
    walk.fleet.pools = {}
    assert code_of(walk.broken_off()) == "engine_lost"


def test_request_is_tried_at_every_engine_once() -> None:
    walk = Walk(Fleet(policy=ResumePolicy(wait_s=0))).asked()
    again = walk.lost()
    assert engine_of(again) == "b" and again.reason
    assert code_of(walk.lost(key="b")) == "engine_lost"


def test_engine_that_can_answer_if_asked_otherwise_is_asked_again() -> None:
    walk = Walk(Fleet({"m": (Engine("a"),)})).asked()
    assert engine_of(walk.lost("again")) == "a"


def test_full_model_and_dead_model_fall_back() -> None:
    for event in (FULL, GRANTED):
        walk = Walk(Fleet({"m": (Engine("a"),), "n": (Engine("z"),)}), pools=("m", "n"))
        walk.go(START)
        action = walk.go(event) if event is FULL else walk.asked().lost()
        assert isinstance(action, FallBack) and action.at_pool == 1 and action.reason
        assert not walk.life.has_slot
        assert walk.go(START) is OFFER and walk.life.model == "n"
        assert engine_of(walk.go(GRANTED)) == "z"


def test_request_that_wakes_begins_with_its_first_choice() -> None:
    walk = Walk(Fleet({"m": (), "n": ()}), pools=("m", "n"))
    assert isinstance(walk.enter(), FallBack)
    assert isinstance(walk.enter(START), Park)
    assert walk.life.model == "m"
    walk.fleet.pools["n"] = (Engine("z"),)
    assert isinstance(walk.enter(TICK), FallBack)
    assert walk.go(START) is OFFER


def test_pinned_request_goes_to_its_engine_and_no_other() -> None:
    walk = Walk(pinned="b")
    walk.go(START)
    assert engine_of(walk.go(GRANTED)) == "b"
    assert code_of(walk.lost(key="b")) == "engine_lost"
    assert code_of(Walk(pinned="gone").go(START)) == "response_not_found"


def test_full_model_is_refused_without_waiting() -> None:
    walk = Walk()
    walk.go(START)
    assert code_of(walk.go(FULL)) == "queue_timeout"


# the rest of an answer that another gateway began


def test_rest_waits_for_an_engine_whose_proof_is_late() -> None:
    late = Engine("a", resume=ResumeLevel.NONE)
    walk = Walk(Fleet({"m": (late,)}), revision="one", streams=True)
    assert isinstance(walk.go(START), Park)
    assert walk.go(TICK) is NOTHING
    walk.fleet.pools["m"] = (Engine("a"),)
    assert walk.go(TICK) is OFFER
    assert engine_of(walk.go(GRANTED)) == "a"


def test_rest_waits_while_a_revision_is_not_known() -> None:
    unknown = (Engine("a", revision="two"), Engine("b", revision="", resume=ResumeLevel.NONE))
    assert isinstance(Walk(Fleet({"m": unknown}), revision="one", streams=True).go(START), Park)


def test_rest_is_refused_where_every_revision_is_another() -> None:
    others = (Engine("a", revision="two"), Engine("b", revision="three", ready=False))
    walk = Walk(Fleet({"m": others}), revision="one", streams=True)
    refused = walk.go(START)
    assert code_of(refused) == "resume_gone" and "another revision" in refused.reason


def test_rest_that_nobody_came_for_says_so() -> None:
    walk = Walk(Fleet({"m": (Engine("a", resume=ResumeLevel.NONE),)}), revision="one", streams=True)
    walk.go(START)
    refused = walk.go(TICK, after_s=301.0)
    assert code_of(refused) == "model_not_ready" and "can continue this response" in refused.reason


# whatever happens

STATES = st.sampled_from(((True, False), (False, True), (False, False)))  # ready, drains
ENGINES = st.builds(
    lambda state, **others: Engine(ready=state[0], drains=state[1], **others),
    STATES,
    key=st.sampled_from("abcd"),
    suspect=st.booleans(),
    resume=st.sampled_from((ResumeLevel.NONE, ResumeLevel.CARRIED)),
    revision=st.sampled_from(("", "one", "two")),
)
POOL = st.lists(ENGINES, unique_by=lambda e: e.key, max_size=4).map(tuple)
REASONS = st.sampled_from(
    ("lost", "silent", "error", "refused", "again", "crossed", "gone", "unreachable", "heartbeat")
)


class Stand:
    """Carries out what a life decides, as an exchange does, in a fleet where anything may happen."""

    def __init__(self, data: Any) -> None:
        draw = self.draw = data.draw
        policy = ResumePolicy(enabled=draw(st.booleans()), wait_s=draw(st.sampled_from((0.0, 30.0))))
        self.fleet = Fleet({"m": draw(POOL), "n": draw(POOL)}, policy=policy)
        revision = draw(st.none() | st.just("one"))
        pools = ("m",) if revision is not None else draw(st.sampled_from((("m",), ("m", "n"))))
        deadline_s = draw(st.none() | st.just(NOW_S + 20))
        pinned = draw(st.sampled_from(("", "", "", "a"))) if revision is None else ""
        self.walk = Walk(
            self.fleet, pools=pools, deadline_s=deadline_s, revision=revision, streams=draw(st.booleans()),
            needs_slot=draw(st.integers(0, 9)) > 0, pinned=pinned,
        )  # fmt: skip
        self.slots = self.num_ends = 0
        self.engine: Engine | None = None
        self.begun_by: str | None = revision
        self.has_content = self.is_queued = self.was_poison = self.is_journaled = False

    def tell(self, event: Event) -> None:
        """One event, and all that follows from it at once."""
        ended = self.walk.life.phase is Phase.ENDED
        if isinstance(event, Lost):
            self.engine = None
        action = self.walk.go(event)
        assert not ended or action is NOTHING
        if action is OFFER:
            assert self.slots == 0
            self.is_queued = True
            if not any(e.ready for e in self.fleet.pools.get(self.walk.life.model, ())):
                self.is_queued = False
                self.tell(EMPTY)
            elif self.draw(st.booleans()):
                self.granted()
        elif isinstance(action, Send):
            self.sent(action)
        elif isinstance(action, FallBack):
            self.slots = 0
            self.tell(START)
        elif isinstance(action, Park):
            self.slots = self.slots if self.has_content else 0
            self.is_queued = False
        elif isinstance(action, Pause):
            assert self.has_content and self.engine is None
            self.slots, self.is_queued = 0, True
        elif isinstance(action, Leave):
            self.lose(action.cause)
        elif action is ASK_TURN and self.draw(st.booleans()):
            self.tell(TURN)
        elif isinstance(action, Ended):
            self.num_ends += 1
            self.slots, self.engine, self.is_queued = 0, None, False

    def granted(self) -> None:
        self.is_queued = False
        self.slots = 1
        self.tell(GRANTED)

    def sent(self, action: Send) -> None:
        assert self.engine is None and not self.was_poison
        engine = action.engine
        assert isinstance(engine, Engine)
        is_last_of_its_revision = self.has_content and engine.drains and "leaves" in action.reason
        assert is_last_of_its_revision or engine.ready
        assert self.slots == 1 or is_last_of_its_revision or not self.walk.life.terms.needs_slot
        self.is_queued = False
        assert engine.key == (self.walk.life.terms.pinned or engine.key)
        if self.has_content or self.walk.life.terms.revision is not None:
            assert engine.resume is not ResumeLevel.NONE and engine.revision == self.begun_by
        self.engine = engine

    def lose(self, reason: str) -> None:
        assert self.engine is not None
        has = Has.NOTHING
        if self.has_content:
            goes_on = self.is_journaled and self.draw(st.integers(0, 3)) > 0
            has = Has.BEGINNING if goes_on else Has.STUMP
        key, stale, suspect = self.engine.key, self.draw(st.booleans()), self.draw(st.booleans())
        self.tell(Lost(reason, "why", key, has=has, revision=self.begun_by, stale=stale, suspect=suspect))

    def happen(self) -> None:
        """One thing that can happen now."""
        kind, life = self.draw(st.integers(0, 9)), self.walk.life
        if kind == 0:
            self.fleet.pools = {"m": self.draw(POOL), "n": self.draw(POOL)}
            self.tell(TICK)
        elif kind == 1:
            self.walk.now_s += self.draw(st.sampled_from((0.25, 5.0, 40.0)))
            self.tell(TICK)
        elif kind == 2 and self.draw(st.integers(0, 3)) == 0:
            self.was_poison = self.fleet.poison = True
        elif kind == 3 and self.draw(st.integers(0, 5)) == 0:
            self.tell(CLIENT_GONE)
        elif self.is_queued:
            if kind < 8:
                self.granted()
            else:
                self.is_queued = False
                self.tell(FULL)
        elif life.phase is Phase.JUDGING:
            self.tell(Judged("a", dead=self.draw(st.booleans())))
        elif life.phase is Phase.RESUMING:
            self.tell(TURN)
        elif self.engine is not None:
            self.answer(kind)

    def preempt(self) -> None:
        """Another request gets the slot, as the pool decides only where the answer can go on."""
        engine, self.engine, self.slots = self.engine, None, 0
        assert engine is not None
        self.tell(Lost(PREEMPTED, "a better class", engine.key, has=Has.BEGINNING, revision=self.begun_by))
        assert self.walk.life.phase in (Phase.QUEUED, Phase.ENDED) and not self.walk.life.has_slot

    def answer(self, kind: int) -> None:
        streams = self.walk.life.phase is Phase.STREAMING and self.has_content and self.is_journaled
        if streams and self.slots and self.draw(st.integers(0, 2)) == 0:
            self.preempt()
            return
        if kind < 6:
            self.lose(self.draw(REASONS))
            return
        engine = self.engine
        assert engine is not None
        if self.walk.life.phase is Phase.ASKING:
            self.tell(Head(self.draw(st.sampled_from((200, 200, 404, 503))), fits=self.draw(st.integers(0, 4)) > 0))
            if self.walk.action is not RELAY:
                return
            if not self.has_content:
                self.begun_by = engine.revision
                is_moved = self.fleet.policy.enabled and not self.walk.life.terms.pinned
                self.is_journaled = is_moved and engine.resume is not ResumeLevel.NONE
            self.has_content = True
            self.tell(CONTENT)
        elif kind > 8:
            self.tell(COMPLETE)


@settings(max_examples=400, deadline=None)
@given(st.data(), st.integers(1, 60))
def test_every_request_ends_once_and_gives_everything_back(data: Any, num_events: int) -> None:
    stand = Stand(data)
    stand.tell(START)
    for _ in range(num_events):
        stand.happen()
    stand.fleet.pools = {}
    stand.walk.now_s += 10_000
    if stand.engine is not None:
        stand.tell(Lost("lost", "the end", stand.engine.key, has=Has.STUMP if stand.has_content else Has.NOTHING))
    if stand.is_queued:
        stand.is_queued = False
        stand.tell(FULL)
    if stand.walk.life.phase is Phase.JUDGING:
        stand.tell(Judged("a", dead=False))
    for _ in range(3):
        stand.tell(TICK)
    assert (stand.num_ends, stand.walk.life.phase) == (1, Phase.ENDED)
    assert (stand.slots, stand.walk.life.has_slot) == (0, False)
    for event in (START, GRANTED, TICK, TICK, TURN, COMPLETE, CLIENT_GONE, FULL, Head(200, fits=True)):
        assert stand.walk.go(event) is NOTHING
