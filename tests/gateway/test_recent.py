"""Recent requests: the ring's bounds, whose records are found, and the timeline that is made of one."""

from __future__ import annotations

import json
import sys
from typing import Any

from longboat.gateway.records.recent import Attempt, Decision, RecentRequests, Record, summary, timeline
from longboat.gateway.records.routed import Routed
from longboat.routing.policies.cost import Cost
from longboat.routing.prefixes.index import DictIndex
from longboat.routing.prefixes.prompt import Prompt
from longboat.routing.router import Router


def record(request_id: str = "req-1", tenant: str = "a", **changes: Any) -> Record:
    values: dict[str, Any] = {
        "request_id": request_id,
        "tenant": tenant,
        "path": "/v1/chat/completions",
        "model": "chat",
        "pool": "llama-8b",
        "reason": "rule 2",
        "received_unix_s": 1000.0,
        "routed_s": 0.0004,
        "queued_s": None,
        "granted_s": None,
        "attempts": (Attempt("r0", 0.001),),
        "first_byte_s": 0.25,
        "ended_s": 2.0,
        "status": 200,
        "outcome": "ok",
        "code": "",
        "bytes_out": 1234,
        "prompt_tokens": 7,
        "completion_tokens": 9,
        "cached_tokens": 0,
    }
    return Record(**{**values, **changes})


def test_ring_keeps_the_newest() -> None:
    ring = RecentRequests(3)
    for number in range(5):
        ring.add(record(f"req-{number}"))
    assert [r.request_id for r in ring.newest()] == ["req-4", "req-3", "req-2"]
    assert ring.get("req-1") is None and ring.get("req-2") is not None


def test_ring_is_bounded_by_bytes() -> None:
    ring = RecentRequests(10_000, max_bytes=50_000)
    for number in range(1000):
        ring.add(record(f"req-{number}", attempts=tuple(Attempt("r", 0.1, "x" * 500, 0.2) for _ in range(number % 5))))
    assert 0 < ring.num_bytes <= 50_000
    assert ring.get("req-999") is not None
    for record_ in ring.newest(limit=10_000):
        assert sys.getsizeof(record_) < 900


def test_bytes_are_given_back_with_their_records() -> None:
    ring = RecentRequests(2)
    for number in range(100):
        ring.add(record(f"req-{number}", reason="r" * (number % 7)))
    two = ring.num_bytes
    alone = RecentRequests(2)
    for number in (98, 99):
        alone.add(record(f"req-{number}", reason="r" * (number % 7)))
    assert two == alone.num_bytes


def test_no_record_is_kept_where_none_may_be() -> None:
    ring = RecentRequests(0)
    ring.add(record())
    assert len(ring) == ring.num_bytes == 0


def test_id_that_two_tenants_chose_finds_each_its_own() -> None:
    ring = RecentRequests()
    ring.add(record("same", "a", status=200))
    ring.add(record("same", "b", status=429))
    found = {tenant: ring.get("same", tenant) for tenant in ("a", "b", "c")}
    assert {t: r.status if r else None for t, r in found.items()} == {"a": 200, "b": 429, "c": None}
    newest = ring.get("same")
    assert newest is not None and newest.tenant == "b"


def test_list_is_of_one_tenant_and_limited() -> None:
    ring = RecentRequests()
    for number in range(10):
        ring.add(record(f"req-{number}", "ab"[number % 2]))
    assert [r.request_id for r in ring.newest("a", 2)] == ["req-8", "req-6"]


def test_timeline_of_a_queued_and_retried_request_is_in_order() -> None:
    attempts = (Attempt("r0", 1.51, "connection refused", 1.52), Attempt("r1", 1.53))
    document = timeline(record(queued_s=0.001, granted_s=1.5, attempts=attempts, first_byte_s=1.9))
    assert [event["event"] for event in document["events"]] == [
        "received", "routed", "queued", "granted", "sent", "attempt_failed", "sent", "first_byte", "ended",
    ]  # fmt: skip
    times = [event["at_ms"] for event in document["events"]]
    assert times == sorted(times)
    assert document["routing"] == {"asked": "chat", "chosen": "llama-8b", "reason": "rule 2", "choice": None}
    assert document["events"][5]["reason"] == "connection refused"
    assert (document["retries"], document["replica"], document["queue_ms"]) == (1, "r1", 1499.0)
    json.dumps(document)


def test_timeline_of_a_refused_request_has_no_more_than_happened() -> None:
    document = timeline(
        record(pool=None, attempts=(), first_byte_s=None, ended_s=0.001, status=429, outcome="refused", code="quota")
    )
    assert [event["event"] for event in document["events"]] == ["received", "routed", "ended"]
    assert document["events"][-1]["error"] == "quota" and document["ttft_ms"] is None


def test_summary_counts_the_wait_of_one_that_left_the_queue() -> None:
    assert summary(record(queued_s=0.5, granted_s=None, attempts=(), ended_s=2.0))["queue_ms"] == 1500.0


def test_timeline_tells_what_was_decided_and_why() -> None:
    attempts = (Attempt("r0", 0.1, "it died", 0.5), Attempt("r1", 0.9, reason="another gave no answer"))
    events = timeline(record(attempts=attempts, decisions=(Decision(0.6, "park", "No replica answered."),)))["events"]
    told = [(event["event"], event.get("reason")) for event in events if event["at_ms"] >= 500]
    assert told[:3] == [
        ("attempt_failed", "it died"),
        ("park", "No replica answered."),
        ("sent", "another gave no answer"),
    ]


def test_what_the_engine_tells_after_the_record_is_shown() -> None:
    fleet = Router(Cost(), DictIndex())
    for key in ("r0/m", "r1/m"):
        fleet.load_of(key)
    loads = [fleet.load_of("r0/m"), fleet.load_of("r1/m")]
    prompt = Prompt("req-1", 512, blocks=bytes(8), ends=[512])
    routed = Routed(fleet.policy.choose(prompt, loads, fleet, now_s=0.0, turn=0), ["r0/m", "r1/m"], fleet, prompt)
    late = record(routed=routed, cached_tokens=None)
    assert timeline(late)["routing"]["choice"]["happened"]["cached_tokens"] is None
    routed.found_tokens = 300
    assert timeline(late)["routing"]["choice"]["happened"]["cached_tokens"] == summary(late)["cached_tokens"] == 300
