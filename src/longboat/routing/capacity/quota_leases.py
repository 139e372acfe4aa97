"""Divides a tenant's limits between the gateway processes of one node, so that they never admit more together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from longboat.routing.capacity.quota import Counts, Limits, added, sliding

__all__ = ("NOTHING", "Amounts", "Claim", "QuotaLedger", "Share", "divided", "granted", "used_of")

Amounts = tuple[int, ...]
"""One number for each limit, in the order of the fields of ``Limits``; 0 where there is no limit."""

NOTHING: Amounts = (0, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Report of one process about one tenant."""

    # what the process counted
    counts: Counts
    # what requests need that wait for a larger lease
    wanted: Amounts = NOTHING


@dataclass(frozen=True, kw_only=True)
class Share:
    """Part of one tenant's limits that one process has."""

    # upper bounds for the process's own counts
    lease: Amounts
    # what all other processes counted when the lease was made
    others: Counts = field(default_factory=Counts)


def used_of(counts: Counts, now_s: float) -> Amounts:
    """Return what ``counts``, rolled to ``now_s``, use of each limit. It falls by itself as the minute slides."""
    return (
        math.ceil(sliding(counts.requests, counts.previous_requests, now_s)),
        math.ceil(sliding(counts.tokens, counts.previous_tokens, now_s)),
        counts.tokens_today,
        counts.running,
    )


