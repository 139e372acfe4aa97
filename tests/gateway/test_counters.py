"""Counters of one process."""

from __future__ import annotations

import pytest
from counting import START_S, RandomTraffic
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.counters import LocalCounters

FREE = TenantPolicy(name="free")
LIMITED = TenantPolicy(
    name="limited",
    requests_per_minute=40,
    tokens_per_minute=60_000,
    tokens_per_day=2_000_000,
    concurrent_requests=12,
)


def test_denied_request_counts_nothing() -> None:
    counters = LocalCounters()
    tenant = TenantPolicy(name="a", concurrent_requests=1)
    assert counters.reserve(tenant, tokens=10, now_s=START_S) is None
    denied = counters.reserve(tenant, tokens=10, now_s=START_S)
    assert denied is not None and denied.limit == "concurrent_requests"
    counts = counters.counts_of("a", START_S)
    assert (counts.requests, counts.tokens, counts.running) == (1, 10, 1)


def test_release_makes_room() -> None:
    counters = LocalCounters()
    tenant = TenantPolicy(name="a", concurrent_requests=1)
    for _ in range(3):
        assert counters.reserve(tenant, tokens=1, now_s=START_S) is None
        counters.release(tenant)


@pytest.mark.parametrize("wait_s", [1.0, 70.0])
def test_settle_corrects_the_window_of_the_reservation(wait_s: float) -> None:
    counters = LocalCounters()
    counters.reserve(FREE, tokens=1000, now_s=START_S)
    counters.settle(FREE, reserved_tokens=1000, used_tokens=10, reserved_s=START_S, now_s=START_S + wait_s)
    counts = counters.counts_of("free", START_S + wait_s)
    assert counts.tokens + counts.previous_tokens == 10
    assert counts.tokens_today == 10


def test_settle_of_a_long_answer_counts_what_was_not_reserved_now() -> None:
    counters = LocalCounters()
    counters.reserve(FREE, tokens=100, now_s=START_S)
    counters.settle(FREE, reserved_tokens=100, used_tokens=5000, reserved_s=START_S, now_s=START_S + 300)
    assert counters.counts_of("free", START_S + 300).tokens == 4900


def test_settle_after_midnight_leaves_the_new_day_alone() -> None:
    counters = LocalCounters()
    midnight_s = (START_S // 86400 + 1) * 86400
    counters.reserve(FREE, tokens=100, now_s=midnight_s - 1)
    counters.settle(FREE, reserved_tokens=100, used_tokens=50, reserved_s=midnight_s - 1, now_s=midnight_s + 1)
    assert counters.counts_of("free", midnight_s + 1).tokens_today == 0


def test_changed_limit_counts_from_the_next_request_and_keeps_the_counts() -> None:
    counters = LocalCounters()
    assert counters.reserve(TenantPolicy(name="a", tokens_per_day=100), tokens=90, now_s=START_S) is None
    tighter = TenantPolicy(name="a", tokens_per_day=95)
    assert counters.reserve(tighter, tokens=10, now_s=START_S) is not None
    assert counters.reserve(TenantPolicy(name="a"), tokens=10, now_s=START_S) is None


def test_limit_is_split_between_gateways() -> None:
    counters = LocalCounters()
    tenant = TenantPolicy(name="a", requests_per_minute=10)
    counters.num_gateways = 5
    results = [counters.reserve(tenant, tokens=0, now_s=START_S) is None for _ in range(4)]
    assert results == [True, True, False, False]


def test_restored_day_counts_against_the_budget_once() -> None:
    counters = LocalCounters()
    tenant = TenantPolicy(name="a", tokens_per_day=100)
    counters.restore_today({"a": 90}, now_s=START_S)
    counters.restore_today({"a": 90}, now_s=START_S)
    assert counters.reserve(tenant, tokens=10, now_s=START_S) is None
    assert counters.reserve(tenant, tokens=1, now_s=START_S) is not None


def test_charge_counts_whatever_the_limits_say() -> None:
    counters = LocalCounters()
    tenant = TenantPolicy(name="a", requests_per_minute=1)
    for _ in range(3):
        counters.charge(tenant, tokens=5, now_s=START_S)
    assert counters.counts_of("a", START_S).requests == 3


def test_ten_thousand_requests_lose_nothing_and_count_nothing_twice() -> None:
    traffic = RandomTraffic(7, (FREE, LIMITED), [counters := LocalCounters()])
    for _ in range(25_000):
        traffic.step()
    assert sum(tally.admitted for tally in traffic.tallies.values()) > 5_000
    assert traffic.tallies["limited"].denied > 100
    for tenant in (FREE, LIMITED):
        assert counters.counts_of(tenant.name, traffic.now_s).running == traffic.num_running(tenant)
    traffic.finish()
    for tenant in (FREE, LIMITED):
        counts = counters.counts_of(tenant.name, traffic.now_s)
        assert counts.running == 0
        assert counts.tokens_today == traffic.tallies[tenant.name].tokens


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_accounting_holds_for_any_traffic(seed: int, num_steps: int) -> None:
    traffic = RandomTraffic(seed, (FREE, LIMITED), [counters := LocalCounters()])
    for _ in range(num_steps):
        traffic.step()
        assert counters.counts_of("limited", traffic.now_s).running <= 12
    traffic.finish()
    for tenant in (FREE, LIMITED):
        assert counters.counts_of(tenant.name, traffic.now_s).tokens_today == traffic.tallies[tenant.name].tokens
