"""Tests of the queue's promises in virtual time: floods, lent shares, classes, deadlines, several gateways."""

from __future__ import annotations

import itertools
import random

import pytest
from queue_twin import TICK_S, Fate, Job, Twin, flood, p99, steady, within

from longboat.core.policy import QueuePolicy
from longboat.routing.queue.fair_queue import RejectedReason

SEEDS = [1, 2, 3]
MEAN_SERVICE_S = 2.3


def of(fates: list[Fate], tenant: str) -> list[Fate]:
    return [fate for fate in fates if fate.job.tenant == tenant]


def quiet_stream(capacity: int, seed: int, *, num_gateways: int = 1) -> list[Job]:
    """Make a tenant that uses half of its half of the engine, and never more than that half."""
    per_s = capacity / 4 / MEAN_SERVICE_S
    jobs = steady("quiet", per_s=per_s, seconds=150, seed=seed, num_gateways=num_gateways)
    return within(jobs, capacity // 2)


def floods(seed: int, *, num_gateways: int = 1) -> list[Job]:
    waves = [flood("loud", number=1000, at_s=at_s, seed=seed, num_gateways=num_gateways) for at_s in (10.0, 70.0)]
    return list(itertools.chain.from_iterable(waves))


def p99_alone_and_flooded(capacity: int, seed: int, num_gateways: int) -> tuple[float, float]:
    quiet = quiet_stream(capacity, seed, num_gateways=num_gateways)
    alone = Twin(capacity, num_gateways=num_gateways).run(quiet)
    flooded = Twin(capacity, num_gateways=num_gateways).run(quiet + floods(seed, num_gateways=num_gateways))
    assert all(fate.served for fate in of(flooded, "quiet"))
    assert sum(fate.served for fate in of(flooded, "loud")) > 500
    return p99(f.ttft_s for f in alone), p99(f.ttft_s for f in of(flooded, "quiet"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("capacity", [32, 64, 256])
def test_flood_moves_p99_ttft_of_a_tenant_within_its_share_by_at_most_a_fifth(capacity: int, seed: int) -> None:
    alone_s, flooded_s = p99_alone_and_flooded(capacity, seed, 1)
    assert flooded_s <= 1.2 * alone_s


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("capacity", [64, 256])
def test_flood_through_two_gateways_moves_p99_ttft_by_at_most_a_fifth(capacity: int, seed: int) -> None:
    alone_s, flooded_s = p99_alone_and_flooded(capacity, seed, 2)
    assert flooded_s <= 1.2 * alone_s


@pytest.mark.parametrize("seed", SEEDS)
def test_flood_of_equal_requests_that_end_together_is_not_felt_either(seed: int) -> None:
    """A flood takes all slots at the same time and frees them at the same time; none is free in between."""
    dice = random.Random(seed)
    arrivals_s = itertools.accumulate(dice.expovariate(24) for _ in range(800))
    short = [Job(at_s=at_s, tenant="quiet", prompt_tokens=40, completion_tokens=16) for at_s in arrivals_s]
    quiet = within(short, 16)
    loud = [Job(at_s=10.0 + i * 1e-4, tenant="loud", prompt_tokens=40, completion_tokens=64) for i in range(1000)]
    alone = Twin(32).run(quiet)
    flooded = Twin(32).run(quiet + loud)
    assert all(fate.served for fate in of(flooded, "quiet"))
    assert p99(f.ttft_s for f in of(flooded, "quiet")) <= 1.2 * p99(f.ttft_s for f in alone)


def test_slots_that_a_tenant_wanted_lately_are_lent_out_some_time_after() -> None:
    quiet = [
        Job(at_s=i * 0.04, tenant="quiet", prompt_tokens=40, completion_tokens=16) for i in range(500)
    ]  # 8 slots, until 20 s
    loud = [Job(at_s=i * 1e-4, tenant="loud", prompt_tokens=40, completion_tokens=64) for i in range(1900)]
    twin = Twin(32, QueuePolicy(max_wait_s=1e6))
    fates = of(twin.run(quiet + loud), "loud")

    def running(at_s: float) -> int:
        return sum(f.started_s <= at_s < f.ended_s for f in fates if f.started_s is not None and f.ended_s is not None)

    assert 16 <= max(running(at_s) for at_s in range(10, 20)) <= 24
    assert running(48.0) == 28  # all but the least headroom
    assert running(55.0) == 32  # the other has not been seen for half a minute


def test_flood_is_felt_without_headroom() -> None:
    """The simulation can fail: without headroom, the flood is felt."""
    quiet = quiet_stream(32, 1)
    alone = Twin(32).run(quiet)
    flooded = Twin(32, QueuePolicy(headroom_ratio=0.0)).run(quiet + floods(1))
    assert p99(f.ttft_s for f in of(flooded, "quiet")) > 1.2 * p99(f.ttft_s for f in alone)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_gateways_with_leases_keep_within_the_engine(seed: int) -> None:
    twin = Twin(32, num_gateways=2)
    twin.run(quiet_stream(32, seed, num_gateways=2) + floods(seed, num_gateways=2))
    assert 31 <= twin.most_running <= 32  # the last slot is kept for tenants below their share


def test_tenant_at_one_gateway_only_is_not_starved_by_a_flood_at_the_other() -> None:
    loud = flood("loud", number=500, at_s=0.0, seed=1)
    quiet = [Job(at_s=20.0 + i * 0.5, tenant="quiet", gateway=1) for i in range(40)]
    fates = of(Twin(32, num_gateways=2).run(loud + quiet), "quiet")
    assert all(fate.served for fate in fates) and max(fate.wait_s for fate in fates) < 3.0


def test_idle_share_is_lent_out() -> None:
    twin = Twin(40)
    twin.run([Job(at_s=0.0, tenant="idle"), *flood("loud", number=400, at_s=3.0, seed=1)])
    assert twin.most_running == 36  # all but the headroom, while the other may come back

    alone = Twin(40)
    alone.run(flood("loud", number=400, at_s=0.0, seed=1))
    assert alone.most_running == 40


@pytest.mark.parametrize("headroom_ratio", [0.0, 0.1])
def test_service_follows_weights_in_tokens_while_all_have_work(headroom_ratio: float) -> None:
    """The heavier tenant sends short requests: counted in requests it would get less."""
    small = [
        Job(at_s=i * 1e-3, tenant="heavy", weight=3.0, prompt_tokens=50, completion_tokens=50) for i in range(1900)
    ]
    large = [Job(at_s=i * 1e-3, tenant="light", prompt_tokens=200, completion_tokens=200) for i in range(1900)]
    fates = Twin(16, QueuePolicy(max_waiting=10_000, max_wait_s=1e6, headroom_ratio=headroom_ratio)).run(small + large)
    served = {
        tenant: sum(f.job.used_tokens for f in of(fates, tenant) if f.ended_s is not None and 10 < f.ended_s < 150)
        for tenant in ("heavy", "light")
    }
    assert served["heavy"] / served["light"] == pytest.approx(3.0, rel=0.1)


def test_lower_class_waits_but_does_not_starve() -> None:
    first = [Job(at_s=i * 0.25, tenant="first", priority=0) for i in range(800)]  # twice what 4 slots can do
    last = [Job(at_s=1.0 + i, tenant="last", priority=2) for i in range(10)]
    queue = QueuePolicy(max_wait_s=1e6, age_s=10.0, headroom_ratio=0.0)
    fates = Twin(4, queue).run(sorted(first * 2 + last, key=lambda job: job.at_s))
    waits_s = [fate.wait_s for fate in of(fates, "last")]
    assert waits_s[0] >= 20.0 and max(waits_s) < 60.0


def test_without_ageing_classes_are_strict() -> None:
    first = [Job(at_s=i * 0.25, tenant="first", priority=0) for i in range(400)]
    queue = QueuePolicy(max_wait_s=1e6, age_s=1e9, headroom_ratio=0.0)
    fates = Twin(4, queue).run(sorted([*first * 2, Job(at_s=1.0, tenant="last", priority=2)], key=lambda job: job.at_s))
    (last,) = of(fates, "last")
    assert last.started_s == max(f.started_s for f in fates if f.started_s is not None)


def test_old_requests_of_a_flood_do_not_pass_fresh_ones_of_their_class() -> None:
    loud = flood("loud", number=500, at_s=0.0, seed=1)
    other = [Job(at_s=30.0 + i * 0.01, tenant="other") for i in range(100)]
    urgent = [Job(at_s=30.0, tenant="urgent", priority=0)]
    fates = Twin(16, QueuePolicy(age_s=5.0)).run(loud + other + urgent)
    started = [f for f in fates if f.started_s is not None and 31 < f.started_s < 41]
    tokens = {t: sum(f.job.used_tokens for f in of(started, t)) for t in ("loud", "other")}
    assert tokens["other"] == pytest.approx(tokens["loud"], rel=0.35)


def test_work_that_nobody_waits_for_is_not_started() -> None:
    jobs = [Job(at_s=i * 1e-3, patience_s=4.0) for i in range(200)]
    fates = Twin(8).run(jobs)
    served = [f for f in fates if f.served]
    dropped = [f for f in fates if f.expired_s is not None]
    assert served and dropped and len(served) + len(dropped) == 200
    assert all(f.wait_s < 4.0 for f in served)
    assert all(f.expired_s - f.job.at_s < 4.0 + 2 * TICK_S for f in dropped if f.expired_s is not None)


def test_hopeless_deadline_is_refused_at_once_when_the_pace_is_known() -> None:
    backlog = flood("a", number=200, at_s=0.0, seed=1)
    fates = Twin(8).run([*backlog, Job(at_s=10.0, patience_s=1.0)])
    assert fates[-1].rejected is not None and fates[-1].rejected.reason is RejectedReason.DEADLINE


@pytest.mark.parametrize("seed", SEEDS)
def test_predicted_waits_are_true_within_a_factor(seed: int) -> None:
    warm = steady("a", per_s=10.0, seconds=20, seed=seed)
    fates = Twin(32, QueuePolicy(max_wait_s=1e6)).run(warm + flood("a", number=500, at_s=20.0, seed=seed))
    late = [f for f in fates if f.predicted_wait_s is not None and f.wait_s > 3.0]
    assert len(late) > 300
    assert all(1 / 1.5 < f.predicted_wait_s / f.wait_s < 1.5 for f in late if f.predicted_wait_s is not None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "queue", [QueuePolicy(max_wait_s=10.0), QueuePolicy(max_waiting=100)], ids=["by wait", "by count"]
)
def test_retry_after_is_neither_too_early_nor_late_for_most(queue: QueuePolicy, seed: int) -> None:
    """Clients that come back after Retry-After mostly get in, and the engine is not idle meanwhile."""
    twin = Twin(32, queue)
    warm = steady("a", per_s=10.0, seconds=20, seed=seed)
    jobs = flood("a", number=400, at_s=20.0, seed=seed)
    first: list[Fate] = []
    second: list[Fate] = []

    def come_back(job: Job) -> None:
        second.append(twin.arrive(job))

    def come(job: Job) -> None:
        fate = twin.arrive(job)
        first.append(fate)
        if fate.rejected is not None:
            twin.at(twin.now_s + fate.rejected.retry_after_s, lambda: come_back(job))

    for job in jobs:
        twin.at(job.at_s, lambda job=job: come(job))  # type: ignore[misc]
    fates = twin.run(warm)
    told = [f.rejected.retry_after_s for f in first if f.rejected is not None]
    refused_again = [f for f in second if f.rejected is not None]
    assert len(second) == len(told) > 100
    assert len(refused_again) <= 0.2 * len(second)
    needed_s = sum(job.service_s for job in jobs) / 32  # the engine's time for all of it
    assert max(told) <= 1.5 * needed_s
    ended_s = max(f.ended_s for f in fates if f.ended_s is not None)
    assert ended_s - 20.0 <= 2.0 * needed_s


def test_newcomer_gets_in_where_a_flood_has_filled_the_queue() -> None:
    queue = QueuePolicy(max_waiting=50, max_wait_s=1e6)
    fates = Twin(8, queue).run([*flood("loud", number=200, at_s=0.0, seed=1), Job(at_s=1.0, tenant="quiet")])
    refused = [f.rejected.reason for f in of(fates, "loud") if f.rejected]
    assert len(refused) == 142 and set(refused) == {RejectedReason.QUEUE_FULL}
    assert of(fates, "quiet")[0].wait_s < MEAN_SERVICE_S