def divided(limit: int, held: Sequence[int], used: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the lease of each process: together ``limit``, or nothing for any while more than that is used.

    A process keeps what it holds until another wants it. The smallest want is met first; it is met from what no process
    holds, then from the largest unused parts. What no process holds after that is spread evenly.
    """
    room = limit - sum(used)
    if room < 0:
        return [0] * len(held)
    spare = _scaled([max(0, has - uses) for has, uses in zip(held, used, strict=True)], room)
    free = room - sum(spare)
    kept = [0] * len(spare)  # what those whose turn was already are left with
    for index in sorted((i for i, want in enumerate(wanted) if want > 0), key=lambda i: (wanted[i], i)):
        kept[index] = min(wanted[index], room)
        need = max(0, kept[index] - spare[index])
        taken = min(need, free)
        free -= taken
        for giver in sorted(range(len(spare)), key=lambda i: kept[i] - spare[i]):
            given = min(need - taken, max(0, spare[giver] - kept[giver])) if giver != index else 0
            spare[giver] -= given
            taken += given
        spare[index] += taken
    each, odd = divmod(free, len(spare))
    return [uses + more + each + (i < odd) for i, (uses, more) in enumerate(zip(used, spare, strict=True))]


def granted(limit: int, held: Sequence[int], used: Sequence[int], target: Sequence[int]) -> list[int]:
    """Return leases that are at least ``held``, and as near to ``target`` as the limit allows now."""
    bounds = list(map(max, held, used))
    free = max(0, limit - sum(bounds))
    leases = []
    for has, bound, wish in zip(held, bounds, target, strict=True):
        growth = min(free, max(0, wish - bound))
        free -= growth
        leases.append(bound + growth if growth else has)
    return leases


class QuotaLedger:
    """Leases of all tenants, kept by the parent of the processes.

    A round begins with what all processes report. Then smaller leases are sent and agreed on, then what this freed goes
    to others. A process that does not agree is counted with all that it held.
    """

    def __init__(self, holders: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(holders)}
        self._tenants: dict[str, _Tenant] = {}
        self._open: set[str] = set()  # tenants whose leases may have to change
        self._in_round: dict[str, _Tenant] = {}

    @property
    def is_needed(self) -> bool:
        """Return whether any tenant has a limit, or a lease of one that it had."""
        return any(tenant.is_limited for tenant in self._tenants.values())

    def set_limits(self, limits: Mapping[str, Limits]) -> None:
        """Take the node's limits by tenant."""
        for name in self._tenants.keys() | limits.keys():
            tenant, new = self._tenant(name), limits.get(name, Limits())
            if tenant.limits != new:
                tenant.limits = new
                self._open.add(name)

    def restore_today(self, tokens: Mapping[str, int], now_s: float) -> None:
        """Count at least these tokens by tenant for this UTC day: what was used before anything counted them."""
        for name, used in tokens.items():
            self._tenant(name).restore_today(used, now_s)
            self._open.add(name)

    def begin(self) -> None:
        """Begin a round: what processes want is heard in each round again."""
        for name in self._open:
            tenant = self._tenant(name)
            tenant.claims = [Claim(counts=claim.counts) for claim in tenant.claims]

    def heard(self, holder: str, claims: Mapping[str, Claim]) -> None:
        """Take what a process reports of those tenants whose counts changed."""
        for name, claim in claims.items():
            self._tenant(name).claims[self._places[holder]] = claim
        self._open |= claims.keys()

    def ended(self, holder: str, now_s: float) -> None:
        """Take back all leases of a process that died. What it had counted, as last heard, stays counted."""
        for name, tenant in self._tenants.items():
            tenant.take_back(self._places[holder], now_s)
            self._open.add(name)

    def lowered(self, now_s: float) -> dict[str, dict[str, Share]]:
        """Decide, and return by process and tenant the leases that must shrink before others can grow."""
        self._in_round = {name: self._tenants[name] for name in self._open if self._tenants[name].is_limited}
        self._open = set()
        for tenant in self._in_round.values():
            tenant.aim(now_s)
        return self._by_holder(lambda tenant, place: tenant.lowered(place, now_s))

    def raised(self, now_s: float) -> dict[str, dict[str, Share]]:
        """End the round: return, by process and tenant, the shares that are new. They count as held from now on."""
        for name, tenant in self._in_round.items():
            if not tenant.grow(now_s):
                self._open.add(name)
        found = self._by_holder(lambda tenant, place: tenant.news(place, now_s))
        for holder, shares in found.items():
            self.agreed(holder, shares)
        return found

    def agreed(self, holder: str, shares: Mapping[str, Share]) -> None:
        """Note that a process keeps to these shares."""
        for name, share in shares.items():
            tenant, place = self._tenants[name], self._places[holder]
            tenant.held[place], tenant.told[place] = share.lease, share

    def doubtful(self, holder: str, names: Collection[str]) -> None:
        """Note that a process may have missed its shares of these tenants: they are sent again."""
        for name in names:
            self._tenants[name].told[self._places[holder]] = None
        self._open.update(names)

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(len(self._places))
        return tenant

    def _by_holder(self, find: Callable[[_Tenant, int], Share | None]) -> dict[str, dict[str, Share]]:
        return {
            holder: {name: share for name, tenant in self._in_round.items() if (share := find(tenant, place))}
            for holder, place in self._places.items()
        }


class _Tenant:
    """One tenant's leases, with one place for each process."""

    def __init__(self, num_places: int) -> None:
        self.limits = Limits()
        # lease that each process may be using
        self.held = [NOTHING] * num_places
        # lease that each process should have
        self.target = [NOTHING] * num_places
        # share that each process is known to have
        self.told: list[Share | None] = [None] * num_places
        self.claims = [Claim(counts=Counts()) for _ in range(num_places)]
        # counted by processes that died, or before a restart
        self.ended = Counts()

    @property
    def is_limited(self) -> bool:
        return self.limits != Limits() or any(any(lease) for lease in self.held)

    def take_back(self, place: int, now_s: float) -> None:
        self.ended = replace(added((self.ended, self.claims[place].counts), now_s), running=0)
        self.held[place], self.told[place], self.claims[place] = NOTHING, None, Claim(counts=Counts())

    def restore_today(self, used: int, now_s: float) -> None:
        known = added((self.ended, *(claim.counts for claim in self.claims)), now_s).tokens_today
        ended = added((self.ended,), now_s)
        self.ended = replace(ended, tokens_today=ended.tokens_today + max(0, used - known))

    def aim(self, now_s: float) -> None:
        """Decide which lease each process should have."""
        self.target = self._by_limit(
            now_s, lambda at, most, held, used: divided(most, held, used, [claim.wanted[at] for claim in self.claims])
        )

    def lowered(self, place: int, now_s: float) -> Share | None:
        """Return a process's lease without what others are to get; None where that is nothing."""
        held = self.held[place]
        lease = tuple(map(min, held, self.target[place]))
        return Share(lease=lease, others=self._others(place, now_s)) if lease != held else None

    def grow(self, now_s: float) -> bool:
        """Raise leases towards the targets; return False where a later round may have more to give."""
        aimed = self.target
        self.target = self._by_limit(
            now_s, lambda at, most, held, used: granted(most, held, used, [target[at] for target in aimed])
        )
        given = [sum(column) for column in zip(*self.target, strict=True)]
        all_given = all(left is None or sum_ >= left for left, sum_ in zip(self._left(now_s), given, strict=True))
        return all_given and not any(used_of(self.ended, now_s)[:2])

    def news(self, place: int, now_s: float) -> Share | None:
        share = Share(lease=self.target[place], others=self._others(place, now_s))
        return share if share != self.told[place] else None

    def _others(self, place: int, now_s: float) -> Counts:
        return added((self.ended, *(claim.counts for at, claim in enumerate(self.claims) if at != place)), now_s)

    def _by_limit(self, now_s: float, divide: Callable[[int, int, list[int], list[int]], list[int]]) -> list[Amounts]:
        """Divide each limit: by its place among the limits, what is left of it, and what processes hold and use."""
        used = [used_of(added((claim.counts,), now_s), now_s) for claim in self.claims]
        columns = [
            [0] * len(used)
            if left is None
            else divide(at, left, [lease[at] for lease in self.held], [uses[at] for uses in used])
            for at, left in enumerate(self._left(now_s))
        ]
        return list(zip(*columns, strict=True))

    def _left(self, now_s: float) -> list[int | None]:
        """Return each limit without what the processes that ended had used of it."""
        ended = used_of(added((self.ended,), now_s), now_s)
        return [None if most is None else most - uses for most, uses in zip(self.limits.values, ended, strict=True)]


def _scaled(parts: list[int], total: int) -> list[int]:
    """Return ``parts`` as they are where their sum is within ``total``, else in proportion, rounded down."""
    whole = sum(parts)
    return parts if whole <= total else [part * total // whole for part in parts]
