"""Tests of the default policy: what it weighs, and what follows from the weights."""

from __future__ import annotations

import random

import pytest
from fleets import Fleet, endpoint, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.routing.policies.contract import EngineReport
from longboat.routing.policies.cost import Cost
from longboat.routing.policies.prefill_queue import PrefillQueue
from longboat.routing.policies.prefill_time import CHUNK_TOKENS, PrefillSeed, PrefillTime, Work

SEED = PrefillSeed(token_s=1e-4, request_s=0.0)


def test_an_idle_replica_that_holds_the_prompt_is_taken() -> None:
    fleet = Fleet(Cost(SEED), 8)
    home = fleet.serve(prompt("a", "abcd"))
    key, choice = fleet.choose(prompt("b", "abcde"), now_s=10.0)
    assert key == home
    assert choice.cached_tokens == 4 * 512
    assert "2048 of 2560" in choice.reason


def test_a_hot_prefix_is_computed_again_when_waiting_costs_more() -> None:
    fleet = Fleet(Cost(SEED), 4)
    places = [fleet.send(prompt(f"r{number}", "a" * 16 + chr(0x100 + number))) for number in range(200)]
    counts = [places.count(endpoint.key) for endpoint in fleet.endpoints]
    first_elsewhere = next(at for at, place in enumerate(places) if place != places[0])
    assert first_elsewhere >= 2  # a burst does not scatter before the wait is worth it
    assert min(counts) >= 20  # and no replica stays idle under 200 requests


def test_short_requests_pass_by_a_long_prefill() -> None:
    fleet = Fleet(Cost(SEED), 3)
    busy = fleet.send(prompt("long", "x" * 100))
    for number in range(20):
        short = prompt(f"s{number}", chr(0x200 + number))
        assert fleet.serve(short, now_s=0.01 * number, prefill_s=0.005) != busy


def test_the_wait_shrinks_with_the_clock() -> None:
    queue = PrefillQueue()
    queue.add("a", Work(9000, 9000), 9000, 1.5, 0.5, now_s=10.0)
    queue.add("b", Work(1000, 1000), 1000, 1.0, 0.5, now_s=10.5)
    assert queue.wait_s(11.0) == pytest.approx(2.0)
    queue.done("a", None, 11.5)
    assert queue.wait_s(11.5) == pytest.approx(1.5)
    queue.done("b", None, 12.5)
    assert queue.wait_s(12.5) == 0.0


def test_an_overdue_prefill_is_not_expected_at_once() -> None:
    queue = PrefillQueue()
    queue.add("a", Work(1000, 1000), 1000, 0.5, 0.5, now_s=0.0)
    assert queue.wait_s(1.0) == pytest.approx(0.0)
    assert queue.wait_s(5.0) == pytest.approx(2.0)


def test_a_long_prefill_that_is_given_up_does_not_count_as_time_of_the_next() -> None:
    queue = PrefillQueue()
    queue.add("long", Work(100_000, 100_000), 100_000, 20.0, 0.5, now_s=0.0)
    queue.add("next", Work(1000, 1000), 1000, 1.0, 0.5, now_s=5.0)
    queue.take("long", 15.0)
    assert queue.wait_s(15.0) == pytest.approx(1.5)
    sample = queue.done("next", None, 16.5)
    assert sample is not None and sample.seconds == pytest.approx(1.5)


def test_a_prefill_that_is_given_up_leaves_those_of_its_step_where_they_are() -> None:
    queue = PrefillQueue()
    queue.add("first", Work(500, 500), 500, 0.1, 1.0, now_s=0.0)
    for name in ("b", "c"):
        queue.add(name, Work(500, 500), 500, 0.1, 1.0, now_s=0.5)
    queue.done("first", None, 1.1)  # b and c are computed now
    queue.take("b", 2.0)
    sample = queue.done("c", None, 2.3)
    assert sample is not None and sample.seconds == pytest.approx(2.3)


def test_prefills_of_one_step_share_what_a_step_takes() -> None:
    queue = PrefillQueue()
    queue.add("first", Work(500, 500), 500, 0.1, 1.0, now_s=0.0)
    for name in ("b", "c", "d"):
        queue.add(name, Work(500, 500), 500, 0.1, 1.0, now_s=0.5)
    assert queue.wait_s(0.5) == pytest.approx(0.6 + 0.3)  # they share their step with the one that is sent now
    queue.done("first", None, 1.1)
    assert queue.wait_s(1.1) == pytest.approx(1.3)
    queue.done("b", None, 2.4)
    sample = queue.done("c", None, 2.4)
    assert sample is None
    sample = queue.done("d", None, 2.4)
    assert sample is not None
    assert (sample.work.requests, sample.work.tokens) == (2.0, 2000.0)  # two steps


