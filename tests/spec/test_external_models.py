"""External models in the fleet file: where they may stand, what is wrong with them, and what gateways get."""

from __future__ import annotations

import pytest

from longboat.core.errors import UserInputError
from longboat.core.external import Budget, Overflow, Price
from longboat.spec.diff import diff
from longboat.spec.files.dump import dump_fleet, fleet_digest
from longboat.spec.files.load import load_fleet, read_fleet
from longboat.spec.files.standalone_gateway import alone_from, parse_alone
from longboat.spec.policy import policy_of

CLOUD = """
  - name: cloud
    engine:
      kind: external
      urls: [https://api.example.com/v1/, http://10.0.0.1:8000]
      model: big-7
      api_key_env: PROVIDER_KEY
      limits: {requests_per_day: 5, money_per_day: 2.5}
      price: {input_per_million: 0.5, output_per_million: 1.5, currency: EUR}
"""
WHOLE = f"""
models:
  - {{source: builtin:tiny, name: local}}{CLOUD}
gateway:
  overflow: {{local: {{to: cloud, after_s: 2}}}}
  fallbacks: {{local: [cloud]}}
  tenants: [{{name: anonymous, external: true}}]
"""


def test_external_model_is_apart_and_comes_back_from_the_text() -> None:
    fleet = load_fleet(WHOLE, "fleet.yaml")
    assert [model.name for model in fleet.models] == ["local"]
    assert fleet.names == ("local", "cloud")
    assert load_fleet(dump_fleet(fleet), "fleet.yaml") == fleet
    policy = policy_of(fleet.gateway, external=fleet.external)
    (cloud,) = policy.external
    assert cloud.urls == ("https://api.example.com/v1", "http://10.0.0.1:8000")
    assert (cloud.model, cloud.api_key_env) == ("big-7", "PROVIDER_KEY")
    assert cloud.limits == Budget(requests_per_day=5, money_per_day=2.5)
    assert cloud.price == Price(input_per_million=0.5, output_per_million=1.5, currency="EUR")
    assert policy.overflow == {"local": Overflow(to="cloud", after_s=2.0)}


def test_fleet_of_external_models_only() -> None:
    fleet = load_fleet(f"models:{CLOUD}", "fleet.yaml")
    assert fleet.models == ()
    assert load_fleet(dump_fleet(fleet), "fleet.yaml") == fleet


def test_change_of_an_external_model_is_seen() -> None:
    before = load_fleet(WHOLE, "fleet.yaml")
    after = load_fleet(WHOLE.replace("requests_per_day: 5", "requests_per_day: 6"), "fleet.yaml")
    assert diff(before, after).lines() == ["~ cloud.engine.limits.requests_per_day: 5 -> 6"]
    assert fleet_digest(before) != fleet_digest(after)


MISTAKES = {
    "no scheme": ("urls: [api.example.com/v1]", "urls[0]", "not an address", "https://api.example.com/v1"),
    "a password": ("urls: ['https://u:p@h/v1']", "urls[0]", "holds a password", "api_key_env"),
    "a query": ("urls: ['https://h/v1?a=b']", "urls[0]", "a query or a fragment", "write https://h/v1, and"),
    "twice": ("urls: [https://h, https://h/]", "urls", "twice", "keep one"),
    "no address": ("urls: []", "urls", "there is no address", "https://api.example.com/v1"),
    "a key": ("urls: [https://h], api_key: sk-1", "api_key", "no field", "api_key_env: NAME"),
    "a url": ("urls: [https://h], url: https://h", "url", "no field", "urls: ["),
    "two keys": (
        "urls: [https://h], api_key_env: K, api_key_file: /k",
        "api_key_file",
        "both given",
        "one of the two",
    ),
    "a secret header": ("urls: [https://h], headers: {x-api-key: v}", "headers", "secret", "api_key_header: x-api-key"),
    "an own header": ("urls: [https://h], headers: {host: v}", "headers", "writes host itself", "leave host out"),
    "a proxy": ("urls: [https://h], proxy: 'socks5://p:1'", "proxy", "not http://HOST:PORT", "proxy.example.com"),
    "money without a price": ("urls: [https://h], limits: {money_per_day: 1}", "price", "needs a price", "price: {"),
    "a currency": (
        "urls: [https://h], price: {input_per_million: 1, output_per_million: 1, currency: euro}",
        "price.currency",
        "three letters",
        "EUR",
    ),
    "half a price": (
        "urls: [https://h], price: {input_per_million: 1}",
        "price.output_per_million",
        "is missing",
        "output_per_million: 1.5",
    ),
}


@pytest.mark.parametrize(("engine", "where", "what", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_refused_with_its_place_and_a_way_out(engine: str, where: str, what: str, hint: str) -> None:
    text = f"models: [builtin:tiny, {{name: c, engine: {{kind: external, {engine}}}}}]"
    (problem,) = read_fleet(text, "fleet.yaml").problems
    assert problem.where == f"models[1].engine.{where}"
    assert what in problem.what
    assert hint in problem.hint
    assert "sk-1" not in f"{problem}{problem.hint}"
    alone = f"upstreams: []\nmodels: [{{name: c, engine: {{kind: external, {engine}}}}}]"
    with pytest.raises(UserInputError) as caught:
        alone_from(parse_alone(alone, "gateway.yaml"), "gateway.yaml")
    (problem,) = caught.value.problems
    assert problem.where == f"models[0].engine.{where}"


OTHERS = {
    "before others": (f"models:{CLOUD}  - builtin:tiny", "models[0]", "move it after models[1]"),
    "a list of its own": (f"models: [builtin:tiny]\nexternal:{CLOUD}", "external", "write under models"),
    "no name": (
        "models: [builtin:tiny, {engine: {kind: external, urls: [https://h]}}]",
        "models[1].name",
        "give the model a name",
    ),
    "a source": (
        "models: [builtin:tiny, {name: c, source: /m, engine: {kind: external, urls: [https://h]}}]",
        "models[1].source",
        "leave source out",
    ),
    "nobody may": (
        f"models:\n  - builtin:tiny{CLOUD}gateway: {{fallbacks: {{tiny: [cloud]}}}}",
        "gateway.fallbacks.tiny[0]",
        "write tenants: [{name: anonymous, external: true}]",
    ),
    "overflow to nowhere": (
        "models: [builtin:tiny]\ngateway: {overflow: {tiny: {to: clowd}}}",
        "gateway.overflow.tiny.to",
        "known: tiny",
    ),
    "overflow to itself": (
        "models: [builtin:tiny]\ngateway: {overflow: {tiny: {to: tiny}}}",
        "gateway.overflow.tiny.to",
        "name another model",
    ),
}


@pytest.mark.parametrize(("text", "where", "hint"), OTHERS.values(), ids=OTHERS)
def test_place_of_an_external_model_is_checked(text: str, where: str, hint: str) -> None:
    (problem,) = read_fleet(text, "fleet.yaml").problems
    assert problem.where == where
    assert hint in problem.hint
