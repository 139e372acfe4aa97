"""Counters of several workers that keep to leases: whatever gets lost between them and their parent."""

from __future__ import annotations

import random

import orjson
import pytest
from counting import START_S, RandomTraffic
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.errors import ClusterError, UserInputError
from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.lease_document import decode_claims, decode_shares, encode_shares
from longboat.gateway.limits.leased_counters import LeasedCounters
from longboat.routing.capacity.quota import Denied, added, limits_of
from longboat.routing.capacity.quota_leases import QuotaLedger, Share, used_of

FREE = TenantPolicy(name="free")
LIMITED = TenantPolicy(
    name="limited", requests_per_minute=40, tokens_per_minute=60_000, tokens_per_day=2_000_000, concurrent_requests=12
)


class Node:
    """Workers and their parent, without sockets. Each message between them may get lost, before or after it arrives."""

    def __init__(self, num_workers: int, *tenants: TenantPolicy, loss: float = 0.0, seed: int = 0) -> None:
        self.now_s = START_S
        self.tenants = tenants
        self.loss = loss
        self.random = random.Random(seed)
        self.number = 0
        self.ledger = QuotaLedger([str(index) for index in range(num_workers)])
        self.ledger.set_limits({tenant.name: limits_of(tenant) for tenant in tenants})
        self.workers = [LeasedCounters(self.ask) for _ in range(num_workers)]

    async def ask(self) -> None:
        self.divide()

    def divide(self) -> None:
        self.ledger.begin()
        self._send({str(index): {} for index in range(len(self.workers))})
        self._send(self.ledger.lowered(self.now_s))
        self._send(self.ledger.raised(self.now_s))

    def _send(self, shares: dict[str, dict[str, Share]]) -> None:
        self.number += 1
        for name, given_ in shares.items():
            if self.random.random() < self.loss:
                self.ledger.doubtful(name, given_)
                continue
            claims = self.workers[int(name)].take(*decode_shares(encode_shares(self.number, given_)), self.now_s)
            if self.random.random() < self.loss:
                self.ledger.doubtful(name, given_)
                continue
            self.ledger.agreed(name, given_)
            self.ledger.heard(name, decode_claims(orjson.loads(orjson.dumps(claims))))

    def reserve(self, worker: int, tenant: TenantPolicy, tokens: int = 0) -> Denied | None:
        return self.workers[worker].reserve(tenant, tokens=tokens, now_s=self.now_s)


def used_by_all(node: Node, tenant: TenantPolicy) -> tuple[int, ...]:
    own = (worker._account(tenant.name).counts for worker in node.workers)
    return used_of(added(own, node.now_s), node.now_s)


@given(st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([0.0, 0.3]))
def test_workers_together_never_admit_more_than_a_limit(seed: int, num_workers: int, loss: float) -> None:
    node = Node(num_workers, LIMITED, loss=loss, seed=seed)
    most = limits_of(LIMITED).values
    running: list[tuple[int, int, float]] = []
    for _ in range(150):
        node.now_s += node.random.choice((0.0, 0.01, 0.7, 20.0))
        step = node.random.random()
        if step < 0.2:
            node.divide()
        elif running and step < 0.5:
            by, tokens, began_s = running.pop(node.random.randrange(len(running)))
            used = node.random.randrange(tokens + 1)
            node.workers[by].settle(
                LIMITED, reserved_tokens=tokens, used_tokens=used, reserved_s=began_s, now_s=node.now_s
            )
            node.workers[by].release(LIMITED)
        else:
            by, tokens = node.random.randrange(num_workers), node.random.randrange(9000)
            if node.reserve(by, LIMITED, tokens) is None:
                running.append((by, tokens, node.now_s))
                assert all(uses <= (top or 0) for uses, top in zip(used_by_all(node, LIMITED), most, strict=True))


async def test_whole_limit_is_open_to_a_worker_that_asks_first() -> None:
    node = Node(3, LIMITED)
    node.divide()
    for _ in range(12):
        denied = node.reserve(1, LIMITED)
        if denied is not None:
            assert node.workers[1].lacks_lease
            denied = await node.workers[1].reserve_after_division(LIMITED, tokens=0, now_s=node.now_s)
        assert denied is None
    denied = node.reserve(1, LIMITED)
    assert denied is not None and (denied.limit, denied.value, denied.limit_value) == ("concurrent_requests", 12, 12)
    node.workers[1].release(LIMITED)
    assert node.reserve(2, LIMITED) is not None
    assert await node.workers[2].reserve_after_division(LIMITED, tokens=0, now_s=node.now_s) is None


