"""Tests that names become models: rules in order, canaries that stick, fallbacks that exist."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.policy import ANONYMOUS, Alias, Policy, RouteRule, WeightedPool
from longboat.routing.route_rules import RequestFacts, Resolution, RuleBook

MODELS = ("large", "small", "long", "new")


def facts(model: str = "large", tenant: str = "acme", **more: Any) -> RequestFacts:
    return RequestFacts(model=model, tenant=tenant, **more)


def canary(*, sticky: str = "user", new: float = 1.0) -> Policy:
    pools = (WeightedPool(model="large", weight=10.0 - new), WeightedPool(model="new", weight=new))
    return Policy(aliases=(Alias(name="chat", pools=pools, sticky=sticky),))


def first(book: RuleBook, asked: RequestFacts, request_id: str = "r") -> str:
    found = book.resolve(asked, request_id)
    assert found is not None
    return found.pools[0]


def test_without_rules_each_model_is_itself() -> None:
    book = RuleBook(Policy(), MODELS)
    assert not book.needs_facts
    assert book.resolve(facts(), "r") == Resolution(pools=("large",), requested="large", why="name")
    assert book.resolve(facts("huge"), "r") is None


def test_known_names_are_models_and_aliases_that_lead_somewhere() -> None:
    gone = Alias(name="old", pools=(WeightedPool(model="gone"),))
    alias = Alias(name="chat", pools=(WeightedPool(model="large"), WeightedPool(model="gone")))
    book = RuleBook(Policy(aliases=(gone, alias)), MODELS)
    assert book.known_names() == ("chat", "large", "long", "new", "small")
    assert book.resolve(facts("old"), "r") is None
    assert book.resolve(facts("chat"), "r") == Resolution(pools=("large",), requested="chat", why="name, alias chat")


def test_fallbacks_come_after_in_order_without_unknown_ones_and_doubles() -> None:
    book = RuleBook(Policy(fallbacks={"large": ("gone", "small", "large", "long")}), MODELS)
    assert book.needs_facts
    found = book.resolve(facts(), "r")
    assert found is not None and found.pools == ("large", "small", "long")


def test_alias_hides_a_model_of_its_name_and_has_fallbacks_of_both() -> None:
    alias = Alias(name="large", pools=(WeightedPool(model="new"),))
    book = RuleBook(Policy(aliases=(alias,), fallbacks={"new": ("small",), "large": ("long",)}), MODELS)
    found = book.resolve(facts(), "r")
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
    (RouteRule(to="small", tenants=("acme",), min_context_tokens=11), {"context_tokens": 10}, False),
]


@pytest.mark.parametrize(("rule", "more", "matches"), RULES)
def test_rule_matches_when_all_its_parts_do(rule: RouteRule, more: dict[str, Any], matches: bool) -> None:
    book = RuleBook(Policy(rules=(rule,)), MODELS)
    found = book.resolve(facts(**more), "r")
    assert found is not None
    assert found.pools == (("small",) if matches else ("large",))
    assert found.why == ("rule 1" if matches else "name")


def test_first_rule_counts_and_may_name_an_alias() -> None:
    rules = (RouteRule(to="chat", tenants=("acme",)), RouteRule(to="small"))
    book = RuleBook(Policy(rules=rules, aliases=canary().aliases), MODELS)
    found = book.resolve(facts("anything"), "r")
    assert found is not None and found.pools[0] in ("large", "new") and found.why == "rule 1, alias chat"
    assert found.requested == "anything"
    assert first(book, facts("anything", "other")) == "small"


def test_rule_to_a_model_that_is_gone_sends_nowhere_else() -> None:
    book = RuleBook(Policy(rules=(RouteRule(to="private", tags=("secret",)),)), MODELS)
    assert book.resolve(facts(tags=("secret",)), "r") is None


def test_needed_fields_and_headers_are_named() -> None:
    rule = RouteRule(to="small", headers={"X-A": "1"}, fields={"service_tier": "flex"})
    book = RuleBook(Policy(rules=(rule,)), MODELS)
    assert (book.header_names, book.field_names) == ({"x-a"}, {"service_tier"})
