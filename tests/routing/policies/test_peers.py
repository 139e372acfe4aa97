"""Tests of the peers' policies against the formulas of their sources."""

from __future__ import annotations

from fleets import Fleet, prompt

from longboat.routing.policies.aibrix import Aibrix
from longboat.routing.policies.consistent_hash import ConsistentHash
from longboat.routing.policies.dynamo import Dynamo
from longboat.routing.policies.llm_d import MAX_PENALTY_S, PREFILL_TOKENS_S, LlmD
from longboat.routing.policies.power_of_two import PowerOfTwo
from longboat.routing.policies.smg import Smg


def test_power_of_two_takes_the_less_busy_of_its_pair() -> None:
    fleet = Fleet(PowerOfTwo(), 2)
    places = [fleet.send(prompt(f"r{number}", "a")) for number in range(10)]
    assert abs(places.count("replica-0") - places.count("replica-1")) <= 1


def test_consistent_hash_keeps_to_the_bound() -> None:
    fleet = Fleet(ConsistentHash(), 4)
    places = [fleet.send(prompt(f"r{number}", "same words")) for number in range(80)]
    assert max(places.count(endpoint.key) for endpoint in fleet.endpoints) <= 26  # 1.25 x 80 / 4, rounded up
    assert len(set(places)) == 4


def test_consistent_hash_moves_few_keys_when_a_replica_leaves() -> None:
    fleet = Fleet(ConsistentHash(), 8)
    wanted = [prompt(f"r{number}", chr(0x100 + number) * 3) for number in range(200)]
    before = [fleet.choose(each)[0] for each in wanted]
    gone = fleet.endpoints.pop().key
    after = [fleet.choose(each)[0] for each in wanted]
    assert all(old == new for old, new in zip(before, after, strict=True) if old != gone)


def test_smg_follows_the_overlap_until_loads_are_imbalanced() -> None:
    fleet = Fleet(Smg(), 3)
    home = fleet.send(prompt("first", "abc"))
    places = [fleet.send(prompt(f"r{number}", "abcd")) for number in range(70)]
    assert places[:64] == [home] * 64  # 65 requests there and none elsewhere: more than 64 apart
    assert places[65] != home


def test_aibrix_leaves_a_match_that_is_a_deviation_above_the_mean() -> None:
    fleet = Fleet(Aibrix(), 4)
    home = fleet.serve(prompt("warm", "abc"))
    assert fleet.send(prompt("a", "abcd")) == home
    assert fleet.send(prompt("b", "abcx")) != home


def test_dynamo_weighs_prefill_and_active_blocks_in_one_unit() -> None:
    fleet = Fleet(Dynamo(), 2)
    long, unlike = prompt("long", "a" * 10), prompt("unlike", "d" * 10)
    home = fleet.send(long)
    other = fleet.send(prompt("short", "b"))
    assert other != home
    fleet.router.sent(unlike, home, cached_tokens=0, now_s=0.0)
    # In blocks of the prompt: 20 + 1 to compute and 20 + 1 active at home, 1 + 11 and 1 + 11 at the other one.
    assert fleet.choose(prompt("next", "a" * 10 + "c"))[0] == other
    fleet.router.first_token(long, cached_tokens=None, now_s=1.0)
    fleet.router.first_token(unlike, cached_tokens=None, now_s=1.0)
    # Without those in the queue: 1 + 21 at home.
    assert fleet.choose(prompt("next", "a" * 10 + "c"))[0] == home


def test_dynamo_counts_shared_active_blocks_once() -> None:
    policy = Dynamo()
    fleet = Fleet(policy, 1)
    wanted = [prompt("a", "abc"), prompt("b", "abd")]
    for each in wanted:
        fleet.send(each)
    assert policy._tokens == {0: 4 * 512}
    fleet.router.ended(wanted[0], output_tokens=1, now_s=1.0)
    assert policy._tokens == {0: 3 * 512}
    fleet.router.ended(wanted[1], output_tokens=1, now_s=1.0)
    assert policy._tokens == {0: 0} and not policy._counts


def test_llm_d_is_sticky_until_the_penalty() -> None:
    fleet = Fleet(LlmD(), 2)
    home = fleet.serve(prompt("warm", "a" * 9))
    behind = int(MAX_PENALTY_S * PREFILL_TOKENS_S)
    policy = fleet.router.policy
    heavy = prompt("heavy", "b", tokens=behind)
    policy.sent(heavy, fleet.router.load_of(home), cached_tokens=0, now_s=0.0)
    assert fleet.choose(prompt("next", "a" * 10))[0] == home
    policy.sent(prompt("more", "c", tokens=10_000), fleet.router.load_of(home), cached_tokens=0, now_s=0.0)
    assert fleet.choose(prompt("next", "a" * 10))[0] != home


def test_llm_d_wants_four_fifths_of_the_prompt() -> None:
    fleet = Fleet(LlmD(), 2)
    home = fleet.serve(prompt("warm", "a" * 4))
    fleet.router.policy.sent(prompt("h", "b", tokens=4000), fleet.router.load_of(home), cached_tokens=0, now_s=0.0)
    assert fleet.choose(prompt("most", "a" * 5))[0] == home
    assert fleet.choose(prompt("less", "a" * 4 + "xx"))[0] != home


def test_llm_d_counts_nothing_of_requests_that_were_at_a_replica_before_it_left() -> None:
    fleet = Fleet(LlmD(), 2)
    first = prompt("first", "a" * 20)
    home = fleet.send(first)
    other = next(each.key for each in fleet.endpoints if each.key != home)
    fleet.router.left(home)
    fleet.router.sent(prompt("second", "b" * 10), home, cached_tokens=0, now_s=0.0)
    fleet.router.sent(prompt("third", "c" * 5), other, cached_tokens=0, now_s=0.0)
    fleet.router.ended(first, output_tokens=0, now_s=1.0)
    assert fleet.choose(prompt("next", "d"))[0] == other
