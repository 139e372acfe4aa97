"""Streams are paused only for better classes, within their limits, and nothing is lost or counted twice by that."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.core.policy import PreemptionPolicy, QueuePolicy
from longboat.routing.queue.fair_queue import GRANTED, Queued, Rejected, Scheduler, Ticket
from longboat.routing.queue.preemption import pausable

RULES = PreemptionPolicy(wait_s=0.25, run_s=2.0, max_pauses=2)


def ticket(priority: int, at_s: float = 0.0, *, tenant: str = "", cost: int = 100) -> Ticket:
    return Ticket(tenant or f"class-{priority}", 1.0, priority, cost, at_s)


@dataclass(eq=False)
class Stream:
    """A running stream, as the gateway shows it."""

    own: Ticket
    news_s: float = 0.0
    context_tokens: int = 100
    is_able: bool = True

    @property
    def ticket(self) -> Ticket | None:
        return self.own if self.is_able else None

    def make_room(self, priority: int) -> None:
        raise NotImplementedError


def full(*priorities: int, queue: QueuePolicy | None = None) -> tuple[Scheduler, list[Ticket]]:
    """A scheduler all of whose slots are taken by these classes."""
    scheduler = Scheduler(queue or QueuePolicy(preemption=RULES))
    running = [ticket(priority, index * 1e-3) for index, priority in enumerate(priorities)]
    for each in running:
        assert scheduler.offer(each, now_s=0.0, slots=len(priorities), busy=0) is GRANTED
    return scheduler, running


def waits(scheduler: Scheduler, slots: int, priority: int, at_s: float, tenant: str = "") -> Ticket:
    new = ticket(priority, at_s, tenant=tenant)
    assert isinstance(scheduler.offer(new, now_s=at_s, slots=slots, busy=0), Queued)
    return new


# who gets a slot


def test_request_of_a_better_class_gets_a_slot_once_it_has_waited() -> None:
    scheduler, running = full(2, 2)
    new = waits(scheduler, 2, 0, 10.0)
    assert scheduler.heir(now_s=10.2, slots=2, busy=0) is None
    assert scheduler.heir(now_s=10.25, slots=2, busy=0) is new
    scheduler.pause(running[0], now_s=10.25)
    scheduler.hand_over(new, now_s=10.25)
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_paused) == (2, 1, 1)
    assert scheduler.heir(now_s=99.0, slots=2, busy=0) is None


@pytest.mark.parametrize("priority", [1, 2])
def test_no_stream_is_paused_for_its_own_class_or_a_worse_one_however_long_that_waits(priority: int) -> None:
    scheduler, _ = full(1, 1)
    waits(scheduler, 2, priority, 10.0)
    assert scheduler.heir(now_s=69.0, slots=2, busy=0) is None


def test_no_stream_is_paused_while_a_slot_is_free_or_the_rule_is_off() -> None:
    scheduler, _ = full(2, 2)
    waits(scheduler, 2, 0, 10.0)
    assert scheduler.heir(now_s=11.0, slots=3, busy=0) is None
    off = QueuePolicy(preemption=PreemptionPolicy(enabled=False))
    scheduler, _ = full(2, 2, queue=off)
    waits(scheduler, 2, 0, 10.0)
    assert scheduler.heir(now_s=11.0, slots=2, busy=0) is None


def test_no_more_streams_wait_paused_than_there_are_slots() -> None:
    scheduler, running = full(2)
    for at_s in (10.0, 20.0):
        new = waits(scheduler, 1, 0, at_s)
        heir = scheduler.heir(now_s=at_s + 1, slots=1, busy=0)
        if heir is None:
            break
        scheduler.pause(running[0], now_s=at_s + 1)
        scheduler.hand_over(new, now_s=at_s + 1)
    assert scheduler.num_paused == 1


def test_request_that_may_take_a_slot_is_not_refused_for_a_long_wait() -> None:
    """The queue knows that streams of the worse class take longer than it lets requests wait."""
    scheduler, running = full(2, 2)
    scheduler.finish(running.pop(), now_s=500.0, used_tokens=100, served=True)
    assert scheduler.offer(ticket(2, 500.0), now_s=500.0, slots=2, busy=0) is GRANTED
    assert isinstance(scheduler.offer(ticket(0, 501.0), now_s=501.0, slots=2, busy=0), Rejected)
    scheduler.can_pause = True
    assert isinstance(scheduler.offer(ticket(0, 501.0), now_s=501.0, slots=2, busy=0), Queued)


# which stream is paused


def test_worst_class_goes_first_then_who_was_paused_least_then_what_is_cheapest() -> None:
    cheap, dear = Stream(ticket(2), context_tokens=10), Stream(ticket(2), context_tokens=900)
    paused, better = Stream(ticket(2), context_tokens=1), Stream(ticket(1), context_tokens=1)
    paused.own.num_pauses = 1
    assert pausable([dear, better, paused, cheap], RULES, 10.0) == [cheap, dear, paused, better]


def test_stream_that_ran_too_short_or_was_paused_enough_or_cannot_go_on_stays() -> None:
    young, tired, unable = Stream(ticket(2), news_s=8.1), Stream(ticket(2)), Stream(ticket(2), is_able=False)
    tired.own.num_pauses = 2
    assert pausable([young, tired, unable], RULES, 10.0) == []
    assert pausable([young], RULES, 10.2) == [young]


# the paused stream's place


def test_paused_stream_goes_before_the_others_of_its_tenant_and_never_expires() -> None:
    scheduler, running = full(2, 2, queue=QueuePolicy(headroom_ratio=0.0))
    late = waits(scheduler, 2, 2, 5.0)
    new = waits(scheduler, 2, 0, 10.0)
    for each in reversed(running):
        scheduler.pause(each, now_s=20.0)
    scheduler.hand_over(new, now_s=20.0)
    assert scheduler.expire(1e6) == [late]
    scheduler.finish(new, now_s=1e6, used_tokens=5, served=True)
    order = [scheduler.grant_next(now_s=1e6, slots=2, busy=0) for _ in range(2)]
    assert order == running


def test_paused_stream_is_charged_once_and_its_time_with_a_slot_alone_counts() -> None:
    scheduler, (first,) = full(2)
    assert first.flow is not None
    charged = first.flow.virtual_time
    scheduler.pause(first, now_s=10.0)
    assert scheduler.grant_next(now_s=500.0, slots=1, busy=0) is first
    assert first.flow.virtual_time == charged and first.ran_s == 10.0
    scheduler.finish(first, now_s=505.0, used_tokens=150, served=True)
    assert first.flow.virtual_time == 150.0
    later = scheduler.offer(ticket(2, 506.0, tenant="x"), now_s=506.0, slots=1, busy=0)
    assert later is GRANTED
    predicted = scheduler.offer(ticket(2, 506.0, tenant="x"), now_s=506.0, slots=1, busy=0)
    assert isinstance(predicted, Queued) and predicted.predicted_wait_s == pytest.approx(15.0, rel=0.5)


def test_client_that_leaves_while_its_stream_is_paused_pays_what_it_used() -> None:
    scheduler, (first,) = full(2)
    flow = first.flow
    scheduler.pause(first, now_s=10.0)
    assert scheduler.cancel(first)
    scheduler.learn(first, used_tokens=7, served=True)
    assert flow is not None and flow.virtual_time == 7.0
    assert (scheduler.num_waiting, scheduler.num_paused, scheduler.num_running) == (0, 0, 0)


def test_queue_that_ends_returns_paused_streams_too() -> None:
    scheduler, (first,) = full(2)
    scheduler.pause(first, now_s=10.0)
    assert scheduler.expire(float("inf")) == [first]


# whatever happens


class Life:
    """Random requests, pauses by the rules, and ends; the limits are checked at each step."""

    def __init__(self, seed: int) -> None:
        dice = self.dice = random.Random(seed)
        self.rules = PreemptionPolicy(wait_s=dice.choice([0.0, 0.3]), run_s=1.0, max_pauses=dice.choice([0, 1, 3]))
        self.scheduler = Scheduler(QueuePolicy(max_waiting=60, max_wait_s=30.0, age_s=4.0, preemption=self.rules))
        self.now_s, self.slots = 0.0, dice.choice([1, 3, 8])
        self.streams: dict[Ticket, Stream] = {}
        self.waiting: set[Ticket] = set()
        self.num_offered = self.num_ended = self.num_pauses = 0

    def step(self) -> None:
        self.now_s += self.dice.expovariate(6.0)
        act = self.dice.choices([self.offer, self.finish, self.preempt, self.cancel, self.expire], [6, 2, 6, 1, 1])[0]
        act()
        while (granted := self.scheduler.grant_next(now_s=self.now_s, slots=self.slots, busy=0)) is not None:
            self.waiting.remove(granted)
            self.start(granted)
        assert self.scheduler.num_running == len(self.streams) <= self.slots
        assert self.scheduler.num_waiting == len(self.waiting)
        assert self.scheduler.num_paused == sum(t.num_pauses > 0 for t in self.waiting) <= self.slots
        assert self.num_offered == self.num_ended + len(self.waiting) + len(self.streams)

    def start(self, granted: Ticket) -> None:
        is_able = self.dice.random() < 0.8
        self.streams[granted] = Stream(granted, self.now_s, self.dice.randrange(1000), is_able=is_able)

    def offer(self) -> None:
        new = ticket(self.dice.randrange(3), self.now_s, tenant=self.dice.choice("abcde"))
        self.num_offered += 1
        verdict = self.scheduler.offer(new, now_s=self.now_s, slots=self.slots, busy=0)
        if verdict is GRANTED:
            self.start(new)
        elif isinstance(verdict, Queued):
            self.waiting.add(new)
        else:
            self.num_ended += 1

    def preempt(self) -> None:
        found = pausable(self.streams.values(), self.rules, self.now_s)
        heir = self.scheduler.heir(now_s=self.now_s, slots=self.slots, busy=0)
        if heir is None or not found or found[0].own.priority <= heir.priority:
            return
        victim = found[0]
        assert len(self.streams) == self.slots and victim.is_able
        assert victim.own.num_pauses < self.rules.max_pauses and self.now_s - victim.news_s >= self.rules.run_s
        assert self.now_s - heir.since_s >= self.rules.wait_s
        del self.streams[victim.own]
        self.scheduler.pause(victim.own, now_s=self.now_s)
        self.waiting.add(victim.own)
        self.scheduler.hand_over(heir, now_s=self.now_s)
        self.waiting.remove(heir)
        self.start(heir)
        self.num_pauses += 1

    def finish(self) -> None:
        if self.streams:
            ended = self.dice.choice(list(self.streams))
            del self.streams[ended]
            self.scheduler.finish(ended, now_s=self.now_s, used_tokens=self.dice.randrange(1, 300), served=True)
            self.num_ended += 1

    def cancel(self) -> None:
        if self.waiting:
            gone = self.dice.choice(sorted(self.waiting, key=lambda t: (t.arrived_s, t.tenant)))
            assert self.scheduler.cancel(gone)
            self.scheduler.learn(gone, used_tokens=3, served=True)
            self.waiting.remove(gone)
            self.num_ended += 1

    def expire(self) -> None:
        for gone in self.scheduler.expire(self.now_s):
            assert not gone.num_pauses
            self.waiting.remove(gone)
            self.num_ended += 1


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**9), st.integers(1, 300))
def test_pauses_keep_all_limits_and_lose_nothing(seed: int, num_steps: int) -> None:
    life = Life(seed)
    for _ in range(num_steps):
        life.step()
    while life.streams or life.waiting:
        life.now_s += 1.0
        life.finish()
        life.expire()
        while (granted := life.scheduler.grant_next(now_s=life.now_s, slots=8, busy=0)) is not None:
            life.waiting.remove(granted)
            life.start(granted)
    assert life.num_ended == life.num_offered
    assert life.scheduler.num_running == life.scheduler.num_waiting == life.scheduler.num_paused == 0


def test_pauses_happen_in_that_life() -> None:
    life = Life(1)
    for _ in range(3000):
        life.step()
    assert life.num_pauses > 20
