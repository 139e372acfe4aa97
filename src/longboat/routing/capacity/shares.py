"""Divides all engines' slots between gateways, by each tenant's demand at each gateway: one table per gateway."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from longboat.core.states import Endpoint, EndpointTable
from longboat.routing.capacity.slots import Demand, lease, lease_by_tenant

__all__ = ("Divider", "TenantDemands", "divided_slots", "read_demands", "written_demands")

TenantDemands = Mapping[str, Mapping[str, Demand]]
"""Model → tenant → its demand at one gateway."""


def divided_slots(capacities: Sequence[int], demands: Sequence[Mapping[str, Demand]]) -> list[list[int]]:
    """Divide the slots of one model: rows are gateways, columns are endpoints.

    Each gateway's total is its lease by tenant, and at least 1 where there are as many slots as gateways. An endpoint's
    slots add up to at most its capacity. A gateway has about the same part of every endpoint. Equal input gives equal
    output.
    capacities: of each endpoint; demands: of each gateway by tenant
    """
    total = sum(capacities)
    leases = lease_by_tenant(total, demands)
    if total >= len(leases):
        leases = [
            max(1, slots) for slots in leases
        ]  # requests still running elsewhere delay growth, not the first slot
    left, left_total, rows = list(leases), total, [[0] * len(capacities) for _ in leases]
    for column, capacity in enumerate(capacities):
        # This part of the remaining leases fits here, and the rest into the other endpoints.
        here = -(-sum(left) * capacity // left_total) if left_total else 0
        for row, slots in enumerate(_in_proportion(here, left, first=column)):
            rows[row][column] = slots
            left[row] -= slots
        left_total -= capacity
    return rows


class Divider:
    """Divides tables again and again. What did not change since the last time is the same object as then."""

    def __init__(self) -> None:
        self._models: dict[str, _Divided] = {}

    def tables(self, table: EndpointTable, demands: Sequence[TenantDemands]) -> list[EndpointTable]:
        """Make each gateway's table: an endpoint's ``capacity`` is the gateway's share, ``engine_capacity`` the whole.

        Where a model has fewer slots than gateways, a gateway without a slot gets one anyway, since it would refuse
        requests otherwise. Endpoints of unknown capacity are not divided.
        """
        by_model: dict[str, list[Endpoint]] = {}
        for endpoint in table.endpoints:
            by_model.setdefault(endpoint.model, []).append(endpoint)
        divided: dict[str, _Divided] = {}
        for model, endpoints in by_model.items():
            wanted = [d.get(model, {}) for d in demands]
            divided[model] = _divided(endpoints, wanted, self._models.get(model))
        self._models = divided
        return [dataclasses.replace(table, endpoints=self._rows(table, index)) for index in range(len(demands))]

    def _rows(self, table: EndpointTable, index: int) -> tuple[Endpoint, ...]:
        """Return one gateway's endpoints, in the order of the table."""
        following = {model: iter(found.rows[index]) for model, found in self._models.items()}
        return tuple(next(following[endpoint.model]) for endpoint in table.endpoints)


class _Divided:
    """One model's endpoints, divided."""

    def __init__(
        self, endpoints: list[Endpoint], demands: list[Mapping[str, Demand]], rows: list[list[Endpoint]], made: _Made
    ) -> None:
        self.endpoints = endpoints
        self.demands = demands
        self.rows = rows  # of each gateway
        self.made = made


_Made = dict[str, tuple[Endpoint, dict[int, Endpoint]]]
"""Name of an endpoint → itself, and its forms by slots: gateways with equal shares have the same object."""


def _divided(endpoints: list[Endpoint], demands: list[Mapping[str, Demand]], last: _Divided | None) -> _Divided:
    if last is not None and last.endpoints == endpoints and last.demands == demands:
        return last
    made: _Made = {}
    rows: list[list[Endpoint]] = []
    for own in _shares(endpoints, demands):
        row: list[Endpoint] = []
        for endpoint in endpoints:
            name = _name(endpoint)
            row.append(_form(name, endpoint, own.get(name), made, last.made if last is not None else {}))
        rows.append(row)
    return _Divided(endpoints, demands, rows, made)


