"""A tenant's limit of money: a request reserves what it may cost, and pays what it did cost."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from fake_upstream import Seen
from gateway_lab import RawClient, push_policy, settled

from longboat.core.errors import UserInputError
from longboat.core.external import ExternalModel, Price
from longboat.core.policy import ANONYMOUS, Policy, TenantPolicy
from longboat.gateway.external.budgets import limits_by_name, spent_today
from longboat.gateway.records.usage_store import UsageStore
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "row"}], "max_tokens": 1000}
PRICES = {"tiny": Price(input_per_million=0.0, output_per_million=1000.0, currency="EUR")}  # a token: 0.001
FLEET = """
name: t
models: [{{name: a, source: "builtin:tiny", engine: fake}}, {{name: cloud, engine: {{kind: external,
  urls: [https://x.example/v1]{external}}}}}]
gateway: {{auth: keys, tenants: [{{name: t, money_per_day: 2.5}}]{prices}}}
"""
IN_EUR, IN_USD = (f"{{input_per_million: 1, output_per_million: 2, currency: {name}}}" for name in ("EUR", "USD"))


def limited(money_per_day: float, **more: Any) -> Policy:
    tenant = TenantPolicy(name=ANONYMOUS, money_per_day=money_per_day, **more)
    return Policy(tenants=(tenant,), prices=PRICES)


async def answer(seen: Seen) -> None:
    body = msgspec.json.encode({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 20}})
    await seen.send(b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


async def ask(gateway: Any, **changes: Any) -> tuple[int, Any, Any]:
    client = await RawClient.to(gateway)
    found = await client.post({**BODY, **changes})
    client.abort()
    settled(gateway)
    return found.status, found.headers, msgspec.json.decode(found.body)


async def test_a_request_above_the_rest_of_the_day_is_refused(make_gateway: Any, make_upstream: Any) -> None:
    gateway = await make_gateway(await make_upstream(answer), policy=limited(1.05))
    assert (await ask(gateway))[0] == 200  # 1.00 was reserved, and 0.02 spent
    assert (await ask(gateway))[0] == 200
    assert (await ask(gateway, max_tokens=1020))[0] == 429
    status, headers, document = await ask(gateway, max_tokens=1020)
    assert (status, document["error"]["code"]) == (429, "money_per_day")
    assert "has used 0.0400 of 1.05 EUR a day. Try again in " in document["error"]["message"]
    assert 0 < int(headers["retry-after"]) <= 86_401
    assert (await ask(gateway, max_tokens=900))[0] == 200
    rendered = gateway.state.metrics.snapshot()
    assert rendered["charges"] == [[ANONYMOUS, "EUR", 60_000_000]]
    assert ["money_per_day", ANONYMOUS, 2] in rendered["refusals"]


def answering(document: Any, status: int = 200) -> Any:
    async def answer(seen: Seen) -> None:
        body = msgspec.json.encode(document)
        await seen.send(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))

    return answer


async def test_an_answer_without_usage_costs_its_estimate(make_gateway: Any, make_upstream: Any) -> None:
    gateway = await make_gateway(await make_upstream(answering({"choices": []})), policy=limited(1.05))
    assert (await ask(gateway, max_tokens=600))[0] == 200
    assert (await ask(gateway, max_tokens=600))[0] == 429  # 0.6 are spent
    assert gateway.state.metrics.snapshot()["charges"] == [[ANONYMOUS, "EUR", 600_000_000]]
    (row,) = gateway.state.usage.report(1, time.time())
    assert (row.completion_tokens, row.cost_nanos) == (600, 600_000_000)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", BODY, 400),
        ("/tokenize", {"model": "tiny", "prompt": "x" * 8000}, 200),
    ],
)
async def test_an_answer_without_usage_is_free_where_nothing_is_generated(
    make_gateway: Any, make_upstream: Any, path: str, body: Any, status: int
) -> None:
    upstream = await make_upstream(answering({"tokens": [1]}, status))
    policy = Policy(tenants=limited(1e6).tenants, prices={"tiny": Price(input_per_million=9, output_per_million=9)})
    gateway = await make_gateway(upstream, policy=policy)
    client = await RawClient.to(gateway)
    assert (await client.post(body, path=path)).status == status
    client.abort()
    (row,) = settled(gateway).usage.report(1, time.time())
    assert (row.prompt_tokens, row.completion_tokens, row.cost_nanos) == (0, 0, 0)


async def test_a_request_that_costs_more_than_a_day_allows_says_so(make_gateway: Any, make_upstream: Any) -> None:
    gateway = await make_gateway(await make_upstream(answer), policy=limited(0.5))
    status, headers, document = await ask(gateway)
    assert status == 429 and "retry-after" not in headers
    assert "This request alone exceeds the limit" in document["error"]["message"]


async def test_models_without_a_price_are_free(make_gateway: Any, make_upstream: Any) -> None:
    gateway = await make_gateway(await make_upstream(answer), policy=limited(0.5))
    push_policy(gateway, Policy(tenants=limited(0.5).tenants, prices={"other": PRICES["tiny"]}))
    assert (await ask(gateway))[0] == 200


async def test_a_request_refused_for_another_limit_holds_no_money(make_gateway: Any, make_upstream: Any) -> None:
    gateway = await make_gateway(await make_upstream(answer), policy=limited(1.5, tokens_per_minute=1))
    _, _, document = await ask(gateway)
    assert document["error"]["code"] == "tokens_per_minute"
    push_policy(gateway, limited(1.5))
    assert (await ask(gateway))[0] == 200


async def test_money_is_held_at_the_dearest_model_that_may_answer(make_gateway: Any, make_upstream: Any) -> None:
    dear = ExternalModel(
        name="cloud", urls=("http://127.0.0.1:9/v1",), price=Price(input_per_million=0, output_per_million=5000)
    )
    tenants = (TenantPolicy(name=ANONYMOUS, money_per_day=2.0, external=True),)
    alone = Policy(tenants=tenants, prices=PRICES)
    gateway = await make_gateway(await make_upstream(answer), policy=alone)
    assert (await ask(gateway))[0] == 200
    with_fallback = Policy(tenants=tenants, prices=PRICES, external=(dear,), fallbacks={"tiny": ("cloud",)})
    push_policy(gateway, with_fallback)
    assert (await ask(gateway))[2]["error"]["code"] == "money_per_day"


async def test_what_was_spent_today_counts_against_a_limit_that_is_set_later(
    make_gateway: Any, make_upstream: Any
) -> None:
    open_ended = Policy(tenants=(TenantPolicy(name=ANONYMOUS),), prices=PRICES)
    gateway = await make_gateway(await make_upstream(answer), policy=open_ended)
    for _ in range(3):
        assert (await ask(gateway))[0] == 200
    for _ in range(2):  # the second time, the limit is not new any more
        push_policy(gateway, limited(1.05))
        status, _, document = await ask(gateway)
        assert (status, document["error"]["code"]) == (429, "money_per_day")
        assert "has used 0.0600 of 1.05 EUR a day" in document["error"]["message"]
    push_policy(gateway, limited(1.06))
    assert (await ask(gateway))[0] == 200


def test_what_was_spent_today_counts_after_a_restart() -> None:
    store = UsageStore(None)
    store.open()
    for model in ("a", "b"):
        store.add("t", model, now_s=1e9, prompt_tokens=1, completion_tokens=2, cost_nanos=30)
    spent = spent_today(store, 1e9)
    (wallet,) = limits_by_name(Policy(tenants=(TenantPolicy(name="t", money_per_day=2.5), TenantPolicy(name="u"))))
    assert spent == {"t": 6, wallet.name: 60} and wallet.tokens_per_day == 2_500_000_000


@pytest.mark.parametrize(
    ("external", "prices", "told"),
    [
        ("", "", "no model has a price"),
        (f", price: {IN_USD}", f", prices: {{a: {IN_EUR}}}", "a in EUR, cloud in USD"),
    ],
)
def test_a_limit_of_money_needs_prices_in_one_currency(external: str, prices: str, told: str) -> None:
    with pytest.raises(UserInputError) as caught:
        load_fleet(FLEET.format(external=external, prices=prices), "t")
    (problem,) = caught.value.problems
    assert problem.where == "gateway.tenants[0].money_per_day" and told in problem.what


@pytest.mark.parametrize(("external", "prices"), [(f", price: {IN_EUR}", ""), ("", f", prices: {{a: {IN_EUR}}}")])
def test_a_price_of_any_model_is_enough(external: str, prices: str) -> None:
    fleet = load_fleet(FLEET.format(external=external, prices=prices), "t")
    policy = policy_of(fleet.gateway, external=fleet.external, served=fleet.served(), adapters=fleet.adapters())
    assert policy.tenants == (TenantPolicy(name="t", money_per_day=2.5),)