async def test_request_larger_than_half_of_the_limit_is_let_in() -> None:
    tenant = TenantPolicy(name="a", tokens_per_minute=1000)
    node = Node(4, tenant)
    node.divide()
    assert node.reserve(3, tenant, 900) is not None
    assert await node.workers[3].reserve_after_division(tenant, tokens=900, now_s=node.now_s) is None
    assert node.reserve(0, tenant, 900) is not None
    denied = await node.workers[0].reserve_after_division(tenant, tokens=900, now_s=node.now_s)
    assert denied is not None and denied.retry_after_s is not None and denied.retry_after_s > 1


async def test_worker_whose_parent_is_away_keeps_to_its_lease() -> None:
    async def away() -> None:
        raise ClusterError("gone", hint="wait")

    counters = LeasedCounters(away)
    share = Share(lease=(2, 0, 0, 0))
    counters.take(1, {"a": share}, START_S)
    tenant = TenantPolicy(name="a", requests_per_minute=10)
    assert [counters.reserve(tenant, tokens=0, now_s=START_S) for _ in range(2)] == [None, None]
    denied = await counters.reserve_after_division(tenant, tokens=0, now_s=START_S)
    assert denied is not None and (denied.limit_value, denied.retry_after_s) == (10, 1)


def test_message_that_was_held_up_does_not_undo_a_newer_one() -> None:
    counters = LeasedCounters(Node(1).ask)
    tenant = TenantPolicy(name="a", requests_per_minute=10)
    for number, lease in ((2, 0), (1, 5)):
        counters.take(number, {"a": Share(lease=(lease, 0, 0, 0))}, START_S)
    assert counters.reserve(tenant, tokens=0, now_s=START_S) is not None


def test_worker_reports_only_what_changed() -> None:
    node = Node(2, LIMITED)
    node.divide()
    assert node.reserve(0, LIMITED, 10) is None
    assert node.reserve(0, FREE, 10) is None
    assert node.workers[0].take(0, {}, START_S).keys() == {"limited", "free"}
    assert node.workers[0].take(0, {}, START_S) == {}


def test_worker_reports_a_correction_of_the_day_alone() -> None:
    node = Node(1, LIMITED)
    node.divide()
    counters, began_s = node.workers[0], node.now_s
    assert node.reserve(0, LIMITED, 900) is None
    node.now_s += 300
    assert counters.take(0, {}, node.now_s).keys() == counters.take(0, {}, node.now_s).keys() == {"limited"}
    assert counters.take(0, {}, node.now_s) == {}
    counters.settle(LIMITED, reserved_tokens=900, used_tokens=100, reserved_s=began_s, now_s=node.now_s)
    assert counters.take(0, {}, node.now_s)["limited"].counts.tokens_today == 100


async def test_want_ends_with_the_request_that_had_it() -> None:
    tenant = TenantPolicy(name="a", concurrent_requests=1)
    node = Node(2, tenant)
    node.divide()
    for worker in (1, 0, 1, 0):
        if node.reserve(worker, tenant) is not None:
            assert await node.workers[worker].reserve_after_division(tenant, tokens=0, now_s=node.now_s) is None
        node.workers[worker].release(tenant)


def test_shares_that_cannot_be_read_are_said() -> None:
    with pytest.raises(UserInputError):
        decode_shares(b'{"shares": 3}')


def test_ten_thousand_requests_over_three_workers_lose_nothing() -> None:
    node = Node(3, LIMITED)
    traffic = RandomTraffic(11, (FREE, LIMITED), node.workers)
    for step in range(25_000):
        traffic.step()
        if step % 50 == 0:
            node.now_s = traffic.now_s
            node.divide()
    assert sum(tally.admitted for tally in traffic.tallies.values()) > 5_000
    assert traffic.tallies["limited"].admitted > 100
    traffic.finish()
    node.now_s = traffic.now_s
    node.divide()
    for tenant in (FREE, LIMITED):
        counts = added((worker._account(tenant.name).counts for worker in node.workers), traffic.now_s)
        assert (counts.running, counts.tokens_today) == (0, traffic.tallies[tenant.name].tokens)
    for worker in node.workers:
        assert worker.counts_of("limited", traffic.now_s).tokens_today == traffic.tallies["limited"].tokens
