"""Finds the models that may answer a request: rules, aliases with canaries, fallbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from longboat.core.policy import Policy

__all__ = ("RequestFacts", "Resolution", "RuleBook")


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
        self.field_names: frozenset[str] = frozenset()
        self.header_names: frozenset[str] = frozenset()

    @property
    def needs_facts(self) -> bool:
        """False: each model is answered by itself alone, so ``resolve`` need not be called."""
        raise NotImplementedError

    def known_names(self) -> tuple[str, ...]:
        """Models and aliases, sorted."""
        raise NotImplementedError

    def resolve(self, facts: RequestFacts, request_id: str) -> Resolution | None:
        """The models to try, in order; None if the name, or what a rule sends it to, is no known model.

        request_id: spreads requests that nothing sticks to
        """
        raise NotImplementedError
