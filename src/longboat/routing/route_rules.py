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
    """What rules and canaries look at.

    tags: the tenant's; headers: lower-case names; fields: top-level fields of the body as text (only those in
    ``RuleBook.field_names`` are needed); context_tokens: prompt and asked-for completion
    """

    model: str
    tenant: str
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    prompt_tokens: int = 0
    context_tokens: int = 0
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """Where a request goes. pools: models, the first choice then its fallbacks; why: for the routing record."""

    pools: tuple[str, ...]
    requested: str
    why: str


class RuleBook:
    """A policy's rules, aliases and fallbacks, prepared for the models that exist. Made anew when either changes.

    field_names, header_names: what ``RequestFacts`` must hold of the request; other fields and headers are not read
    """

    def __init__(self, policy: Policy, models: Iterable[str]) -> None:
        self._models = frozenset(models)
        self._rules = policy.rules
        self._fallbacks = policy.fallbacks
        self._canaries = {alias.name: _Canary(alias, self._models) for alias in policy.aliases}
        self.field_names = frozenset(name for rule in policy.rules for name in rule.fields)
        sticky = (alias.sticky.removeprefix(_HEADER) for alias in policy.aliases if alias.sticky.startswith(_HEADER))
        self.header_names = frozenset(
            name.lower()
            for names in ((name for rule in policy.rules for name in rule.headers), sticky)
            for name in names
        )

    @property
    def needs_facts(self) -> bool:
        """False: each model is answered by itself alone, so ``resolve`` need not be called."""
        return bool(self._rules or self._canaries or self._fallbacks)

    def known_names(self) -> tuple[str, ...]:
        """Models and aliases that lead to one, sorted."""
        aliases = {name for name, canary in self._canaries.items() if canary.pools}
        return tuple(sorted(self._models | aliases))

    def resolve(self, facts: RequestFacts, request_id: str) -> Resolution | None:
        """The models to try, in order; None if the name, or what a rule sends it to, is no known model.

        request_id: spreads requests that nothing sticks to
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
        """Number of the rule that matched, from 1, and where it sends to; 0 and the asked-for name if none did."""
        for number, rule in enumerate(self._rules, 1):
            if _matches(rule, facts):
                return number, rule.to
        return 0, facts.model

    def _model_of(self, name: str, facts: RequestFacts, request_id: str) -> str | None:
        """An alias hides a model of the same name, so that a model can be split without its users knowing."""
        canary = self._canaries.get(name)
        if canary is not None:
            return canary.choose(facts, request_id)
        return name if name in self._models else None


class _Canary:
    """An alias's pools that exist, and how one of them is chosen."""

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
        """What keeps its pool. A tenant that is everybody keeps none: all would get the same pool."""
        value = ""
        if self._sticky.startswith(_HEADER):
            value = facts.headers.get(self._sticky.removeprefix(_HEADER).lower(), "")
        elif self._sticky == "user":
            value = facts.user
        if self._sticky == "request" or (not value and facts.tenant == ANONYMOUS):
            return "", request_id
        return facts.tenant, value


def _point(*parts: str) -> float:
    """A number in [0, 1), the same for the same parts in every process."""
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