def test_a_prefill_is_charged_for_all_whose_first_tokens_come_with_its_own() -> None:
    fleet = Fleet(Cost(SEED), 2)
    for number in range(2):
        fleet.router.sent(prompt(f"h{number}", "", tokens=8000), f"replica-{number}", cached_tokens=0, now_s=0.0)
    for number in range(10):
        fleet.router.sent(prompt(f"s{number}", "", tokens=50), "replica-0", cached_tokens=0, now_s=0.0)
    fleet.router.sent(prompt("one", "", tokens=1000), "replica-1", cached_tokens=0, now_s=0.0)
    wanted = prompt("new", "", tokens=1000)
    assert fleet.choose(wanted)[0] == "replica-1"  # it waits longer there, and replica-0 has ten that would
    for number in range(2):
        fleet.router.first_token(prompt(f"h{number}", "", tokens=8000), cached_tokens=None, now_s=0.8)
    assert fleet.choose(wanted, now_s=0.8)[0] == "replica-0"  # the step of those ten is under way


def test_the_last_step_of_a_queue_is_known() -> None:
    queue = PrefillQueue()
    seen = []
    for name, tokens in (("first", 500), ("b", 500), ("c", 500), ("long", 8000), ("d", 100)):
        queue.add(name, Work(tokens, tokens), tokens, 0.1, 0.0, now_s=0.0)
        seen.append((queue.last_requests, CHUNK_TOKENS - queue.last_room))
    assert seen == [(0, 0.0), (1, 500.0), (2, 1000.0), (1, 808.0), (2, 908.0)]
    queue.done("first", None, 0.1)  # b and c are computed now
    assert (queue.last_requests, CHUNK_TOKENS - queue.last_room) == (2, 908.0)
    for name in ("b", "c"):
        queue.done(name, None, 0.2)
    assert queue.last_requests == 0
    queue.done("long", None, 0.3)
    queue.done("d", None, 0.3)
    queue.add("longer", Work(10_000, 10_000), 10_000, 0.1, 0.0, now_s=1.0)  # its second step can be shared
    assert (queue.last_requests, CHUNK_TOKENS - queue.last_room) == (1, 1808.0)
    queue.done("longer", None, 1.1)
    queue.add("full", Work(16_384, 16_384), 16_384, 0.1, 0.0, now_s=2.0)
    assert (queue.last_requests, queue.last_room) == (1, 0.0)


def test_other_gateways_prefills_count_once_the_engine_reports_them() -> None:
    fleet = Fleet(Cost(SEED), 2)
    fleet.router.reported("replica-0", EngineReport(taken_s=0.0, running=4, waiting=4, queued_tokens=50_000))
    assert {fleet.choose(prompt(f"r{number}", "a"), now_s=0.1)[0] for number in range(9)} == {"replica-1"}
    assert fleet.router.policy.choose(
        prompt("b", "b"), [fleet.router.load_of("replica-0")], fleet.router, now_s=0.1, turn=0
    ).terms[0][0] == pytest.approx(5.0)


def test_own_prefills_in_a_report_count_once() -> None:
    fleet = Fleet(Cost(SEED), 1)
    wanted = prompt("a", "a" * 20)
    fleet.send(wanted)
    before = fleet.choose(prompt("b", "b"))[1].terms[0][0]
    fleet.router.reported("replica-0", EngineReport(taken_s=0.0, running=1, waiting=0, queued_tokens=wanted.num_tokens))
    assert fleet.choose(prompt("b", "b"))[1].terms[0][0] == pytest.approx(before)


def test_terms_are_those_of_their_own_decision() -> None:
    fleet = Fleet(Cost(SEED), 3)
    fleet.send(prompt("a", "a" * 20))
    _, choice = fleet.choose(prompt("b", "b" * 5))
    seen = list(choice.terms)
    fleet.send(prompt("c", "c" * 30))
    later = list(fleet.choose(prompt("d", "d" * 9))[1].terms)
    assert list(choice.terms) == seen != later


def test_a_policy_that_does_not_explain_chooses_the_same() -> None:
    chosen: list[list[str]] = []
    for explains in (True, False):
        fleet = Fleet(Cost(SEED), 4)
        fleet.router.policy.explains = explains
        chosen.append([fleet.send(prompt(f"r{number}", "abcde"[: number % 5 + 1])) for number in range(40)])
        assert len(fleet.choose(prompt("last", "a"))[1].terms) == (4 if explains else 0)
    assert chosen[0] == chosen[1]


def test_seconds_that_only_one_replica_costs_are_weighed() -> None:
    fleet = Fleet(Cost(SEED), 2)
    home = fleet.serve(prompt("a", "ab"))
    extra = [5.0 if endpoint.key == home else 0.0 for endpoint in fleet.endpoints]
    key, choice = fleet.choose(prompt("b", "ab"), now_s=9.0, extra_s=extra)
    assert key != home
    assert [row[-1] for row in choice.terms] == extra


