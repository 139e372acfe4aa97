"""Tests that nothing is lost or counted twice, no slot is given twice, and the queue's verdicts hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.core.policy import QueuePolicy
from longboat.routing.queue.fair_queue import (
    GRANTED,
    UNBOUNDED,
    Granted,
    Queued,
    Rejected,
    RejectedReason,
    Scheduler,
    Ticket,
)

NAMES = "abcdef"


def ticket(tenant: str = "a", *, at_s: float = 0.0, cost: int = 100, priority: int = 1, weight: float = 1.0) -> Ticket:
    return Ticket(tenant, weight, priority, cost, at_s)


def filled(scheduler: Scheduler, slots: int, *, tenant: str = "a") -> list[Ticket]:
    running = [ticket(tenant) for _ in range(slots)]
    assert all(scheduler.offer(t, now_s=0.0, slots=slots, busy=0) is GRANTED for t in running)
    return running


class Books:
    """Random offers, grants, cancels, expiries and finishes, and the invariants after each."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.queue = QueuePolicy(max_waiting=40, max_wait_s=20.0, age_s=3.0)
        self.scheduler = Scheduler(self.queue)
        self.now_s = 0.0
        self.slots = 8
        self.waiting: set[Ticket] = set()
        self.running: set[Ticket] = set()
        self.counts = dict.fromkeys(("offered", "rejected", "cancelled", "expired", "finished"), 0)

    def step(self) -> None:
        self.now_s += self.dice.expovariate(8.0)
        if self.dice.random() < 0.02:
            self.slots = self.dice.choice([0, 1, 4, 8, 12])
        act = self.dice.choices([self.offer, self.grant, self.cancel, self.expire, self.finish], [5, 4, 1, 1, 4])[0]
        act()
        self.check()

    def offer(self) -> None:
        dice = self.dice
        deadline_s = self.now_s + dice.uniform(-1, 10) if dice.random() < 0.3 else None
        new = Ticket(dice.choice(NAMES), dice.choice([1.0, 2.0]), dice.randrange(3), dice.randrange(1, 900), self.now_s)
        new.deadline_s = deadline_s
        room = self.slots > len(self.running)
        self.counts["offered"] += 1
        match self.scheduler.offer(new, now_s=self.now_s, slots=self.slots, busy=len(self.running)):
            case Granted():
                assert room
                self.running.add(new)
            case Queued():
                self.waiting.add(new)
            case Rejected(retry_after_s=retry_after_s, detail=detail):
                assert retry_after_s >= 1 and detail
                self.counts["rejected"] += 1

    def grant(self) -> None:
        granted = self.scheduler.grant_next(now_s=self.now_s, slots=self.slots, busy=self.dice.randrange(3))
        if granted is None:
            return
        assert len(self.running) < self.slots
        assert granted.deadline_s is None or granted.deadline_s > self.now_s
        self.waiting.remove(granted)
        self.running.add(granted)

    def cancel(self) -> None:
        chosen = self.any_of(self.waiting | self.running)
        if chosen is None:
            return
        assert self.scheduler.cancel(chosen) == (chosen in self.waiting)
        assert not self.scheduler.cancel(chosen)
        self.counts["cancelled"] += chosen in self.waiting
        self.waiting.discard(chosen)

    def expire(self) -> None:
        expired = self.scheduler.expire(self.now_s)
        assert set(expired) <= self.waiting and len(set(expired)) == len(expired)
        self.waiting -= set(expired)
        self.counts["expired"] += len(expired)
        assert all(self.now_s < min(t.deadline_s or 1e9, t.arrived_s + self.queue.max_wait_s) for t in self.waiting)

    def finish(self) -> None:
        chosen = self.any_of(self.running)
        if chosen is None:
            return
        served, used_tokens = self.dice.choice([(True, self.dice.randrange(1, 900)), (False, None), (False, 7)])
        flow = chosen.flow
        assert flow is not None
        before = flow.virtual_time
        for _ in range(self.dice.choice([1, 2])):  # the second has no effect
            self.scheduler.finish(chosen, now_s=self.now_s, used_tokens=used_tokens, served=served)
        charged_tokens = (used_tokens or 0) - chosen.charged_tokens
        assert (flow.virtual_time - before) * flow.tenant.weight == pytest.approx(charged_tokens, abs=1e-3)
        self.running.remove(chosen)
        self.counts["finished"] += 1

    def any_of(self, tickets: set[Ticket]) -> Ticket | None:
        return self.dice.choice(sorted(tickets, key=lambda t: (t.arrived_s, t.tenant))) if tickets else None

    def check(self) -> None:
        scheduler, ended = self.scheduler, sum(self.counts.values()) - self.counts["offered"]
        assert scheduler.num_running == len(self.running)
        assert scheduler.num_waiting == len(self.waiting)
        assert self.counts["offered"] == ended + len(self.waiting) + len(self.running)

    def check_tenants(self) -> None:
        for name in NAMES:
            running = [t for t in self.running if t.tenant == name]
            known = self.scheduler.flows.tenants.get(name)
            assert (known.running if known else 0) == len(running)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_counted_twice_in_ten_thousand_steps(seed: int) -> None:
    books = Books(seed)
    for number in range(10_000):
        books.step()
        if number % 100 == 0:
            books.check_tenants()
    assert all(count > 100 for count in books.counts.values())
    while books.running:
        books.finish()
    books.check_tenants()
    books.now_s += 1000.0
    books.expire()
    assert not books.waiting and books.scheduler.grant_next(now_s=books.now_s, slots=9, busy=0) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 400))
