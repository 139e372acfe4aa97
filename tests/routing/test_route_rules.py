"""Tests that names become models: rules in order, canaries that stick, fallbacks that exist."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.policy import ANONYMOUS, Alias, Policy, RouteRule, WeightedPool
from longboat.routing.route_rules import HeadRoutes, Overflowing, Resolution, RuleBook

MODELS = ("large", "small", "long", "new")


def facts(model: str = "large", tenant: str = "acme", **more: Any) -> dict[str, Any]:
    """What rules and canaries look at, of the head and of the body."""
    return {"model": model, "tenant": tenant, **more}


def resolve(book: RuleBook, asked: dict[str, Any], request_id: str) -> Resolution | None:
    body = dict(asked)
    head = {name: body.pop(name, default) for name, default in (("tenant", ""), ("tags", ()), ("headers", {}))}
    return HeadRoutes(book, **head).resolve(request_id=request_id, **body)


def canary(*, sticky: str = "user", new: float = 1.0) -> Policy:
    pools = (WeightedPool(model="large", weight=10.0 - new), WeightedPool(model="new", weight=new))
    return Policy(aliases=(Alias(name="chat", pools=pools, sticky=sticky),))


def first(book: RuleBook, asked: dict[str, Any], request_id: str = "r") -> str:
    found = resolve(book, asked, request_id)
    assert found is not None
    return found.pools[0]


def test_without_rules_each_model_is_itself() -> None:
    book = RuleBook(Policy(), MODELS)
    assert resolve(book, facts(), "r") == Resolution(pools=("large",), requested="large", why="name")
    assert resolve(book, facts("huge"), "r") is None


def test_known_names_are_models_and_aliases_that_lead_somewhere() -> None:
    gone = Alias(name="old", pools=(WeightedPool(model="gone"),))
    alias = Alias(name="chat", pools=(WeightedPool(model="large"), WeightedPool(model="gone")))
    book = RuleBook(Policy(aliases=(gone, alias)), MODELS)
    assert book.known_names() == ("chat", "large", "long", "new", "small")
    assert resolve(book, facts("old"), "r") is None
    assert resolve(book, facts("chat"), "r") == Resolution(pools=("large",), requested="chat", why="name, alias chat")


def test_fallbacks_come_after_in_order_without_unknown_ones_and_doubles() -> None:
    book = RuleBook(Policy(fallbacks={"large": ("gone", "small", "large", "long")}), MODELS)
    found = resolve(book, facts(), "r")
    assert found is not None and found.pools == ("large", "small", "long")


def test_models_that_cannot_serve_a_request_leave_its_way() -> None:
    way = Resolution(("a", "b", "c", "o"), "a", "name", Overflowing(at_pool=3, num_pools=3, after_s=5.0))
    assert way.keeping(lambda model: model != "b") == Resolution(
        ("a", "c", "o"), "a", "name", Overflowing(at_pool=2, num_pools=2, after_s=5.0)
    )
    assert way.keeping(lambda model: model == "c") == Resolution(("a", "c"), "a", "name")
    among = way._replace(pools=("a", "b", "c"), overflow=Overflowing(at_pool=2, num_pools=3, after_s=5.0))
    assert among.keeping(lambda model: model == "c").overflow == Overflowing(at_pool=1, num_pools=2, after_s=5.0)


def test_alias_hides_a_model_of_its_name_and_has_fallbacks_of_both() -> None:
    alias = Alias(name="large", pools=(WeightedPool(model="new"),))
    book = RuleBook(Policy(aliases=(alias,), fallbacks={"new": ("small",), "large": ("long",)}), MODELS)
    found = resolve(book, facts(), "r")
    assert found is not None and found.pools == ("new", "small", "long")


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_canary_sticks_to_the_user_in_every_process(user: str, one: str, two: str) -> None:
    asked = facts("chat", user=user)
    assert first(RuleBook(canary(), MODELS), asked, one) == first(RuleBook(canary(), MODELS), asked, two)


@pytest.mark.parametrize("sticky", ["user", "request", "tenant", "header:X-Team"])
def test_canary_gets_its_part(sticky: str) -> None:
    book = RuleBook(canary(sticky=sticky), MODELS)
    asked = [facts("chat", f"t{i}", user=f"u{i}", headers={"x-team": f"h{i}"}) for i in range(4000)]
    counts = Counter(first(book, one, f"r{i}") for i, one in enumerate(asked))
    assert 300 < counts["new"] < 500


def test_larger_canary_keeps_those_it_had() -> None:
    small, large = RuleBook(canary(new=1.0), MODELS), RuleBook(canary(new=3.0), MODELS)
    users = [facts("chat", user=f"u{i}") for i in range(500)]
    assert all(first(large, user) == "new" for user in users if first(small, user) == "new")


def test_nobody_in_particular_sticks_to_nothing() -> None:
    book = RuleBook(canary(sticky="user"), MODELS)
    found = {first(book, facts("chat", ANONYMOUS), f"r{i}") for i in range(200)}
    assert found == {"large", "new"}


def test_header_of_a_canary_is_asked_for() -> None:
    book = RuleBook(canary(sticky="header:X-Team"), MODELS)
    assert book.header_names == {"x-team"}
    teams = {first(book, facts("chat", headers={"x-team": "red"}), f"r{i}") for i in range(50)}
    assert len(teams) == 1


RULES = [
    (RouteRule(to="small", model="large"), {}, True),
    (RouteRule(to="small", model="long"), {}, False),
    (RouteRule(to="small", tenants=("acme", "x")), {}, True),
    (RouteRule(to="small", tenants=("x",)), {}, False),
    (RouteRule(to="small", tags=("gold", "eu")), {"tags": ("eu",)}, True),
    (RouteRule(to="small", tags=("gold",)), {}, False),
    (RouteRule(to="small", headers={"X-Tier": "fast"}), {"headers": {"x-tier": "fast"}}, True),
    (RouteRule(to="small", headers={"x-tier": "*"}), {"headers": {"x-tier": "slow"}}, True),
    (RouteRule(to="small", headers={"x-tier": "*"}), {}, False),
    (RouteRule(to="small", fields={"service_tier": "flex"}), {"fields": {"service_tier": "flex"}}, True),
    (RouteRule(to="small", fields={"service_tier": "flex"}), {"fields": {"service_tier": "auto"}}, False),
    (RouteRule(to="small", min_prompt_tokens=10, max_prompt_tokens=10), {"prompt_tokens": 10}, True),
    (RouteRule(to="small", max_prompt_tokens=9), {"prompt_tokens": 10}, False),
    (RouteRule(to="small", min_context_tokens=11), {"context_tokens": 10}, False),
    (RouteRule(to="small", min_context_tokens=11), {"context_tokens": 2**63 + 5}, True),
    (RouteRule(to="small", tenants=("acme",), min_context_tokens=11), {"context_tokens": 10}, False),
]


@pytest.mark.parametrize(("rule", "more", "matches"), RULES)
def test_rule_matches_when_all_its_parts_do(rule: RouteRule, more: dict[str, Any], matches: bool) -> None:
    book = RuleBook(Policy(rules=(rule,)), MODELS)
    found = resolve(book, facts(**more), "r")
    assert found is not None
    assert found.pools == (("small",) if matches else ("large",))
    assert found.why == ("rule 1" if matches else "name")


def test_first_rule_counts_and_may_name_an_alias() -> None:
    rules = (RouteRule(to="chat", tenants=("acme",)), RouteRule(to="small"))
    book = RuleBook(Policy(rules=rules, aliases=canary().aliases), MODELS)
    found = resolve(book, facts("anything"), "r")
    assert found is not None and found.pools[0] in ("large", "new") and found.why == "rule 1, alias chat"
    assert found.requested == "anything"
    assert first(book, facts("anything", "other")) == "small"


def test_rule_to_a_model_that_is_gone_sends_nowhere_else() -> None:
    book = RuleBook(Policy(rules=(RouteRule(to="private", tags=("secret",)),)), MODELS)
    assert resolve(book, facts(tags=("secret",)), "r") is None


def test_needed_fields_and_headers_are_named() -> None:
    rule = RouteRule(to="small", headers={"X-A": "1"}, fields={"service_tier": "flex"})
    book = RuleBook(Policy(rules=(rule,)), MODELS)
    assert (book.header_names, book.field_names) == ({"x-a"}, {"service_tier"})


NAMES = st.sampled_from([*MODELS, "chat", "gone"])
ANY_RULE = st.builds(
    RouteRule,
    to=NAMES,
    model=st.sampled_from(["*", "large", "chat"]),
    tenants=st.sampled_from([(), ("acme",), ("x",)]),
    headers=st.sampled_from([{}, {"x-tier": "*"}]),
    fields=st.sampled_from([{}, {"service_tier": "flex"}]),
    min_prompt_tokens=st.none() | st.integers(0, 20),
    max_context_tokens=st.none() | st.integers(0, 20),
)
POLICIES = st.builds(
    Policy,
    rules=st.lists(ANY_RULE, max_size=4).map(tuple),
    aliases=st.sampled_from(["user", "request", "tenant", "header:x-tier"]).map(
        lambda kind: canary(sticky=kind).aliases
    ),
    fallbacks=st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=2).map(tuple), max_size=3),
)
BODIES = st.fixed_dictionaries(
    {"model": NAMES, "request_id": st.sampled_from(["r1", "r2", "r3"])},
    optional={
        "user": st.sampled_from(["u1", "u2"]),
        "prompt_tokens": st.integers(0, 20),
        "context_tokens": st.integers(0, 20),
        "fields": st.just({"service_tier": "flex"}),
    },
)


@given(
    POLICIES, st.sampled_from(["acme", ANONYMOUS]), st.sampled_from([{}, {"x-tier": "a"}]), st.lists(BODIES, max_size=6)
)
def test_routes_of_a_head_do_not_depend_on_the_requests_before(
    policy: Policy, tenant: str, headers: dict[str, str], bodies: list[dict[str, Any]]
) -> None:
    book = RuleBook(policy, MODELS)
    shared = HeadRoutes(book, tenant, (), headers)
    for body in bodies:
        assert shared.resolve(**body) == HeadRoutes(book, tenant, (), headers).resolve(**body)


@given(POLICIES, BODIES)
def test_first_rule_that_fits_decides(policy: Policy, body: dict[str, Any]) -> None:
    """Said once more, rule by rule, as a policy is read."""

    def fits(rule: RouteRule) -> bool:
        prompt, context = body.get("prompt_tokens", 0), body.get("context_tokens", 0)
        return (
            rule.model in ("*", body["model"])
            and rule.tenants in ((), ("acme",))
            and not rule.headers
            and (not rule.fields or "fields" in body)
            and (rule.min_prompt_tokens is None or prompt >= rule.min_prompt_tokens)
            and (rule.max_context_tokens is None or context <= rule.max_context_tokens)
        )

    target = next((rule.to for rule in policy.rules if fits(rule)), body["model"])
    found = HeadRoutes(RuleBook(policy, MODELS), "acme", (), {}).resolve(**body)
    if target == "gone":
        assert found is None
    else:
        assert found is not None
        assert found.pools[0] in (("large", "new") if target == "chat" else (target,))


def test_names_that_no_model_has_take_no_memory() -> None:
    head = HeadRoutes(RuleBook(Policy(rules=(RouteRule(to="large"),)), MODELS), "acme", (), {})
    assert head.resolve("x" * 256, "r") is not None
    assert head.resolve("x" * 257, "r") is None
    plain = HeadRoutes(RuleBook(Policy(), MODELS), "acme", (), {})
    for number in range(100):
        assert plain.resolve(f"unknown-{number}", "r") is None
    assert plain.resolve("large", "r") is not None
    assert list(plain._branches) == ["large"]
