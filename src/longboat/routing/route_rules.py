"""Finds the models that may answer a request: rules, aliases with canaries, fallbacks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from longboat.core.policy import ANONYMOUS, Alias, Policy, RouteRule

__all__ = ("RequestFacts", "Resolution", "RuleBook")

_ANY = "*"
_HEADER = "header:"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """The facts of a request that rules and canaries use."""

    model: str
    tenant: str
    tags: tuple[str, ...] = ()  # the tenant's tags
    headers: Mapping[str, str] = field(default_factory=dict)  # header (lower case) → value
    # top-level fields of the body as text; only those in ``RuleBook.field_names`` are needed
    fields: Mapping[str, str] = field(default_factory=dict)
    prompt_tokens: int = 0
    context_tokens: int = 0  # prompt and requested completion together
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The destination of a request."""

    pools: tuple[str, ...]  # models: the first choice, then its fallbacks
    requested: str
    why: str  # for the routing record


class RuleBook:
    """A policy's rules, aliases and fallbacks, prepared for the models that exist. Rebuilt when either changes."""

    def __init__(self, policy: Policy, models: Iterable[str]) -> None:
        self._models = frozenset(models)
        self._rules = policy.rules
        self._fallbacks = policy.fallbacks
        self._canaries = {alias.name: _Canary(alias, self._models) for alias in policy.aliases}
        # body fields that ``RequestFacts`` must hold; other fields are not read
        self.field_names = frozenset(name for rule in policy.rules for name in rule.fields)
        sticky = (alias.sticky.removeprefix(_HEADER) for alias in policy.aliases if alias.sticky.startswith(_HEADER))
        # headers that ``RequestFacts`` must hold; other headers are not read
        self.header_names = frozenset(
            name.lower()
            for names in ((name for rule in policy.rules for name in rule.headers), sticky)
            for name in names
        )

    @property
    def needs_facts(self) -> bool:
        """Whether ``resolve`` must be called. False: each model serves its own requests only."""
        return bool(self._rules or self._canaries or self._fallbacks)

    def known_names(self) -> tuple[str, ...]:
        """Return the models, and the aliases that lead to one, sorted."""
        aliases = {name for name, canary in self._canaries.items() if canary.pools}
        return tuple(sorted(self._models | aliases))

    def resolve(self, facts: RequestFacts, request_id: str) -> Resolution | None:
        """Return the models to try, in order; None if the name, or the target of its rule, is not a known model.

        request_id: spreads requests that have nothing to be sticky by
        """
        number, target = self._target(facts)
        first = self._model_of(target, facts, request_id)
        if first is None:
            return None
        names = (*self._fallbacks.get(first, ()), *(self._fallbacks.get(target, ()) if target != first else ()))
        others = (self._model_of(name, facts, request_id) for name in names)
        pools = tuple(dict.fromkeys((first, *(model for model in others if model is not None))))
        return Resolution(pools=pools, requested=facts.model, why=_why(number, target, first))

    def _target(self, facts: RequestFacts) -> tuple[int, str]:
        """Return the number of the matching rule, from 1, and its target; 0 and the requested name if none matched."""
        for number, rule in enumerate(self._rules, 1):
            if _matches(rule, facts):
                return number, rule.to
        return 0, facts.model

    def _model_of(self, name: str, facts: RequestFacts, request_id: str) -> str | None:
        """Return the model for a name. An alias hides a model of the same name, so a model can be split unnoticed."""
        canary = self._canaries.get(name)
        if canary is not None:
            return canary.choose(facts, request_id)
        return name if name in self._models else None


class _Canary:
    """The existing pools of an alias, and the choice among them."""

    __slots__ = ("_name", "_sticky", "_total", "pools")

    def __init__(self, alias: Alias, models: frozenset[str]) -> None:
        self._name = alias.name
        self._sticky = alias.sticky
        self.pools = [(pool.model, pool.weight) for pool in alias.pools if pool.model in models and pool.weight > 0]
        self._total = sum(weight for _, weight in self.pools)

    def choose(self, facts: RequestFacts, request_id: str) -> str | None:
        if len(self.pools) < 2:
            return self.pools[0][0] if self.pools else None
        point = _point(self._name, *self._identity(facts, request_id)) * self._total
        for model, weight in self.pools:
            point -= weight
            if point < 0:
                return model
        return self.pools[-1][0]

    def _identity(self, facts: RequestFacts, request_id: str) -> tuple[str, str]:
        """Return what keeps its pool. The anonymous tenant keeps none: all its requests would get the same pool."""
        value = ""
        if self._sticky.startswith(_HEADER):
            value = facts.headers.get(self._sticky.removeprefix(_HEADER).lower(), "")
        elif self._sticky == "user":
            value = facts.user
        if self._sticky == "request" or (not value and facts.tenant == ANONYMOUS):
            return "", request_id
        return facts.tenant, value


def _point(*parts: str) -> float:
    """Map ``parts`` to a number in [0, 1) that is the same in every process."""
    data = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big") / (1 << 48)


def _matches(rule: RouteRule, facts: RequestFacts) -> bool:
    return (
        rule.model in (_ANY, facts.model)
        and (not rule.tenants or facts.tenant in rule.tenants)
        and (not rule.tags or not set(rule.tags).isdisjoint(facts.tags))
        and _within(facts.prompt_tokens, rule.min_prompt_tokens, rule.max_prompt_tokens)
        and _within(facts.context_tokens, rule.min_context_tokens, rule.max_context_tokens)
        and all(_has(facts.headers, name.lower(), value) for name, value in rule.headers.items())
        and all(_has(facts.fields, name, value) for name, value in rule.fields.items())
    )


def _within(value: int, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _has(values: Mapping[str, str], name: str, wanted: str) -> bool:
    value = values.get(name)
    return value is not None and wanted in (_ANY, value)


def _why(rule_number: int, target: str, model: str) -> str:
    why = f"rule {rule_number}" if rule_number else "name"
    return why if target == model else f"{why}, alias {target}"