def test_nothing_is_lost_or_counted_twice(seed: int, num_steps: int) -> None:
    books = Books(seed)
    for _ in range(num_steps):
        books.step()
    books.check_tenants()


TICKETS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 2), st.integers(1, 5000), st.sampled_from([0.5, 1.0, 4.0])),
    min_size=1,
    max_size=60,
)


@given(TICKETS, st.integers(1, 6))
def test_everyone_is_served_in_the_end(kinds: list[tuple[str, int, int, float]], slots: int) -> None:
    weights: dict[str, float] = {}
    scheduler = Scheduler(QueuePolicy(max_wait_s=1e9, age_s=1.0))
    running: list[Ticket] = []
    for tenant, priority, cost, weight in kinds:
        new = Ticket(tenant, weights.setdefault(tenant, weight), priority, cost, 0.0)
        if scheduler.offer(new, now_s=0.0, slots=slots, busy=0) is GRANTED:
            running.append(new)
    served, now_s = 0, 0.0
    while running:
        now_s += 1.0
        done = running.pop(0)
        scheduler.finish(done, now_s=now_s, used_tokens=done.cost_tokens, served=True)
        served += 1
        while (granted := scheduler.grant_next(now_s=now_s, slots=slots, busy=0)) is not None:
            running.append(granted)
    assert served == len(kinds)


@given(TICKETS, st.integers(1, 6))
def test_no_slot_is_idle_while_everybody_waits(kinds: list[tuple[str, int, int, float]], slots: int) -> None:
    scheduler = Scheduler(QueuePolicy(max_wait_s=1e9))
    for tenant, priority, cost, _ in kinds:
        scheduler.offer(Ticket(tenant, 1.0, priority, cost, 0.0), now_s=0.0, slots=slots, busy=0)
    while scheduler.grant_next(now_s=0.0, slots=slots, busy=0) is not None:
        pass
    everybody_waits = all(scheduler.flows.tenants[tenant].waiting for tenant, *_ in kinds)
    assert scheduler.num_running == slots or not everybody_waits


@given(st.lists(st.integers(1, 2000), min_size=40, max_size=40), st.sampled_from([1.0, 2.0, 5.0]))
def test_least_served_goes_first_so_nobody_leads_by_more_than_a_request(costs: list[int], weight: float) -> None:
    """With one slot and true estimates: service for weight never differs by more than one request of each."""
    scheduler = Scheduler(QueuePolicy(max_wait_s=1e9))
    (current,) = filled(scheduler, 1, tenant="other")
    weights = {"a": 1.0, "b": weight}
    for index, cost in enumerate(costs):
        name = "ab"[index % 2]
        scheduler.offer(Ticket(name, weights[name], 1, cost, 0.0), now_s=0.0, slots=1, busy=1)
    served = {"a": 0.0, "b": 0.0}
    while scheduler.flows.tenants["a"].waiting and scheduler.flows.tenants["b"].waiting:
        scheduler.finish(current, now_s=1.0, used_tokens=current.cost_tokens, served=True)
        granted = scheduler.grant_next(now_s=1.0, slots=1, busy=0)
        assert granted is not None
        current = granted
        served[current.tenant] += current.cost_tokens / weights[current.tenant]
        assert abs(served["a"] - served["b"]) <= max(costs) / 1.0 + max(costs) / weight + 1e-6