def test_a_conversation_without_known_blocks_stays_by_its_session() -> None:
    fleet = Fleet(Cost(SEED), 8)
    home = fleet.serve(prompt("first", "", tokens=500, session="chat"), prefill_s=0.05)
    assert all(
        fleet.serve(prompt(f"r{number}", "", tokens=500, session="chat"), now_s=60.0 + number, prefill_s=0.05) == home
        for number in range(5)
    )


def test_gateways_agree_on_the_home_of_a_new_prefix_and_spread_different_ones() -> None:
    fleets = [Fleet(Cost(SEED), 8) for _ in range(2)]
    fleets[1].turn = 77
    wanted = [prompt(f"r{number}", chr(0x100 + number) * 3) for number in range(200)]
    homes = [[fleet.choose(each)[0] for each in wanted] for fleet in fleets]
    assert homes[0] == homes[1]
    assert min(homes[0].count(endpoint.key) for endpoint in fleets[0].endpoints) >= 10


def test_equal_replicas_get_equal_parts_and_one_that_leaves_moves_only_its_own() -> None:
    fleet = Fleet(Cost(SEED), 64)
    wanted = [prompt(f"r{number}", chr(0x100 + number)) for number in range(6400)]
    homes = [fleet.choose(each)[0] for each in wanted]
    counts = [homes.count(endpoint.key) for endpoint in fleet.endpoints]
    assert min(counts) >= 60 and max(counts) <= 150  # 100 each, give or take what chance does
    gone = fleet.endpoints.pop(17).key
    after = [fleet.choose(each)[0] for each in wanted]
    assert all(new == old for new, old in zip(after, homes, strict=True) if old != gone)
    assert len({new for new, old in zip(after, homes, strict=True) if old == gone}) > 16


def test_streams_do_not_crowd_on_a_replica_that_holds_their_little_prompts() -> None:
    fleet = Fleet(Cost(SEED), 2)
    for number in range(8):
        before = prompt(f"b{number}", chr(0x100 + number), tokens=5)
        fleet.router.sent(before, "replica-0", cached_tokens=0, now_s=0.0)
        fleet.router.first_token(before, cached_tokens=0, now_s=0.0005)
        fleet.router.ended(before, output_tokens=1, now_s=0.2)
    places = []
    for number in range(8):
        wanted = prompt(f"r{number}", chr(0x100 + number), tokens=5)
        places.append(fleet.send(wanted, now_s=10.0 + number))
        fleet.router.first_token(wanted, cached_tokens=5, now_s=10.0005 + number)
    assert 2 <= places.count("replica-1") <= 4  # of 8 streams that all run at the same time


def test_a_slow_replica_gets_less_once_its_first_tokens_say_so() -> None:
    fleet = Fleet(Cost(SEED), 2)
    speeds = {"replica-0": 1.0, "replica-1": 0.25}
    places = []
    for number in range(60):
        now_s = float(number * 10)
        pair = [prompt(f"{number}{half}", chr(0x200 + 2 * number + half) * 20) for half in (0, 1)]
        places += [fleet.send(wanted, now_s=now_s) for wanted in pair]
        free_s = {"replica-0": now_s, "replica-1": now_s}
        for wanted, place in zip(pair, places[-2:], strict=True):
            free_s[place] += 1.024 / speeds[place]
            fleet.router.first_token(wanted, cached_tokens=0, now_s=free_s[place])
            fleet.router.ended(wanted, output_tokens=1, now_s=free_s[place])
    assert places[-20:].count("replica-0") >= 16  # 2 s one after the other are less than 4 s at the slow one


def test_a_new_replica_begins_with_the_mean_pace() -> None:
    fleet = Fleet(Cost(SEED), 2)
    fleet.send(prompt("a", "abcdef"))
    fleet.send(prompt("b", "ghijkl"))
    fleet.endpoints.append(endpoint("cold"))
    assert fleet.choose(prompt("c", "mnopqr"))[0] == "cold"


def test_a_replica_that_leaves_takes_its_queue_along() -> None:
    fleet = Fleet(Cost(SEED), 1)
    wanted = prompt("a", "a" * 50)
    fleet.send(wanted)
    fleet.router.left("replica-0")
    fleet.router.ended(wanted, output_tokens=0, now_s=1.0)
    fleet.endpoints = [endpoint("replica-9")]
    assert fleet.choose(prompt("b", "b"))[1].terms[0][0] == 0.0


