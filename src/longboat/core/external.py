"""Models at addresses outside the fleet: where they are, what they cost, and what may be spent on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ("NANOS", "Budget", "ExternalModel", "Overflow", "Price")

NANOS = 10**9
"""Money is counted in whole billionths of its currency, so that sums are exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a model's tokens cost, in units of a currency for a million of them."""

    input_per_million: float
    output_per_million: float
    currency: str = "USD"

    def nanos(self, prompt_tokens: int, completion_tokens: int) -> int:
        """Return the cost of these tokens in billionths, rounded up."""
        cost = prompt_tokens * self.input_per_million + completion_tokens * self.output_per_million
        return math.ceil(round(cost * 1000, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be spent on one model in one UTC day. None means no limit."""

    requests_per_day: int | None = None
    tokens_per_day: int | None = None  # prompt and completion tokens together
    money_per_day: float | None = None  # in the currency of the price


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalModel:
    """A model that somebody else serves. Keys are named here, never held: each gateway reads them itself."""

    name: str  # what clients call it
    urls: tuple[str, ...]  # each stands in the place of ``/v1``
    api: str = "openai"  # ``openai`` | ``anthropic``
    model: str = ""  # what the addresses call it; empty: the same
    api_key_env: str | None = None  # environment variable of the gateway
    api_key_file: str | None = None  # path on the gateway's node
    api_key_header: str | None = None  # None: as the API has it
    headers: Mapping[str, str] = field(default_factory=dict)  # further ones of each request; no secrets
    proxy: str | None = None  # ``http://HOST:PORT``; None: as the gateway's environment says
    connect_s: float = 10.0  # for a connection and its TLS handshake
    limits: Budget = Budget()
    price: Price | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overflow:
    """Where the requests of one model go that would wait too long."""

    to: str
    after_s: float = 5.0
