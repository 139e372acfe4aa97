"""Properties of every policy: allowed choices, equal calls give equal choices, accounts that return to nothing."""

from __future__ import annotations

import random

import pytest
from fleets import Fleet, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.core.errors import UserInputError
from longboat.routing.policies.contract import EngineReport
from longboat.routing.policies.registry import DEFAULT_POLICY, POLICIES, policy_of
from longboat.routing.prefixes.overflow import OverflowIndex
from longboat.routing.prefixes.shared_index import SharedIndex


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_has_the_name_it_is_found_by(name: str) -> None:
    assert policy_of(name).name == name


def test_there_are_eight_peers_and_the_default() -> None:
    assert len(POLICIES) == 9
    assert POLICIES[0] == DEFAULT_POLICY == "cost"


@pytest.mark.parametrize(("wrong", "near"), [("llm-d", "llm_d"), ("roundrobin", "round_robin"), ("Dynamo", "dynamo")])
def test_an_unknown_policy_is_refused_with_the_nearest_one(wrong: str, near: str) -> None:
    with pytest.raises(UserInputError) as refused:
        policy_of(wrong)
    assert wrong in str(refused.value)
    assert f"Did you mean {near}?" in refused.value.problems[0].hint


def play(name: str, seed: int, count: int) -> list[str]:
    """Run a random day of a fleet: requests come, get first tokens, end, and replicas leave; return who got what."""
    draw = random.Random(seed)
    fleet = Fleet(policy_of(name), count)
    under_way = []
    log = []
    for number in range(80):
        now_s = number * 0.05
        words = "".join(draw.choice("ab") for _ in range(draw.randrange(8)))
        wanted = prompt(f"r{number}", words, tokens=None if words else 100, session=draw.choice(["", "s1", "s2"]))
        log.append(fleet.send(wanted, now_s=now_s))
        under_way.append(wanted)
        draw.shuffle(under_way)
        while under_way and draw.random() < 0.5:
            done = under_way.pop()
            if draw.random() < 0.8:
                fleet.router.first_token(done, cached_tokens=draw.choice([None, 0, 512]), now_s=now_s)
                fleet.router.progressed(done, 5)
            fleet.router.ended(done, output_tokens=5, now_s=now_s)
        if draw.random() < 0.03:
            fleet.router.left(draw.choice(fleet.endpoints).key)
    for done in under_way:
        fleet.router.ended(done, output_tokens=0, now_s=9.0)
    loads = [fleet.router.load_of(endpoint.key) for endpoint in fleet.endpoints]
    log.append(str([fleet.choose(prompt("last", "zz"), now_s=100.0)[0] for _ in range(3)]))
    assert all(load.requests >= 0 and load.prefill_tokens >= 0 for load in loads)
    return log


@pytest.mark.parametrize("name", POLICIES)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_any_day_ends_well_and_repeats_itself(name: str, seed: int, count: int) -> None:
    first = play(name, seed, count)
    assert first == play(name, seed, count)
    assert set(first[:-1]) <= {f"replica-{number}" for number in range(count)}


@pytest.mark.parametrize("name", POLICIES)
def test_terms_have_one_row_for_each_replica(name: str) -> None:
    fleet = Fleet(policy_of(name), 4)
    fleet.send(prompt("a", "abc"))
    _, choice = fleet.choose(prompt("b", "abcd"))
    rows = list(choice.terms)
    assert rows == [] or len(rows) == 4
    assert all(len(row) == len(fleet.router.policy.terms) for row in rows)
    assert choice.reason


PREFIX_POLICIES = [name for name in POLICIES if policy_of(name).reads_prefixes]


@pytest.mark.parametrize("name", PREFIX_POLICIES)
def test_the_next_turn_of_a_conversation_goes_where_the_last_one_went(name: str) -> None:
    fleet = Fleet(policy_of(name), 8)
    homes = {}
    for conversation in "abcdefgh":
        homes[conversation] = fleet.serve(prompt(f"{conversation}1", conversation * 6))
    for conversation, home in homes.items():
        longer = prompt(f"{conversation}2", conversation * 6 + "x")
        assert fleet.serve(longer, now_s=50.0) == home


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "consistent_hash"])
def test_load_is_spread_when_nothing_is_shared(name: str) -> None:
    fleet = Fleet(policy_of(name), 4)
    places = [fleet.send(prompt(f"r{number}", chr(0x100 + number) * 4)) for number in range(40)]
    counts = [places.count(endpoint.key) for endpoint in fleet.endpoints]
    assert max(counts) <= 20 and min(counts) >= 4


@pytest.mark.parametrize("name", POLICIES)
def test_replicas_beyond_the_slots_of_the_index_get_requests_too(name: str) -> None:
    left_out: list[str] = []
    fleet = Fleet(policy_of(name), 70, OverflowIndex(SharedIndex(1 << 20, 64), left_out.append))
    assert left_out == [f"replica-{number}" for number in range(64, 70)]
    for endpoint in fleet.endpoints:
        fleet.router.reported(endpoint.key, EngineReport(taken_s=0.0, running=1, waiting=0), tells=True)
    got = {fleet.send(prompt(f"r{number}", chr(0x100 + number) * 4)) for number in range(400)}
    assert got & set(left_out)
    for endpoint in fleet.endpoints:
        fleet.router.left(endpoint.key)
    assert fleet.router.load_of("new").slot < 64


def test_prefixes_of_replicas_within_the_slots_are_known_beside_others() -> None:
    index = OverflowIndex(SharedIndex(1 << 20, 64), lambda key: None)
    slots = [index.slot_of(f"r{number}") for number in range(66)]
    names = prompt("a", "abc").blocks
    for slot in slots:
        index.place(slot, names)
    index.remove(slots[0], names[-8:])
    index.clear(slots[65])
    assert [index.depths(names, 66)[slots[at]] for at in (0, 1, 64, 65)] == [2, 3, 0, 0]
    index.drop(slots[64])
    assert index.slot_of("other") == slots[64]
    assert index.slot_of("r65") == slots[65]