@given(
    token_s=st.floats(1e-6, 1e-3), request_s=st.floats(0, 0.05), context_s=st.floats(0, 1e-9), noise=st.integers(0, 99)
)
@settings(max_examples=25, deadline=None)
def test_the_learned_time_of_a_prefill_comes_near_the_true_one(
    token_s: float, request_s: float, context_s: float, noise: int
) -> None:
    draw = random.Random(noise)
    learned = PrefillTime(PrefillSeed())
    truth = PrefillTime(PrefillSeed(token_s=token_s, request_s=request_s, token_context_s=context_s))
    works = [
        Work(tokens, tokens + draw.randrange(20_000))
        for tokens in (draw.choice([300, 1000, 4000, 20_000]) for _ in range(400))
    ]
    for work in works:
        learned.learn(work, truth.seconds(work) * draw.uniform(0.9, 1.1))
    errors = [abs(learned.seconds(work) / truth.seconds(work) - 1) for work in works]
    assert sum(errors) / len(errors) < 0.12


def test_without_samples_the_seed_speaks() -> None:
    learned = PrefillTime(PrefillSeed(token_s=2e-5, request_s=0.5))
    assert learned.seconds(Work(10_000, 10_000)) == pytest.approx(0.7)
    learned.learn(Work(10_000, 10_000), 0.7)
    assert learned.seconds(Work(10_000, 10_000)) == pytest.approx(0.7, rel=0.05)


def test_a_popular_prefix_reaches_idle_replicas_though_a_copy_costs_its_first_request_more() -> None:
    fleet = Fleet(Cost(SEED), 4)
    places = []
    for number in range(400):
        now_s = number * 0.02
        wanted = prompt(f"r{number}", "a" * 12 + chr(0x100 + number))
        places.append(fleet.send(wanted, now_s=now_s))
        fleet.router.first_token(wanted, cached_tokens=None, now_s=now_s + 0.06)
    assert set(places[:20]) == {endpoint.key for endpoint in fleet.endpoints}


def test_a_burst_is_copied_to_all_idle_replicas_by_its_first_requests_and_a_few_equal_ones_are_not() -> None:
    fleet = Fleet(Cost(SEED), 8)
    burst = [prompt(f"r{number}", "a" * 16 + chr(0x100 + number)) for number in range(16)]
    places = [fleet.send(each, now_s=number / 3000) for number, each in enumerate(burst)]
    assert len(set(places[:3])) == 1
    assert set(places) == {endpoint.key for endpoint in fleet.endpoints}


@pytest.mark.parametrize(("busy_tokens", "stays"), [(3_000, True), (20_000, False)])
def test_a_prefix_is_waited_for_a_while_before_another_replica_computes_it_too(busy_tokens: int, stays: bool) -> None:
    fleet = Fleet(Cost(SEED), 2)
    home = fleet.serve(prompt("a", "abcd"))
    busy = prompt("busy", "", tokens=busy_tokens)
    fleet.router.sent(busy, home, cached_tokens=0, now_s=10.0)
    assert (fleet.choose(prompt("b", "abcde"), now_s=10.0)[0] == home) is stays


@pytest.mark.parametrize("evicted", [False, True])
def test_copies_cost_nothing_more_where_caches_are_too_small_for_what_repeats(evicted: bool) -> None:
    fleet = Fleet(Cost(SEED), 2)
    for number in range(800):
        key = f"p{number}"
        repeated = prompt(key, chr(0x300 + number % 200) * 8)
        place = fleet.serve(repeated, now_s=float(number), prefill_s=0.41 if evicted or number < 200 else 0.01)
        if evicted:
            fleet.router.index.remove(fleet.router.load_of(place).slot, repeated.blocks)
    home = fleet.serve(prompt("a", "abcd"), now_s=1000.0)
    fleet.router.sent(prompt("busy", "", tokens=5_000), home, cached_tokens=0, now_s=1010.0)
    assert (fleet.choose(prompt("b", "abcde"), now_s=1010.0)[0] == home) is not evicted


def test_a_pace_does_not_come_of_the_first_prefill_and_is_forgotten_without_new_ones() -> None:
    queue = PrefillQueue()
    queue.learn(8.0, 1.0, 0.0)  # kernels are compiled, caches are cold
    assert queue.pace == 1.0
    for number in range(40):
        queue.learn(2.0, 1.0, float(number))
    assert queue.pace_at(90.0) == queue.pace == pytest.approx(1.87, abs=0.03)
    paces = [queue.pace_at(100.0 + 61.0 * number) for number in range(10)]
    assert paces == sorted(paces, reverse=True)
    assert paces[-1] < 1.05
    queue.learn(2.0, 1.0, 900.0)
    assert queue.pace > paces[-1]


def test_pace_of_a_replica_without_requests_for_days_is_the_means() -> None:
    queue = PrefillQueue()
    for number in range(40):
        queue.learn(2.0, 1.0, float(number))
    paces = [queue.pace_at(100.0 + 61.0 * number) for number in range(3000)]
    assert paces == sorted(paces, reverse=True) and paces[-1] == 1.0
    queue.learn(2.0, 1.0, 200_000.0)
    assert queue.pace > 1.0