def _form(name: str, endpoint: Endpoint, slots: int | None, made: _Made, before: _Made) -> Endpoint:
    if slots is None:
        return endpoint
    if name not in made:
        known = before.get(name)
        made[name] = known if known is not None and known[0] == endpoint else (endpoint, {})
    forms = made[name][1]
    if slots not in forms:
        forms[slots] = _with_share(endpoint, slots)
    return forms[slots]


def written_demands(demands: TenantDemands) -> dict[str, dict[str, list[float]]]:
    """Return the demands as a document: ``{model: {tenant: [weight, running, waiting]}}``."""
    return {
        model: {name: [d.weight, d.running, d.waiting] for name, d in tenants.items()}
        for model, tenants in demands.items()
    }


def read_demands(*documents: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, Demand]]:
    """Read what ``written_demands`` wrote, and add up the demands of several gateways."""
    total: dict[str, dict[str, Demand]] = {}
    for document in documents:
        for model, tenants in document.items():
            known = total.setdefault(model, {})
            for name, (weight, running, waiting) in tenants.items():
                so_far = known.get(name, Demand(weight=weight, running=0, waiting=0))
                known[name] = Demand(
                    weight=weight, running=so_far.running + int(running), waiting=so_far.waiting + int(waiting)
                )
    return total


def _shares(endpoints: Sequence[Endpoint], demands: Sequence[Mapping[str, Demand]]) -> list[dict[str, int]]:
    """Return each gateway's slots by endpoint. Endpoints that take nothing new are divided evenly: none
    demands them."""
    if any(e.ready and e.capacity is None for e in endpoints):
        demands = [_all_waiting(gateway) for gateway in demands]
    counted = {_name(e): (e, max(0, e.capacity)) for e in endpoints if e.capacity is not None}
    ready = {name: capacity for name, (e, capacity) in counted.items() if e.ready}
    rows = _one_at_least(divided_slots(list(ready.values()), demands), list(ready.values()))
    shares = [dict(zip(ready, row, strict=True)) for row in rows]
    for name in counted.keys() - ready.keys():
        for own, slots in zip(shares, lease(counted[name][1], [0] * len(demands)), strict=True):
            own[name] = slots
    return shares


def _all_waiting(demands: Mapping[str, Demand]) -> dict[str, Demand]:
    """Count running requests as waiting: they may run on an endpoint without limit, and must not hold back others."""
    return {name: Demand(weight=d.weight, running=0, waiting=d.running + d.waiting) for name, d in demands.items()}


def _one_at_least(rows: list[list[int]], capacities: Sequence[int]) -> list[list[int]]:
    """Give a gateway without a slot one on the largest endpoint, beyond that endpoint's capacity."""
    if not capacities:
        return rows
    largest = max(range(len(capacities)), key=lambda column: capacities[column])
    alone = [int(column == largest) for column in range(len(capacities))]
    return [row if any(row) else alone for row in rows]


def _in_proportion(total: int, parts: Sequence[int], *, first: int) -> list[int]:
    """Divide ``total``, at most the sum of ``parts``, by ``parts``; equal remainders round up from ``first`` on."""
    whole_sum = sum(parts)
    if not whole_sum:
        return [0] * len(parts)
    found = [total * part // whole_sum for part in parts]
    turned = [(first + index) % len(parts) for index in range(len(parts))]
    by_rest = sorted(turned, key=lambda index: -(total * parts[index] % whole_sum))
    for index in by_rest[: total - sum(found)]:
        found[index] += 1
    return found


def _with_share(endpoint: Endpoint, slots: int) -> Endpoint:
    whole = endpoint.capacity if endpoint.engine_capacity is None else endpoint.engine_capacity
    return dataclasses.replace(endpoint, capacity=slots, engine_capacity=whole)


def _name(endpoint: Endpoint) -> str:
    return f"{endpoint.model} {endpoint.key}"
