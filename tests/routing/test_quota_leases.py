"""Leases of limits: never more together than the limit, nothing lost, and they follow what is wanted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.routing.capacity.quota import Counts, Limits, added
from longboat.routing.capacity.quota_leases import Claim, QuotaLedger, divided, granted, used_of

NOW_S = 1_700_006_400.0
amounts = st.integers(0, 200)
processes = st.integers(1, 6).flatmap(
    lambda n: st.tuples(*(st.lists(amounts, min_size=n, max_size=n) for _ in range(3)))
)


@given(st.integers(0, 400), processes)
def test_division_gives_out_the_whole_limit_and_takes_back_nothing_that_is_used(
    limit: int, given_: tuple[list[int], list[int], list[int]]
) -> None:
    held, used, wanted = given_
    leases = divided(limit, held, used, wanted)
    if sum(used) > limit:
        assert not any(leases)
        return
    assert sum(leases) == limit
    assert all(lease >= uses for lease, uses in zip(leases, used, strict=True))


@given(st.integers(0, 100), processes)
def test_what_all_want_together_is_given_where_it_fits(
    more: int, given_: tuple[list[int], list[int], list[int]]
) -> None:
    held, used, wanted = given_
    leases = divided(sum(used) + sum(wanted) + more, held, used, wanted)
    assert all(lease >= uses + want for lease, uses, want in zip(leases, used, wanted, strict=True))


@given(st.integers(0, 100), processes)
def test_one_want_at_least_is_met_where_the_unused_part_holds_it(
    more: int, given_: tuple[list[int], list[int], list[int]]
) -> None:
    held, used, wanted = given_
    wanted[0] = max(1, wanted[0])
    leases = divided(sum(used) + min(want for want in wanted if want) + more, held, used, wanted)
    assert any(want and lease >= uses + want for lease, uses, want in zip(leases, used, wanted, strict=True))


def test_lease_stays_where_it_is_until_it_is_wanted_elsewhere() -> None:
    assert divided(10, [0, 0], [0, 0], [0, 0]) == [5, 5]
    assert divided(10, [9, 1], [0, 0], [0, 0]) == [9, 1]
    assert divided(10, [9, 1], [4, 1], [0, 3]) == [6, 4]
    assert divided(10, [5, 5], [0, 0], [8, 8]) == [8, 2]


@given(st.integers(0, 100), processes)
def test_growth_never_passes_the_limit_and_takes_nothing_away(
    more: int, given_: tuple[list[int], list[int], list[int]]
) -> None:
    held, used, target = given_
    limit = sum(map(max, held, used)) + more
    leases = granted(limit, held, used, target)
    assert sum(map(max, leases, used)) <= limit
    assert all(lease >= has for lease, has in zip(leases, held, strict=True))


def round_of(ledger: QuotaLedger, now_s: float = NOW_S) -> dict[str, tuple[int, ...]]:
    """Carry out a round in which every process agrees; return the new leases of tenant ``a``."""
    leases = {}
    for step in (ledger.lowered, ledger.raised):
        for holder, shares in step(now_s).items():
            ledger.agreed(holder, shares)
            if "a" in shares:
                leases[holder] = shares["a"].lease
    return leases


def claim(now_s: float = NOW_S, *, wanted: int = 0, **counted: int) -> dict[str, Claim]:
    counts = added((), now_s)
    for name, value in counted.items():
        setattr(counts, name, value)
    return {"a": Claim(counts=counts, wanted=(wanted, 0, 0, 0))}


def ledger_of(**limits: int) -> QuotaLedger:
    ledger = QuotaLedger(["x", "y"])
    ledger.set_limits({"a": Limits(**limits)})
    return ledger


def test_lease_of_a_process_that_died_goes_to_the_others_without_what_it_had_counted() -> None:
    ledger = ledger_of(requests_per_minute=10, concurrent_requests=4)
    assert round_of(ledger) == {"x": (5, 0, 0, 2), "y": (5, 0, 0, 2)}
    ledger.heard("x", claim(requests=4, running=2))
    ledger.ended("x", NOW_S)
    ledger.heard("y", claim(wanted=6, running=0))
    leases = round_of(ledger)
    assert leases["y"][0] == 6
    assert leases["x"][3] + leases["y"][3] == 4
    later = round_of(ledger, NOW_S + 120)  # the minute of the dead process is over
    assert later["x"][0] + later["y"][0] == 10


def test_process_that_does_not_agree_is_counted_with_all_that_it_held() -> None:
    ledger = ledger_of(requests_per_minute=10)
    round_of(ledger)
    ledger.heard("y", claim(wanted=5, requests=5))
    lowered = ledger.lowered(NOW_S)
    assert lowered["x"]["a"].lease[0] == 0
    ledger.doubtful("x", lowered["x"])
    assert ledger.raised(NOW_S)["x"]["a"].lease[0] == 5
    assert round_of(ledger) == {"x": (0, 0, 0, 0), "y": (10, 0, 0, 0)}  # the next time it agrees


def test_limit_that_was_passed_gives_nothing_until_it_is_not() -> None:
    ledger = ledger_of(tokens_per_minute=100)
    round_of(ledger)
    ledger.heard("x", claim(tokens=130))
    assert {lease[1] for lease in round_of(ledger).values()} == {0}
    assert sum(lease[1] for lease in round_of(ledger, NOW_S + 90).values()) == 100


def test_day_that_was_restored_counts_until_midnight() -> None:
    ledger = ledger_of(tokens_per_day=100)
    ledger.restore_today({"a": 90}, NOW_S)
    assert sum(lease[2] for lease in round_of(ledger).values()) == 10
    ledger.heard("x", claim(NOW_S + 86_400))
    assert sum(lease[2] for lease in round_of(ledger, NOW_S + 86_400).values()) == 100


def test_day_that_is_restored_again_counts_no_more_than_was_used() -> None:
    ledger = ledger_of(tokens_per_day=100)
    leases = dict.fromkeys(("x", "y"), (0, 0, 0, 0))
    for used, left in ((40, 60), (60, 60), (90, 40)):  # of what was used, ``x`` has counted 30 itself
        ledger.restore_today({"a": used}, NOW_S)
        leases |= round_of(ledger)
        assert sum(lease[2] for lease in leases.values()) == left
        ledger.heard("x", claim(tokens=30, tokens_today=30))


def test_limit_that_is_lowered_or_dropped_is_lowered_for_all() -> None:
    ledger = ledger_of(concurrent_requests=8)
    round_of(ledger)
    ledger.set_limits({"a": Limits(concurrent_requests=3)})
    assert sum(lease[3] for lease in round_of(ledger).values()) == 3
    ledger.set_limits({})
    round_of(ledger)
    assert not ledger.is_needed


def test_round_without_news_sends_nothing() -> None:
    ledger = ledger_of(requests_per_minute=10)
    round_of(ledger)
    assert round_of(ledger) == {}
    assert ledger.lowered(NOW_S) == {"x": {}, "y": {}}


def test_use_of_a_limit_falls_as_the_minute_slides() -> None:
    counts = Counts(requests=1, previous_requests=10, tokens_today=7, running=2)
    assert used_of(counts, NOW_S) == (11, 0, 7, 2)
    assert used_of(counts, NOW_S + 30) == (6, 0, 7, 2)
