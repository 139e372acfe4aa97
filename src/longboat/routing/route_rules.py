"""Finds the models that may answer a request: rules, aliases with canaries, fallbacks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from longboat.core.policy import ANONYMOUS, Alias, Policy, RouteRule

__all__ = ("HeadRoutes", "Overflowing", "Resolution", "RuleBook")

_ANY: Final = "*"
_HEADER: Final = "header:"
_MAX_NAMES: Final = 1024
_MAX_NAME: Final = 256  # characters
_MOST_TOKENS: Final = 1 << 61
_NO_BOUNDS: Final = (0, _MOST_TOKENS)


class Overflowing(NamedTuple):
    """The model to which a request goes that waits too long."""

    at_pool: int  # its place among the models of the request
    num_pools: int  # the first choice and its fallbacks; what follows is for overflow only
    after_s: float


class Resolution(NamedTuple):
    """The models to which a request goes."""

    pools: tuple[str, ...]  # models: the first choice, then its fallbacks, then the one for overflow
    requested: str
    why: str  # for the routing record
    overflow: Overflowing | None = None

    def keeping(self, able: Callable[[str], bool]) -> Resolution:
        """Return it without the models that are not able to serve the request. The first choice always stays."""
        kept = [at for at, model in enumerate(self.pools) if at == 0 or able(model)]
        overflow = self.overflow
        if overflow is not None:
            num_pools = sum(at < overflow.num_pools for at in kept)
            at_pool = overflow.at_pool
            overflow = Overflowing(kept.index(at_pool), num_pools, overflow.after_s) if at_pool in kept else None
        return self._replace(pools=tuple(self.pools[at] for at in kept), overflow=overflow)


class RuleBook:
    """A policy's rules, aliases and fallbacks, prepared for the models that exist. Replaced when either changes."""

    def __init__(self, policy: Policy, models: Iterable[str]) -> None:
        self.models = frozenset(models)
        self.rules = policy.rules
        self.fallbacks = policy.fallbacks
        self.overflow = policy.overflow
        self.external = frozenset(model.name for model in policy.external)
        # Adapters that only some tenants may use, and those.
        self.owners = {a.name: frozenset(a.tenants) for a in policy.adapters if a.tenants is not None}
        self.canaries = {alias.name: _Canary(alias, self.models) for alias in policy.aliases}
        # Top-level fields of the body that rules read.
        self.field_names = frozenset(name for rule in policy.rules for name in rule.fields)
        sticky = (alias.sticky.removeprefix(_HEADER) for alias in policy.aliases if alias.sticky.startswith(_HEADER))
        # Headers that rules and canaries read; ``RequestFacts`` must hold them.
        self.header_names = frozenset(
            name.lower()
            for names in ((name for rule in policy.rules for name in rule.headers), sticky)
            for name in names
        )

    def known_names(self) -> tuple[str, ...]:
        """Return the models and the aliases that lead to one, sorted."""
        aliases = {name for name, canary in self.canaries.items() if canary.pools}
        return tuple(sorted(self.models | aliases))

    def behind(self, name: str) -> tuple[str, ...]:
        """Return the models to which a name leads: those of an alias, which hides a model of the same name."""
        canary = self.canaries.get(name)
        return (name,) if canary is None else tuple([model for model, _weight in canary.pools])


