"""Watts and money: what a million tokens cost at a stated load, and when bought machines are cheaper than rented ones.

Power is an estimate unless the catalog has a measured figure for a whole system: decoding takes 0.6 to 0.8 of a card's
TDP at the wall, an idle card a tenth, and the rest of a computer about 100 W.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longboat.catalog.entries import Accelerator, ApiPrice
from longboat.planner.machines.cluster import Cluster, NodeKind
from longboat.planner.search.demand import Demand
from longboat.planner.search.ranking import Plan

__all__ = (
    "Assumptions",
    "Cost",
    "Power",
    "WhatIf",
    "break_even_months",
    "cost_of",
    "even_tokens_per_day",
    "power_of",
    "purchase_usd",
    "rent_usd_per_hour",
)

BUSY_RATIO, IDLE_RATIO = 0.7, 0.1
HOST_BUSY_W, HOST_IDLE_W = 120.0, 70.0
# A processor that computes is its own host; memory, disks and supply take the rest.
PROCESSOR_BUSY_RATIO, PROCESSOR_IDLE_RATIO = 1.1, 0.3
SYSTEM_IDLE_RATIO = 0.15
HOURS_PER_MONTH = 730.0
DAYS_PER_MONTH = HOURS_PER_MONTH / 24
MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Watts at the wall of all machines: under load, and on without any."""

    busy_w: float
    idle_w: float

    def mean_w(self, utilization: float) -> float:
        return utilization * self.busy_w + (1 - utilization) * self.idle_w

    def usd_per_month(self, utilization: float, usd_per_kwh: float) -> float:
        return self.mean_w(utilization) / 1000 * HOURS_PER_MONTH * usd_per_kwh


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The assumptions about prices and use."""

    usd_per_kwh: float
    utilization: float = 0.5  # share of the time in which the load is served; the machines stay on in the rest
    tokens_per_day: float | None = None  # prompts and responses, where known; it then gives the utilization
    years: float = 3.0  # time after which bought machines are worth nothing
    purchase_usd: float | None = None  # instead of the catalog's prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one plan."""

    power: Power
    utilization: float
    tokens_per_s: float  # prompts and responses, under load
    output_tokens_per_s: float  # responses alone
    tokens_per_month: float
    power_usd_per_month: float
    capital_usd_per_month: float | None
    purchase_usd: float | None  # of the accelerators; None where no price is known
    without_price: tuple[str, ...] = ()  # names of accelerators without a price
    rent_usd_per_hour: float | None = None  # of the same accelerators from a cloud; None where one has no price
    api_usd_per_million: float | None = None
    months_to_api: float | None = None  # time until a purchase has paid for itself; None: never
    months_to_cloud: float | None = None  # the same, compared with renting
    # Load from which a purchase pays within its years; None: not even at full load.
    tokens_per_day_to_api: float | None = None
    what_if: tuple[WhatIf, ...] = ()

    @property
    def usd_per_month(self) -> float:
        return self.power_usd_per_month + (self.capital_usd_per_month or 0.0)

    @property
    def usd_per_million(self) -> float:
        return self.usd_per_month / self.tokens_per_month * MILLION

    @property
    def usd_per_million_output(self) -> float:
        return self.usd_per_million * self.tokens_per_s / self.output_tokens_per_s

    @property
    def joules_per_token(self) -> float:
        """Return the energy of one generated token, under load."""
        return self.power.busy_w / self.output_tokens_per_s

    @property
    def rent_usd_per_million(self) -> float | None:
        """Rented by the hour, and only while there is work."""
        return None if self.rent_usd_per_hour is None else self.rent_usd_per_hour / 3600 / self.tokens_per_s * MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The same machines at another price of electricity or utilization."""

    usd_per_kwh: float
    utilization: float
    usd_per_million: float


def power_of(cluster: Cluster) -> Power:
    """Return the power of all nodes, with their hosts."""
    kinds = cluster.kinds
    return Power(
        busy_w=sum(kind.count * _node_w(kind, busy=True) for kind in kinds),
        idle_w=sum(kind.count * _node_w(kind, busy=False) for kind in kinds),
    )


def _node_w(kind: NodeKind, *, busy: bool) -> float:
    cards = sum(one.count * _card_w(one.entry, busy=busy) for one in kind.cards)
    own_host = all(one.entry.kind != "gpu" or one.entry.wall_w for one in kind.cards)
    return cards + (0.0 if own_host else HOST_BUSY_W if busy else HOST_IDLE_W)


def _card_w(entry: Accelerator, *, busy: bool) -> float:
    if entry.wall_w:
        return entry.wall_w * (1.0 if busy else SYSTEM_IDLE_RATIO)
    if entry.kind == "gpu":
        return entry.tdp_w * (BUSY_RATIO if busy else IDLE_RATIO)
    return entry.tdp_w * (PROCESSOR_BUSY_RATIO if busy else PROCESSOR_IDLE_RATIO)


def cost_of(plan: Plan, cluster: Cluster, demand: Demand, assumed: Assumptions, api: ApiPrice | None = None) -> Cost:
    """Return what ``plan`` costs under ``demand``, and against ``api`` and the same accelerators rented."""
    output_per_s = plan.tokens_per_s
    ratio = (demand.prompt_tokens + demand.output_tokens) / demand.output_tokens
    per_s, power = output_per_s * ratio, power_of(cluster)
    utilization = _utilization(assumed, per_s)
    tokens_per_month = per_s * utilization * HOURS_PER_MONTH * 3600
    purchase, missing = _purchase(cluster, assumed)
    capital = None if purchase is None else purchase / (assumed.years * 12)
    power_usd = power.usd_per_month(utilization, assumed.usd_per_kwh)
    rent = rent_usd_per_hour(cluster)
    api_price = None if api is None else _blended(api, demand)
    rented = None if rent is None else rent * HOURS_PER_MONTH * utilization
    bought = None if api_price is None else tokens_per_month / MILLION * api_price
    return Cost(
        power=power,
        utilization=utilization,
        tokens_per_s=per_s,
        output_tokens_per_s=output_per_s,
        tokens_per_month=tokens_per_month,
        power_usd_per_month=power_usd,
        capital_usd_per_month=capital,
        purchase_usd=purchase,
        without_price=missing,
        rent_usd_per_hour=rent,
        api_usd_per_million=api_price,
        months_to_api=break_even_months(purchase, power_usd, bought),
        months_to_cloud=break_even_months(purchase, power_usd, rented),
        tokens_per_day_to_api=_even_load(purchase, power, assumed, per_s, api_price),
        what_if=tuple(_what_if(power, assumed, utilization, per_s, capital or 0.0)),
    )


def _utilization(assumed: Assumptions, tokens_per_s: float) -> float:
    if assumed.tokens_per_day is None:
        return assumed.utilization
    return min(1.0, assumed.tokens_per_day / (tokens_per_s * 86400))


def _purchase(cluster: Cluster, assumed: Assumptions) -> tuple[float | None, tuple[str, ...]]:
    cards = [(kind.count * one.count, one.entry) for kind in cluster.kinds for one in kind.cards]
    if assumed.purchase_usd is not None:
        return assumed.purchase_usd, ()
    missing = tuple(dict.fromkeys(entry.name for _, entry in cards if not entry.price_usd))
    return purchase_usd(cluster), missing


def purchase_usd(cluster: Cluster) -> float | None:
    """Return the catalog's price of all accelerators; None where one has none."""
    cards = [(kind.count * one.count, one.entry) for kind in cluster.kinds for one in kind.cards]
    if any(not entry.price_usd for _, entry in cards):
        return None
    return sum(count * entry.price_usd for count, entry in cards)