def test_room_is_granted_at_once() -> None:
    scheduler = Scheduler(QueuePolicy())
    filled(scheduler, 3)
    assert isinstance(scheduler.offer(ticket(), now_s=0.0, slots=3, busy=3), Queued)
    assert scheduler.num_running == 3 and scheduler.flows.tenants["a"].waiting == 1


def test_busy_of_others_counts() -> None:
    scheduler = Scheduler(QueuePolicy())
    assert isinstance(scheduler.offer(ticket(), now_s=0.0, slots=3, busy=3), Queued)
    assert scheduler.grant_next(now_s=0.0, slots=3, busy=3) is None
    assert scheduler.grant_next(now_s=0.0, slots=3, busy=2) is not None


def test_unbounded_engines_never_make_wait() -> None:
    scheduler = Scheduler(QueuePolicy())
    for name in "ab" * 500:
        assert scheduler.offer(ticket(name), now_s=0.0, slots=UNBOUNDED, busy=0) is GRANTED


def test_last_slots_are_kept_for_who_is_below_its_share() -> None:
    scheduler = Scheduler(QueuePolicy(headroom_ratio=0.2))
    assert scheduler.offer(ticket("quiet"), now_s=0.0, slots=10, busy=0) is GRANTED
    answers = [scheduler.offer(ticket("loud"), now_s=0.0, slots=10, busy=0) for _ in range(9)]
    assert sum(answer is GRANTED for answer in answers) == 7
    assert scheduler.offer(ticket("quiet"), now_s=0.0, slots=10, busy=0) is GRANTED
    assert scheduler.grant_next(now_s=0.0, slots=10, busy=0) is None


def test_share_of_who_left_is_given_away() -> None:
    scheduler = Scheduler(QueuePolicy(headroom_ratio=0.2, max_wait_s=1e6))
    quiet = ticket("quiet")
    scheduler.offer(quiet, now_s=0.0, slots=10, busy=0)
    for _ in range(12):
        scheduler.offer(ticket("loud"), now_s=0.0, slots=10, busy=0)
    scheduler.finish(quiet, now_s=1.0, used_tokens=1, served=True)
    while scheduler.grant_next(now_s=1.0, slots=10, busy=0):
        pass
    assert scheduler.flows.tenants["loud"].running == 8
    while scheduler.grant_next(now_s=40.0, slots=10, busy=0):
        pass
    assert scheduler.flows.tenants["loud"].running == 10


def test_queue_is_bounded_by_count() -> None:
    scheduler = Scheduler(QueuePolicy(max_waiting=2))
    filled(scheduler, 1)
    answers = [scheduler.offer(ticket(), now_s=0.0, slots=1, busy=1) for _ in range(3)]
    assert isinstance(answers[1], Queued)
    assert isinstance(answers[2], Rejected) and answers[2].reason is RejectedReason.QUEUE_FULL


def test_queue_is_bounded_by_predicted_wait() -> None:
    scheduler = Scheduler(QueuePolicy(max_wait_s=10.0))
    (first,) = filled(scheduler, 1)
    scheduler.finish(first, now_s=2.0, used_tokens=100, served=True)
    scheduler.offer(ticket(at_s=2.0), now_s=2.0, slots=1, busy=0)
    answers = [scheduler.offer(ticket(at_s=2.0), now_s=2.0, slots=1, busy=1) for _ in range(8)]
    refused = [answer for answer in answers if isinstance(answer, Rejected)]
    assert 3 <= len(refused) <= 5
    assert {answer.reason for answer in refused} == {RejectedReason.WAIT_TOO_LONG}
    times = [answer.retry_after_s for answer in refused]
    assert times == sorted(times) and times[0] <= 4


