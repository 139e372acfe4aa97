"""Parts of external models without a socket: addresses, keys, Retry-After, prices, limits."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from gateway_lab import config

from longboat.core.external import Budget, ExternalModel, Price
from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.api.apis import APIS
from longboat.gateway.calls.model_request import Call
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.config import GatewayLimits
from longboat.gateway.exchange.payment import Payment
from longboat.gateway.external.address import Address, addresses_of
from longboat.gateway.external.budgets import limits_by_name, spent_today
from longboat.gateway.external.keys import KeyProblemError, read_key
from longboat.gateway.external.outside import HOLD_S, LONGEST_HOLD_S, Outside, retry_after_s
from longboat.gateway.http.request import Request
from longboat.gateway.records.usage_store import UsageStore
from longboat.gateway.upstreams.table import LiveTable

NOW_S = 1_800_000_000.0


def model(**values: object) -> ExternalModel:
    return ExternalModel(**{"name": "cloud", "urls": ("https://h/v1",), **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "api", "path", "target"),
    [
        ("https://h", "openai", b"/v1/chat/completions", b"/v1/chat/completions"),
        ("https://h/v1", "openai", b"/v1/models", b"/v1/models"),
        ("https://h/v1beta/openai", "openai", b"/v1/chat/completions", b"/v1beta/openai/chat/completions"),
        ("https://h/openai/v1", "openai", b"/v1/embeddings?a=b", b"/openai/v1/embeddings?a=b"),
        ("https://h", "anthropic", b"/v1/messages", b"/v1/messages"),
        ("https://h/v1", "anthropic", b"/v1/messages", b"/v1/messages"),
        ("https://h/anthropic", "anthropic", b"/v1/messages", b"/anthropic/v1/messages"),
    ],
)
def test_url_stands_in_the_place_of_v1(url: str, api: str, path: bytes, target: bytes) -> None:
    head = Address(model(urls=(url,), api=api), url, "h", "").request_start("POST", path, [])
    assert head.split(b" ")[1] == target


def test_key_goes_into_the_header_that_the_file_names() -> None:
    head = Address(model(api_key_header="api-key"), "https://h/v1", "h", "k1").request_start("POST", b"/v1/x", [])
    assert b"\r\napi-key: k1\r\n" in head
    assert b"authorization" not in head


def test_client_overrides_no_header_of_the_file() -> None:
    address = Address(model(headers={"openai-beta": "ours"}), "https://h/v1", "h", "")
    head = address.request_start("POST", b"/v1/x", [b"OpenAI-Beta: theirs\r\n", b"accept: text/event-stream\r\n"])
    assert b"theirs" not in head
    assert b"accept: text/event-stream" in head


def test_addresses_of_one_host_have_labels_of_their_own() -> None:
    found = addresses_of(model(urls=("https://h/a", "https://h/b", "http://g:8080/v1")), "")
    assert [address.label for address in found] == ["h", "h/b", "g:8080"]
    assert [(address.port, address.tls) for address in found] == [(443, True), (443, True), (8080, False)]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, HOLD_S),
        ("7", 7.0),
        ("nonsense", HOLD_S),
        ("²", HOLD_S),
        ("-3", HOLD_S),
        ("999999999", LONGEST_HOLD_S),
        ("Fri, 15 Jan 2027 08:01:00 GMT", 60.0),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float) -> None:
    assert retry_after_s(value, NOW_S) == seconds


def test_retry_after_without_a_zone_is_utc_wherever_the_gateway_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert retry_after_s("Fri, 15 Jan 2027 08:01:00", NOW_S) == 60.0
        assert retry_after_s("Fri, 15 Jan 2027 08:01:00 -0000", NOW_S) == 60.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_price_is_exact_in_billionths() -> None:
    price = Price(input_per_million=0.15, output_per_million=0.6)
    assert price.nanos(1, 0) == 150
    assert price.nanos(1_000_000, 1_000_000) == 750_000_000
    assert Price(input_per_million=0.0001, output_per_million=0).nanos(1, 0) == 1  # rounded up


def test_limits_are_counted_under_names_that_no_tenant_can_have() -> None:
    limits = Budget(requests_per_day=3, tokens_per_day=4, money_per_day=0.5)
    found = limits_by_name(Policy(external=(model(limits=limits),)))
    assert {tenant.name: tenant.tokens_per_day for tenant in found} == {
        "external:cloud:requests_per_day": 3,
        "external:cloud:tokens_per_day": 4,
        "external:cloud:money_per_day": 500_000_000,
    }


def test_overflow_settles_the_bill_of_the_model_that_is_left() -> None:
    state = GatewayState(config())
    limits = Budget(requests_per_day=1, tokens_per_day=10_000)
    first, second = Outside(model(limits=limits)), Outside(model(name="other", limits=limits))
    call = Call(
        Request(), APIS[b"/v1/chat/completions"], path=b"/v1/chat/completions", tenant=TenantPolicy(name="a"),
        pools=("cloud", "other"), requested="cloud", cost_tokens=1000,
    )  # fmt: skip
    call.outside = first
    assert Payment(state, call).is_made and call.bill is not None
    call.bill.num_sent = 1
    assert not Payment(state, call).is_made  # it was answered with an error, and may not be sent again
    assert Payment(state, call, second).is_made and call.bill.outside is second
    counts = {name: account.counts for name, account in state.accounting.counters._accounts.items()}
    of_first = sorted((found.tokens_today, found.running) for name, found in counts.items() if "cloud" in name)
    of_second = sorted((found.tokens_today, found.running) for name, found in counts.items() if "other" in name)
    assert (of_first, of_second) == ([(0, 0), (1, 0)], [(1, 1), (1000, 1)])
    (row,) = state.usage.report(1, time.time())
    assert (row.model, row.sent) == ("cloud", 1)


def test_key_is_never_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("sk-\x01secret")
    with pytest.raises(KeyProblemError) as caught:
        read_key(model(api_key_file=str(file)))
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("LB_TEST_EMPTY", " \n")
    with pytest.raises(KeyProblemError, match="LB_TEST_EMPTY"):
        read_key(model(api_key_env="LB_TEST_EMPTY"))


def test_file_of_an_older_version_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    with sqlite3.connect(path) as old:
        old.execute(
            "CREATE TABLE usage (day TEXT NOT NULL, tenant TEXT NOT NULL, model TEXT NOT NULL, "
            "requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, "
            "cached_tokens INTEGER NOT NULL, PRIMARY KEY (day, tenant, model)) WITHOUT ROWID"
        )
        old.execute("INSERT INTO usage VALUES ('2027-01-15', 'a', 'm', 1, 2, 3, 4)")
        old.execute("PRAGMA user_version = 1")
    old.close()
    store = UsageStore(path)
    store.open()
    store.add("a", "m", now_s=NOW_S, prompt_tokens=5, completion_tokens=6, sent=1, cost_nanos=7)
    store.flush()
    (row,) = store.report(1, NOW_S)
    assert (row.requests, row.prompt_tokens, row.cached_tokens, row.sent, row.cost_nanos) == (2, 7, 4, 1, 7)
    spent = spent_today(store, NOW_S)
    assert spent["external:m:requests_per_day"] == 1
    assert spent["external:m:money_per_day"] == 7
    assert spent["a"] == 16
    store.close()


def test_models_at_one_address_keep_their_endpoints_when_another_is_added() -> None:
    table = LiveTable(GatewayLimits())
    one, other, third = (model(name=name) for name in ("one", "other", "third"))
    table.set_external((one, other))
    before = {pool.model: pool.upstreams for pool in table.pools()}
    table.set_external((one, other, third))
    after = {pool.model: pool.upstreams for pool in table.pools()}
    assert [[upstream.model for upstream in after[name]] for name in after] == [["one"], ["other"], ["third"]]
    assert (after["one"], after["other"]) == (before["one"], before["other"])