class HeadRoutes:
    """The routes of all requests that share one head: what its tenant and headers decide is decided once for each name.

    field_names: top-level fields of the body that the rules which can still apply read
    """

    __slots__ = ("_book", "_branches", "_headers", "_may_leave", "_rules", "_tenant", "field_names")

    def __init__(
        self,
        book: RuleBook,
        tenant: str,
        tags: Sequence[str],
        headers: Mapping[str, str],
        *,
        may_leave: bool = False,
    ) -> None:
        """Prepare the rules.

        headers: those in ``book.header_names``, by lower-case name
        may_leave: whether requests for models of the fleet may go to external ones
        """
        self._may_leave = may_leave
        self._book = book
        self._tenant = tenant
        self._headers = headers
        self._rules = [
            (number, rule)
            for number, rule in enumerate(book.rules, 1)
            if _fits_head(rule, tenant, frozenset(tags), headers)
        ]
        self.field_names = frozenset(name for _, rule in self._rules for name in rule.fields)
        self._branches: dict[str, _Branches] = {}

    def resolve(
        self,
        model: str,
        request_id: str,
        *,
        user: str = "",
        prompt_tokens: int = 0,
        context_tokens: int = 0,
        fields: Mapping[str, str] | None = None,
    ) -> Resolution | None:
        """Return the models to try, in order; None if the name, or the target of its rule, is not a known model.

        request_id: spreads requests that nothing sticks to; context_tokens: prompt and asked-for completion
        fields: those in ``field_names`` that the body has, as text
        """
        branches = self._branches.get(model)
        if branches is None:
            if len(model) > _MAX_NAME:  # no model has such a name, and a client could fill the memory with them
                return None
            branches = self._learn(model)
        branch = branches.otherwise
        prompt_tokens, context_tokens = min(prompt_tokens, _MOST_TOKENS), min(context_tokens, _MOST_TOKENS)
        for other in branches.by_body:
            if other.fits(prompt_tokens, context_tokens, fields):
                branch = other
                break
        if branch.is_steady:
            return branch.resolution
        return self._resolution(model, branch.number, branch.target, user, request_id)

    def _learn(self, model: str) -> _Branches:
        if len(self._branches) >= _MAX_NAMES:
            self._branches.clear()
        by_body = []
        otherwise = None
        for number, rule in self._rules:
            if rule.model not in (_ANY, model):
                continue
            branch = self._branch(model, number, rule.to, rule)
            if not _reads_body(rule):
                otherwise = branch
                break
            by_body.append(branch)
        found = _Branches(by_body, otherwise or self._branch(model, 0, model, None))
        if by_body or not found.otherwise.is_steady or found.otherwise.resolution is not None:
            self._branches[model] = found  # names that lead nowhere are not kept
        return found

    def _branch(self, model: str, number: int, target: str, rule: RouteRule | None) -> _Branch:
        first = self._model_of(target, "", "")
        names = (target, *self._book.fallbacks.get(first or "", ()), *self._book.fallbacks.get(target, ()))
        if (overflow := self._book.overflow.get(first or "")) is not None:
            names = (*names, overflow.to)
        canaries = (self._book.canaries.get(name) for name in names)
        is_steady = all(c is None or c.is_steady(self._tenant, self._headers) for c in canaries)
        resolution = self._resolution(model, number, target, "", "") if is_steady else None
        return _Branch(number, target, rule, is_steady=is_steady, resolution=resolution)

    def _resolution(self, model: str, number: int, target: str, user: str, request_id: str) -> Resolution | None:
        first = self._model_of(target, user, request_id)
        if first is None or not self._owns(first):
            return None
        fallbacks = self._book.fallbacks
        names = (*fallbacks.get(first, ()), *(fallbacks.get(target, ()) if target != first else ()))
        others = (self._model_of(name, user, request_id) for name in names)
        allowed = (other for other in others if other is not None and self._may_go(first, other))
        pools = tuple(dict.fromkeys((first, *allowed)))
        overflow = self._overflowing(pools, user, request_id)
        if overflow is not None and overflow.at_pool == len(pools):
            pools = (*pools, self._overflow_model(first, user, request_id) or first)
        return Resolution(pools=pools, requested=model, why=_why(number, target, first), overflow=overflow)

    def _overflowing(self, pools: tuple[str, ...], user: str, request_id: str) -> Overflowing | None:
        first = pools[0]
        other = self._overflow_model(first, user, request_id)
        if other is None or other == first or not self._may_go(first, other):
            return None
        at_pool = pools.index(other) if other in pools else len(pools)
        return Overflowing(at_pool, len(pools), self._book.overflow[first].after_s)

    def _overflow_model(self, first: str, user: str, request_id: str) -> str | None:
        overflow = self._book.overflow.get(first)
        return None if overflow is None else self._model_of(overflow.to, user, request_id)

    def _may_go(self, first: str, other: str) -> bool:
        """Return whether a request for ``first`` may go to another model: only some tenants' may leave the fleet."""
        if not self._owns(other):
            return False
        return self._may_leave or other not in self._book.external or first in self._book.external

    def _owns(self, name: str) -> bool:
        """Return whether the tenant may use what has this name, as far as owners go."""
        owners = self._book.owners.get(name)
        return owners is None or self._tenant in owners

    def _model_of(self, name: str, user: str, request_id: str) -> str | None:
        """Return the model that a name means; None where there is none.

        An alias hides a model of the same name, so that a model can be split without its users knowing.
        """
        canary = self._book.canaries.get(name)
        if canary is not None:
            return canary.choose(self._tenant, self._headers, user, request_id)
        return name if name in self._book.models else None


