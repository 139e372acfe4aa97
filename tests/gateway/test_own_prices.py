"""Prices of the fleet's own models: what each tenant's tokens cost is written down with the price of that moment."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fake_upstream import Seen
from gateway_lab import RawClient, push_policy, settled

from longboat.cluster.fleet.adapters import values_with_adapters, with_adapter
from longboat.cluster.fleet.deployed import plain_policy
from longboat.core.external import Price
from longboat.core.policy import Policy
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of
from longboat.spec.types.adapters import AdapterSpec

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "row"}]}
FLEET = """
name: t
models: [{{name: a, source: "builtin:tiny", engine: fake, adapters: [/x/red]}}, {more}]
gateway: {{prices: {prices}}}
"""
OUTSIDE = "{name: cloud, engine: {kind: external, urls: [https://x.example/v1]}}"


async def answer(seen: Seen, status: int) -> None:
    body = msgspec.json.encode({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 20}})
    await seen.send(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))


async def test_tokens_cost_the_price_of_their_moment(make_gateway: Any, make_upstream: Any) -> None:
    status = [200]
    upstream = await make_upstream(lambda seen: answer(seen, status[0]))
    gateway = await make_gateway(upstream, policy=Policy())

    async def cost_after(policy: Policy) -> dict[str, int]:
        push_policy(gateway, policy)
        client = await RawClient.to(gateway)
        await client.post(BODY)
        client.abort()
        rows = settled(gateway).usage.report(1, gateway.state.clock.unix_s())
        return {row.currency: row.cost_nanos for row in rows}

    dear = Policy(prices={"tiny": Price(input_per_million=1.0, output_per_million=2.0)})
    cheap = Policy(prices={"tiny": Price(input_per_million=0.1, output_per_million=0.1, currency="EUR")})
    assert await cost_after(Policy()) == {"": 0}
    assert await cost_after(dear) == {"": 0, "USD": 50_000}
    assert await cost_after(Policy(prices={"other": dear.prices["tiny"]})) == {"": 0, "USD": 50_000}
    assert await cost_after(cheap) == {"": 0, "USD": 50_000, "EUR": 3_000}
    status[0] = 400
    assert await cost_after(dear) == {"": 0, "USD": 50_000, "EUR": 3_000}  # a request that failed costs nothing


def test_price_of_a_model_holds_for_its_adapters() -> None:
    text = FLEET.format(prices="{a: {input_per_million: 1, output_per_million: 2, currency: EUR}}", more=OUTSIDE)
    fleet = load_fleet(text, "t")
    policy = policy_of(fleet.gateway, external=fleet.external, served=fleet.served(), adapters=fleet.adapters())
    price = Price(input_per_million=1.0, output_per_million=2.0, currency="EUR")
    assert policy.prices == {"a": price, "red": price}


def test_an_adapter_that_is_added_later_has_the_price_of_its_model_too() -> None:
    text = FLEET.format(prices="{a: {input_per_million: 1, output_per_million: 2}}", more=OUTSIDE)
    fleet = load_fleet(text, "t")
    before = policy_of(fleet.gateway, external=fleet.external, served=fleet.served(), adapters=fleet.adapters())
    changed = with_adapter(fleet, "a", AdapterSpec(name="blue", source="/x/blue"))
    told = values_with_adapters({"policy": plain_policy(before)}, changed)["policy"]
    assert set(told["prices"]) == {"a", "red", "blue"}
    of_file = policy_of(
        changed.gateway, external=changed.external, served=changed.served(), adapters=changed.adapters()
    )
    assert told == plain_policy(of_file)


@pytest.mark.parametrize(("name", "told"), [("b", "no model 'b'"), ("cloud", "is an external model")])
def test_only_models_of_the_fleet_have_prices(name: str, told: str) -> None:
    with pytest.raises(Exception) as caught:
        load_fleet(
            FLEET.format(prices=f"{{{name}: {{input_per_million: 1, output_per_million: 2}}}}", more=OUTSIDE), "t"
        )
    assert told in str(vars(caught.value))