def test_prediction_is_none_before_anything_was_learned() -> None:
    scheduler = Scheduler(QueuePolicy())
    (first,) = filled(scheduler, 1)
    unknown = ticket("early")
    assert scheduler.offer(unknown, now_s=0.0, slots=1, busy=1) == Queued(None)
    assert scheduler.cancel(unknown)
    scheduler.finish(first, now_s=2.0, used_tokens=100, served=True)
    assert scheduler.offer(ticket("new"), now_s=0.0, slots=4, busy=0) is GRANTED
    answer = scheduler.offer(Ticket("new", 1.0, 7, 100, 0.0), now_s=0.0, slots=1, busy=1)
    assert isinstance(answer, Queued) and answer.predicted_wait_s == pytest.approx(2.0, rel=0.1)


def test_deadline_that_has_passed_is_refused_even_with_room() -> None:
    scheduler = Scheduler(QueuePolicy())
    late = ticket()
    late.deadline_s = 5.0
    answer = scheduler.offer(late, now_s=5.0, slots=4, busy=0)
    assert isinstance(answer, Rejected) and answer.reason is RejectedReason.DEADLINE


def test_overdue_ticket_is_not_granted_and_expires_once() -> None:
    scheduler = Scheduler(QueuePolicy())
    (first,) = filled(scheduler, 1)
    waiting = ticket()
    waiting.deadline_s = 5.0
    scheduler.offer(waiting, now_s=0.0, slots=1, busy=1)
    scheduler.finish(first, now_s=6.0, used_tokens=None, served=False)
    assert scheduler.grant_next(now_s=6.0, slots=1, busy=0) is None
    assert scheduler.num_waiting == 1
    assert scheduler.expire(6.0) == [waiting] and scheduler.expire(6.0) == []


def test_ticket_may_be_offered_again_only_after_its_end() -> None:
    scheduler = Scheduler(QueuePolicy())
    (first,) = filled(scheduler, 1)
    with pytest.raises(ValueError, match="already running"):
        scheduler.offer(first, now_s=0.0, slots=2, busy=1)
    scheduler.finish(first, now_s=1.0, used_tokens=None, served=False)
    assert first.flow is not None and first.flow.virtual_time == 0.0
    assert scheduler.offer(first, now_s=1.0, slots=1, busy=0) is GRANTED


@pytest.mark.parametrize("is_known", [False, True])
def test_tenant_whose_estimates_were_far_too_high_gets_no_more_than_its_share(is_known: bool) -> None:
    """The estimates are taken back when its requests end; who came meanwhile must not be behind it by as much."""
    scheduler, now_s = Scheduler(QueuePolicy(max_wait_s=1e6)), 0.0
    if is_known:
        for first in filled(scheduler, 10, tenant="c"):
            scheduler.finish(first, now_s=1.0, used_tokens=100, served=True)
    running = [ticket("a", cost=10_000) for _ in range(10)]
    assert all(scheduler.offer(t, now_s=40.0, slots=10, busy=0) is GRANTED for t in running)
    granted = {"a": 0, "b": 0}
    for number in range(60):
        now_s = 41.0 + number
        for tenant, cost in (("a", 10_000), ("b", 100)):
            for _ in range(10):
                scheduler.offer(ticket(tenant, at_s=now_s, cost=cost), now_s=now_s, slots=10, busy=10)
        for done in running:
            scheduler.finish(done, now_s=now_s, used_tokens=100, served=True)
        running = []
        while (found := scheduler.grant_next(now_s=now_s, slots=10, busy=0)) is not None:
            running.append(found)
            granted[found.tenant] += 1
    assert granted["b"] == pytest.approx(granted["a"], rel=0.1), granted


def test_returning_tenant_has_saved_up_nothing() -> None:
    scheduler = Scheduler(QueuePolicy(max_wait_s=1e9))
    (current,) = filled(scheduler, 1, tenant="busy")
    for _ in range(50):
        scheduler.offer(ticket("busy"), now_s=0.0, slots=1, busy=1)
    order = ""
    for step in range(40):
        if step == 20:
            for _ in range(20):
                scheduler.offer(ticket("back"), now_s=1.0, slots=1, busy=1)
        scheduler.finish(current, now_s=1.0, used_tokens=100, served=True)
        granted = scheduler.grant_next(now_s=1.0, slots=1, busy=0)
        assert granted is not None
        current = granted
        order += granted.tenant[1]
    assert 9 <= order[20:].count("a") <= 11