class _Branch:
    """The destination of one rule, or of the asked-for name itself."""

    __slots__ = ("_context_tokens", "_fields", "_prompt_tokens", "is_steady", "number", "resolution", "target")

    def __init__(
        self, number: int, target: str, rule: RouteRule | None, *, is_steady: bool, resolution: Resolution | None
    ) -> None:
        self.number = number  # of the rule, from 1; 0 where none matched
        self.target = target
        self._prompt_tokens = _bounds(rule.min_prompt_tokens, rule.max_prompt_tokens) if rule else _NO_BOUNDS
        self._context_tokens = _bounds(rule.min_context_tokens, rule.max_context_tokens) if rule else _NO_BOUNDS
        self._fields: Mapping[str, str] = rule.fields if rule else {}
        self.is_steady = is_steady  # all requests get ``resolution``; else a canary spreads them
        self.resolution = resolution

    def fits(self, prompt_tokens: int, context_tokens: int, fields: Mapping[str, str] | None) -> bool:
        """Return whether its rule fits a body."""
        least, most = self._prompt_tokens
        if prompt_tokens < least or prompt_tokens > most:
            return False
        least, most = self._context_tokens
        if context_tokens < least or context_tokens > most:
            return False
        return not self._fields or all(_has(fields or {}, name, value) for name, value in self._fields.items())


class _Branches:
    """The branches of one asked-for name: the first whose rule fits the body, else the last one."""

    __slots__ = ("by_body", "otherwise")

    def __init__(self, by_body: list[_Branch], otherwise: _Branch) -> None:
        self.by_body = by_body
        self.otherwise = otherwise


class _Canary:
    """The existing pools of an alias, and the choice among them."""

    __slots__ = ("_name", "_sticky", "_total", "pools")

    def __init__(self, alias: Alias, models: frozenset[str]) -> None:
        self._name = alias.name
        self._sticky = alias.sticky
        self.pools = [(pool.model, pool.weight) for pool in alias.pools if pool.model in models and pool.weight > 0]
        self._total = sum(weight for _, weight in self.pools)

    def is_steady(self, tenant: str, headers: Mapping[str, str]) -> bool:
        """Return whether all requests of a head get the same pool."""
        if len(self.pools) < 2:
            return True
        if self._sticky in ("request", "user"):
            return False
        return tenant != ANONYMOUS or bool(self._header(headers))

    def choose(self, tenant: str, headers: Mapping[str, str], user: str, request_id: str) -> str | None:
        """Return the pool of a request; None where no pool exists."""
        if len(self.pools) < 2:
            return self.pools[0][0] if self.pools else None
        value = self._header(headers) or (user if self._sticky == "user" else "")
        # The anonymous tenant keeps no pool: all its clients would get the same one.
        if self._sticky == "request" or (not value and tenant == ANONYMOUS):
            point = _point(self._name, "", request_id)
        else:
            point = _point(self._name, tenant, value)
        point *= self._total
        for model, weight in self.pools:
            point -= weight
            if point < 0:
                return model
        return self.pools[-1][0]

    def _header(self, headers: Mapping[str, str]) -> str:
        if not self._sticky.startswith(_HEADER):
            return ""
        return headers.get(self._sticky.removeprefix(_HEADER).lower(), "")


def _point(*parts: str) -> float:
    """Map ``parts`` to a number in [0, 1) that is the same in every process."""
    data = "\0".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big") / (1 << 48)


def _fits_head(rule: RouteRule, tenant: str, tags: frozenset[str], headers: Mapping[str, str]) -> bool:
    return (
        (not rule.tenants or tenant in rule.tenants)
        and (not rule.tags or not tags.isdisjoint(rule.tags))
        and all(_has(headers, name.lower(), value) for name, value in rule.headers.items())
    )


def _reads_body(rule: RouteRule) -> bool:
    bounds = (rule.min_prompt_tokens, rule.max_prompt_tokens, rule.min_context_tokens, rule.max_context_tokens)
    return bool(rule.fields) or any(bound is not None for bound in bounds)


def _bounds(least: int | None, most: int | None) -> tuple[int, int]:
    return least or 0, _MOST_TOKENS if most is None else most


def _has(values: Mapping[str, str], name: str, wanted: str) -> bool:
    value = values.get(name)
    return value is not None and wanted in (_ANY, value)


def _why(rule_number: int, target: str, model: str) -> str:
    why = f"rule {rule_number}" if rule_number else "name"
    return why if target == model else f"{why}, alias {target}"
