"""API keys: made, stored, found again."""

from __future__ import annotations

import dataclasses

import pytest

from longboat.core.policy import ANONYMOUS, Policy, TenantPolicy
from longboat.gateway.limits.keys import (
    KeyRing,
    digest_of,
    new_admin_key,
    new_key,
    presented_key,
)

ANN = TenantPolicy(name="ann", weight=2.0)


def test_key_is_not_in_its_record() -> None:
    key, record = new_key("ann", now_s=1.0)
    secret = key.split("-")[2]
    assert secret not in str(dataclasses.asdict(record)) and secret not in repr(record)
    assert record.sha256 == digest_of(key) and record.sha256 not in repr(record)


def test_keys_are_never_the_same_twice() -> None:
    assert len({new_key("ann", now_s=0.0)[0] for _ in range(200)}) == 200


def test_key_shows_the_id_of_its_record() -> None:
    key, record = new_key("ann", now_s=0.0)
    assert key.split("-")[:2] == ["lb", record.key_id]


def test_ring_knows_whose_key_it_is() -> None:
    key, record = new_key("ann", now_s=0.0)
    ring = KeyRing(Policy(auth="keys", tenants=(ANN,), keys=(record,)))
    assert ring.tenant_of(key.encode(), 5.0) is ANN


@pytest.mark.parametrize("presented", [b"", b"lb-a-b", b"\xff\x00", b"x" * 10_000])
def test_ring_refuses_what_it_does_not_know(presented: bytes) -> None:
    _, record = new_key("ann", now_s=0.0)
    ring = KeyRing(Policy(auth="keys", tenants=(ANN,), keys=(record,)))
    assert ring.tenant_of(presented, 0.0) is None
    assert not ring.has_expired(presented, 0.0)


def test_ring_refuses_the_digest_in_place_of_the_key() -> None:
    _, record = new_key("ann", now_s=0.0)
    ring = KeyRing(Policy(auth="keys", tenants=(ANN,), keys=(record,)))
    assert ring.tenant_of(record.sha256.encode(), 0.0) is None


def test_ring_refuses_an_expired_key_and_can_say_so() -> None:
    key, record = new_key("ann", now_s=0.0, expires_s=10.0)
    ring = KeyRing(Policy(auth="keys", tenants=(ANN,), keys=(record,)))
    assert ring.tenant_of(key.encode(), 9.9) is ANN
    assert ring.tenant_of(key.encode(), 10.0) is None
    assert ring.has_expired(key.encode(), 10.0)


def test_ring_refuses_keys_of_a_tenant_that_is_gone() -> None:
    key, record = new_key("bob", now_s=0.0)
    assert KeyRing(Policy(auth="keys", tenants=(ANN,), keys=(record,))).tenant_of(key.encode(), 0.0) is None


def test_ring_without_keys_takes_everyone_as_anonymous() -> None:
    limited = TenantPolicy(name=ANONYMOUS, concurrent_requests=3)
    assert KeyRing(Policy(tenants=(limited,))).tenant_of(b"EMPTY", 0.0) is limited
    found = KeyRing(Policy()).tenant_of(b"", 0.0)
    assert found is not None and found.name == ANONYMOUS


def test_ring_keeps_tenants_and_admins_apart() -> None:
    key, record = new_key("ann", now_s=0.0)
    admin_key, admin = new_admin_key("ops", "viewer")
    ring = KeyRing(Policy(auth="keys", tenants=(ANN,), keys=(record,), admins=(admin,)))
    assert ring.admin_of(admin_key.encode()) == admin
    assert ring.admin_of(key.encode()) is None
    assert ring.tenant_of(admin_key.encode(), 0.0) is None


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, b""),
        ({b"authorization": b"Bearer k"}, b"k"),
        ({b"authorization": b" bearer  k "}, b"k"),
        ({b"authorization": b"Basic k"}, b""),
        ({b"authorization": b"Basic x", b"x-api-key": b" k "}, b"k"),
        ({b"api-key": b"k"}, b"k"),
        ({b"x-api-key": b"k", b"api-key": b"other"}, b"k"),
        ({b"authorization": b"Bearer", b"x-api-key": b"k"}, b""),
    ],
)
def test_key_is_read_from_the_headers_that_clients_send_it_in(headers: dict[bytes, bytes], key: bytes) -> None:
    assert presented_key(headers) == key
