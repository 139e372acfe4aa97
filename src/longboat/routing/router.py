"""One model's routing: the replicas' loads, the prefix index and the policy. Gateways and the simulator run this."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Final, TypeVar

from longboat.compiled import mypyc_attr
from longboat.routing.adapters import home_of, pick_with_adapter
from longboat.routing.endpoint import RoutedEndpoint
from longboat.routing.policies.contract import EXTRA_S, Choice, EngineReport, ReplicaLoad, RoutingPolicy, View
from longboat.routing.prefixes.index import PrefixIndex
from longboat.routing.prefixes.prompt import Prompt

__all__ = ("Router", "Trip")

E = TypeVar("E", bound=RoutedEndpoint)
_STALE_S: Final = 0.9  # a report of this age gives way to one that says less
_LOAD_S: Final = 0.5
"""What it takes to load an adapter from disk into an engine, and to give up another one: our estimate."""


@mypyc_attr(acyclic=True)
class Trip:
    """One request at one replica."""

    __slots__ = ("load", "prompt", "tokens", "uncached")

    def __init__(self, prompt: Prompt, load: ReplicaLoad, uncached: int) -> None:
        self.prompt = prompt
        self.load = load
        self.uncached = uncached  # prompt tokens to compute; -1 once its first token came
        self.tokens = 0  # that it holds in the KV cache

    def progressed(self, output_tokens: int) -> None:
        """Note how many tokens of output the request has so far. Has no effect before its first token."""
        if self.uncached < 0:
            tokens = self.prompt.num_tokens + output_tokens
            self.load.decode_tokens += tokens - self.tokens
            self.tokens = tokens


class Router(View):
    """Decides where each request of one model goes, and keeps account of what is where."""

    def __init__(self, policy: RoutingPolicy, index: PrefixIndex) -> None:
        super().__init__(index)
        self.policy = policy
        self._loads: dict[str, ReplicaLoad] = {}
        self._trips: dict[str, Trip] = {}  # by the request's key
        self._compared: list[Any] = []  # endpoints that the last decision compared,
        self._compared_loads: list[ReplicaLoad] = []  # their loads
        self._compared_keys: list[str] = []  # and keys

    def load_of(self, key: str) -> ReplicaLoad:
        """Return what is known of a replica; a new one begins with nothing."""
        load = self._loads.get(key)
        if load is None:
            slot = self.index.slot_of(key)
            self.num_slots = max(self.num_slots, slot + 1)
            load = self._loads[key] = ReplicaLoad(key, slot)
        return load

    def limit(self, key: str, sequences: int | None) -> None:
        """Note how many sequences a replica's engine runs at once; None: unknown."""
        self.load_of(key).sequences = sequences or 0

    def choose(
        self, prompt: Prompt, endpoints: Sequence[E], *, turn: int, now_s: float, tried: Container[str] = (),
        overfull: bool = False, adapter: str = "", sticky: str = "",
    ) -> tuple[E, Choice, list[str]] | None:  # fmt: skip
        """Return the endpoint, why, and the keys of all that were compared; None where none has room.

        Nothing is counted before ``sent``. The keys are shared with later decisions, and must not be changed.

        tried: keys of endpoints that failed for this request
        overfull: a full endpoint is taken too
        adapter: that it needs; the endpoints serve it
        sticky: requests with an equal value go to one endpoint while it is well; empty: to any
        """
        able = _able(endpoints, tried, overfull or bool(sticky))
        if not able:
            return None
        if sticky:
            home = able.index(home_of(able, sticky))
            return able[home], Choice(home, "its session is there"), [e.key for e in able]
        if adapter and EXTRA_S not in self.policy.terms:
            found = pick_with_adapter(able, adapter, turn=turn, overfull=overfull)
            return None if found is None else (found[0], Choice(able.index(found[0]), found[1]), [e.key for e in able])
        if able != self._compared:  # mostly, they are those of the last decision
            self._compare(able)
        extra_s = _adapter_s(able, adapter) if adapter else ()
        choice = self.policy.choose(prompt, self._compared_loads, self, now_s=now_s, turn=turn, extra_s=extra_s)
        return able[choice.at], choice, self._compared_keys

    def depth_of(self, prompt: Prompt, key: str) -> int:
        """Return how many of the prompt's leading blocks a replica is known to hold."""
        slot = self.load_of(key).slot
        return self.index.depths(prompt.blocks, slot + 1)[slot] if prompt.blocks else 0

    def sent(self, prompt: Prompt, key: str, *, cached_tokens: int, now_s: float) -> Trip:
        """Note that a replica got the request. Its blocks are taken to be there, so that a burst does not scatter."""
        load = self.load_of(key)
        self.policy.sent(prompt, load, cached_tokens=cached_tokens, now_s=now_s)
        if prompt.blocks:
            self.place(load.slot, prompt.blocks)
        trip = self._trips[prompt.key] = Trip(prompt, load, max(0, prompt.num_tokens - cached_tokens))
        load.requests += 1
        load.prefills += 1
        load.prefill_tokens += trip.uncached
        return trip

    def first_token(self, prompt: Prompt, *, cached_tokens: int | None, now_s: float) -> None:
        """Note that the request's first token came."""
        trip = self._trips.get(prompt.key)
        if trip is None or trip.uncached < 0:
            return
        self.policy.first_token(prompt, trip.load, cached_tokens=cached_tokens, now_s=now_s)
        self._end_prefill(trip)
        trip.tokens = prompt.num_tokens + 1
        trip.load.decode_tokens += trip.tokens

    def progressed(self, prompt: Prompt, output_tokens: int) -> None:
        """Note how many tokens of output the request has so far."""
        trip = self._trips.get(prompt.key)
        if trip is not None:
            trip.progressed(output_tokens)

    def ended(self, prompt: Prompt, *, output_tokens: int, now_s: float) -> None:
        """Note that the request ended, or left its replica."""
        trip = self._trips.get(prompt.key)
        if trip is None:
            return
        del self._trips[prompt.key]
        self.policy.ended(prompt, trip.load, output_tokens=output_tokens, now_s=now_s)
        trip.load.requests -= 1
        if trip.uncached >= 0:
            self._end_prefill(trip)
        trip.load.decode_tokens -= trip.tokens

    def answered(self, key: str, *, expected_tokens: int, cached_tokens: int, prompt_tokens: int) -> None:
        """Compare what was expected of a replica's cache with what its engine found there."""
        load = self._loads.get(key)
        if load is not None:
            load.accuracy.observe(expected_tokens, cached_tokens, prompt_tokens)

    def reported(self, key: str, report: EngineReport, *, tells: bool = False) -> None:
        """Take what an engine says of itself. tells: it also tells what it holds, and does so more often"""
        load = self.load_of(key)
        if tells or load.report is None or report.taken_s - load.report.taken_s > _STALE_S:
            load.report, load.tells = report, tells

    def left(self, key: str) -> None:
        """Forget a replica, what it held, and its requests: their ends change nothing any more."""
        load = self._loads.pop(key, None)
        if load is not None:
            self._trips = {name: trip for name, trip in self._trips.items() if trip.load is not load}
            self.policy.left(load)
            self.index.drop(load.slot)
            self.num_slots = max([other.slot + 1 for other in self._loads.values()], default=0)
            self._compared, self._compared_loads, self._compared_keys = [], [], []

    def _compare(self, endpoints: list[E]) -> None:
        """Look up what is known of endpoints."""
        self._compared = endpoints
        self._compared_loads = [self.load_of(e.key) for e in endpoints]
        self._compared_keys = [load.key for load in self._compared_loads]

    @staticmethod
    def _end_prefill(trip: Trip) -> None:
        trip.load.prefills -= 1
        trip.load.prefill_tokens -= trip.uncached
        trip.uncached = -1


def _able(endpoints: Sequence[E], tried: Container[str], overfull: bool) -> list[E]:
    """Return the endpoints that may have the request; suspect ones only where there are no others."""
    everyone = list(endpoints)
    if not tried and all(e.ready and e.capacity is None and not e.suspect for e in everyone):
        return everyone
    found: list[E] = []
    suspects, retries = False, bool(tried)
    for e in everyone:
        if e.ready and not (retries and e.key in tried):
            capacity = e.capacity
            if overfull or capacity is None or e.outstanding < capacity:
                found.append(e)
                if e.suspect:
                    suspects = True
    return [e for e in found if not e.suspect] or found if suspects else found


def _adapter_s(endpoints: Sequence[E], adapter: str) -> list[float]:
    """Return the seconds that each endpoint needs to have the adapter; where none has it, it gets a home."""
    if not any([e.holds(adapter) for e in endpoints]):
        home = home_of(endpoints, adapter)
        return [0.0 if e is home else _LOAD_S for e in endpoints]
    return [0.0 if e.holds(adapter) else _LOAD_S for e in endpoints]
