"""Tests of a tenant's limits: nothing above them passes, and the same request fits after Retry-After."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.counters import correct
from longboat.routing.capacity.quota import Counts, Denied, Limits, check, limits_of, share_of, sliding

NOW_S = 1_800_000_030.0  # the middle of a minute
COUNTS = st.builds(
    Counts,
    requests=st.integers(0, 50),
    previous_requests=st.integers(0, 50),
    tokens=st.integers(0, 5000),
    previous_tokens=st.integers(0, 5000),
    tokens_today=st.integers(0, 100_000),
    running=st.integers(0, 10),
)
MAYBE = st.none() | st.integers(0, 60)
LIMITS = st.builds(
    Limits,
    requests_per_minute=MAYBE,
    tokens_per_minute=st.none() | st.integers(0, 6000),
    tokens_per_day=st.none() | st.integers(0, 120_000),
    concurrent_requests=MAYBE,
)
TIMES = st.floats(1.8e9, 1.8e9 + 1e6)


def at(counts: Counts, now_s: float) -> Counts:
    counts.minute, counts.day = int(now_s // 60), int(now_s // 86_400)
    return counts


@given(LIMITS, COUNTS, st.integers(0, 3000), TIMES)
def test_request_passes_exactly_within_all_limits(limits: Limits, counts: Counts, tokens: int, now_s: float) -> None:
    within = (
        (limits.concurrent_requests is None or counts.running < limits.concurrent_requests),
        (limits.tokens_per_day is None or counts.tokens_today + tokens <= limits.tokens_per_day),
        limits.requests_per_minute is None
        or sliding(counts.requests, counts.previous_requests, now_s) + 1 <= limits.requests_per_minute,
        limits.tokens_per_minute is None
        or sliding(counts.tokens, counts.previous_tokens, now_s) + tokens <= limits.tokens_per_minute,
    )
    assert (check(limits, counts, tokens=tokens, now_s=now_s) is None) == all(within)


@given(LIMITS, COUNTS, st.integers(0, 3000), TIMES)
def test_retry_after_is_when_the_request_fits(limits: Limits, counts: Counts, tokens: int, now_s: float) -> None:
    counts = at(counts, now_s)
    denied = check(limits, counts, tokens=tokens, now_s=now_s)
    if denied is None or denied.retry_after_s is None:
        return
    assert denied.retry_after_s >= 1
    counts.running = 0  # the end of a running request is unknown
    then_s = now_s + denied.retry_after_s
    counts.roll(then_s)
    assert check(limits, counts, tokens=tokens, now_s=then_s) is None


@given(COUNTS, st.integers(1, 60), TIMES)
def test_retry_after_is_not_much_too_late(counts: Counts, limit: int, now_s: float) -> None:
    limits, counts = Limits(requests_per_minute=limit), at(counts, now_s)
    denied = check(limits, counts, tokens=1, now_s=now_s)
    if denied is None or denied.retry_after_s is None or denied.retry_after_s < 3:
        return
    sooner_s = now_s + denied.retry_after_s - 2
    counts.roll(sooner_s)
    assert check(limits, counts, tokens=1, now_s=sooner_s) is not None


def test_limit_smaller_than_the_request_has_no_retry_after() -> None:
    denied = check(Limits(tokens_per_minute=100), Counts(), tokens=101, now_s=NOW_S)
    assert denied == Denied(limit="tokens_per_minute", value=0, limit_value=100, retry_after_s=None)
    assert check(Limits(requests_per_minute=0), Counts(), tokens=1, now_s=NOW_S) is not None


def test_longest_wait_is_told() -> None:
    counts = at(Counts(requests=10, tokens_today=990), NOW_S)
    denied = check(Limits(requests_per_minute=10, tokens_per_day=1000), counts, tokens=50, now_s=NOW_S)
    assert denied is not None and denied.limit == "tokens_per_day" and denied.value == 990


def test_windows_roll_on() -> None:
    counts = at(Counts(requests=3, tokens=30, tokens_today=300), NOW_S)
    counts.roll(NOW_S + 60)
    assert (counts.requests, counts.previous_requests, counts.previous_tokens) == (0, 3, 30)
    counts.roll(NOW_S + 10)
    assert counts.previous_requests == 3 and counts.minute == int(NOW_S + 60) // 60
    counts.roll(NOW_S + 240)
    assert counts.previous_requests == 0 and counts.tokens_today == 300
    counts.roll(NOW_S + 86_400)
    assert counts.tokens_today == 0


def test_windows_begin_again_where_the_clock_went_back() -> None:
    counts = at(Counts(requests=3, previous_requests=2, tokens=30, tokens_today=300, running=1), NOW_S + 8 * 3600)
    counts.roll(NOW_S)
    assert counts == at(Counts(tokens_today=300, running=1), NOW_S)
    correct(counts, -20, NOW_S + 8 * 3600)  # of a request that began before
    assert (counts.tokens, counts.tokens_today) == (0, 280)
    counts.roll(NOW_S + 86_400)
    assert counts.tokens_today == 0


def test_a_day_that_comes_back_goes_on_with_its_count() -> None:
    counts = at(Counts(tokens_today=1000), NOW_S)
    counts.roll(NOW_S - 86_400)
    assert counts.tokens_today == 1000
    correct(counts, 50, NOW_S - 86_400)
    counts.roll(NOW_S)
    assert counts.tokens_today == 1000
    counts.roll(NOW_S + 86_400)
    assert counts.tokens_today == 0


def test_sliding_minute_forgets_the_previous_one_bit_by_bit() -> None:
    assert sliding(0, 60, NOW_S - 30) == 60
    assert sliding(5, 60, NOW_S) == 35


@given(st.integers(1, 10_000), st.integers(1, 50))
def test_parts_of_a_limit_are_no_more_than_the_limit(limit: int, num_gateways: int) -> None:
    part = share_of(limit, num_gateways)
    assert part is not None and part >= 1
    assert part * num_gateways <= max(limit, num_gateways)


def test_limits_of_a_tenant_are_shared_by_gateways() -> None:
    tenant = TenantPolicy(name="a", requests_per_minute=60, concurrent_requests=1, tokens_per_day=0)
    assert limits_of(tenant) == Limits(requests_per_minute=60, concurrent_requests=1, tokens_per_day=0)
    assert limits_of(tenant, 4) == Limits(requests_per_minute=15, concurrent_requests=1, tokens_per_day=0)