def rent_usd_per_hour(cluster: Cluster) -> float | None:
    """Return what all accelerators cost an hour in a cloud; None where the catalog does not know it of one."""
    cards = [(kind.count * one.count, one.entry) for kind in cluster.kinds for one in kind.cards]
    if any(not entry.rent_usd_per_hour for _, entry in cards):
        return None
    return sum(count * entry.rent_usd_per_hour for count, entry in cards)


def _blended(api: ApiPrice, demand: Demand) -> float:
    """Return price of a million tokens in the demand's ratio of prompts to answers."""
    total = demand.prompt_tokens + demand.output_tokens
    price = demand.prompt_tokens * api.usd_per_million_input + demand.output_tokens * api.usd_per_million_output
    return price / total


def break_even_months(
    purchase_usd: float | None, power_usd_per_month: float, other_usd_per_month: float | None
) -> float | None:
    """Return months until a purchase and its power are cheaper than the other; None: never, or a price is not known."""
    if purchase_usd is None or other_usd_per_month is None:
        return None
    saved = other_usd_per_month - power_usd_per_month
    return purchase_usd / saved if saved > 0 else None


def even_tokens_per_day(
    purchase_usd: float, power_usd_per_month: float, usd_per_million: float, months: float
) -> float:
    """Return load at which a purchase pays for itself in ``months``, its power being the same at any load."""
    return (purchase_usd / months + power_usd_per_month) / usd_per_million * MILLION / DAYS_PER_MONTH


def _even_load(
    purchase: float | None, power: Power, assumed: Assumptions, tokens_per_s: float, api_price: float | None
) -> float | None:
    """Return the load at which a purchase pays: idle power is paid at any load, the rest by the token."""
    if purchase is None or not api_price:
        return None
    fixed = purchase / (assumed.years * 12) + power.usd_per_month(0.0, assumed.usd_per_kwh)
    full = tokens_per_s * HOURS_PER_MONTH * 3600
    by_token = (power.usd_per_month(1.0, assumed.usd_per_kwh) - power.usd_per_month(0.0, assumed.usd_per_kwh)) / full
    gained = api_price / MILLION - by_token
    needed = fixed / gained if gained > 0 else float("inf")
    return needed / DAYS_PER_MONTH if needed <= full else None


def _what_if(
    power: Power, assumed: Assumptions, utilization: float, tokens_per_s: float, capital: float
) -> Iterator[WhatIf]:
    for price in _around(assumed.usd_per_kwh, (0.5, 1.0, 2.0)):
        for share in sorted({0.1, utilization, 1.0}):
            if share <= 0:
                continue
            month = capital + power.usd_per_month(share, price)
            tokens = tokens_per_s * share * HOURS_PER_MONTH * 3600
            yield WhatIf(usd_per_kwh=price, utilization=share, usd_per_million=month / tokens * MILLION)


def _around(value: float, factors: Sequence[float]) -> list[float]:
    return [value * factor for factor in factors]
