"""Longboat's own policy: the replica that costs least in seconds, to this request and to all others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import exp
from typing import Final, overload
from zlib import crc32

from longboat.compiled import mypyc_attr
from longboat.routing.policies.contract import Choice, ReplicaLoad, RoutingPolicy, View
from longboat.routing.policies.prefill_queue import PrefillQueue
from longboat.routing.policies.prefill_time import CHUNK_TOKENS, PrefillSeed, PrefillTime, Work
from longboat.routing.prefixes.lost_reuse import LostReuse
from longboat.routing.prefixes.prompt import BLOCK_BYTES, Prompt

__all__ = ("Cheapest", "Cost", "TermRows")

NEAR: Final = 0.03  # costs that differ by at most this part count as equal,
NEAR_MOST_S: Final = 0.01  # but by at most this: three percent of a long prefill are worth more than a spread load
NEAR_S: Final = 0.002  # and so do those that differ by at most this
MANY: Final = 2  # of equal replicas, one with this many times the requests of another is left alone
STREAM_WEIGHT: Final = 0.01  # seconds of TTFT that a second's pause of one running stream is worth
COPY_WEIGHT: Final = 2.5  # and one that a second's computation of what another replica holds is worth, at most
COPY_LOST: Final = 0.01  # part of what prompts repeat that was evicted before, at which copies cost nothing more
CACHE_MEMORY_S: Final = 120.0  # time over which the tokens that a replica has to store are compared with others'
POPULAR_S: Final = 60.0  # time over which requests with a common prefix are counted
MAX_POPULAR: Final = 20_000  # prefixes that are counted
MAX_SESSIONS: Final = 100_000  # whose last replica is remembered
_LOAD_MEMORY_S: Final = 30.0  # time over which the load of the fleet is taken


@mypyc_attr(acyclic=True)
class _Seen:
    """What one decision found of one replica: a compiled object has its numbers in itself."""

    __slots__ = ("cost_s", "prefill_s", "wait_s")

    def __init__(self, queue: PrefillQueue) -> None:
        self.wait_s, self.prefill_s = queue.seen_wait_s, queue.seen_prefill_s
        self.cost_s = queue.seen_cost_s  # the sum of all terms


class TermRows(Sequence[tuple[float, ...]]):
    """Rows of the table of costs, made when they are read: most decisions are never looked at."""

    def __init__(self, queues: list[PrefillQueue], extra_s: Sequence[float] = ()) -> None:
        self._seen = [_Seen(queue) for queue in queues]
        self._extra_s = extra_s  # empty: all are 0

    def __len__(self) -> int:
        return len(self._seen)

    @overload
    def __getitem__(self, at: int) -> tuple[float, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[float, ...]]: ...
    def __getitem__(self, at: int | slice) -> tuple[float, ...] | list[tuple[float, ...]]:
        if isinstance(at, slice):
            return [self[row] for row in range(*at.indices(len(self)))]
        seen, extra_s = self._seen[at], self._extra_s[at] if self._extra_s else 0.0
        return (seen.wait_s, seen.prefill_s, seen.cost_s - seen.wait_s - seen.prefill_s - extra_s, extra_s)


@mypyc_attr(acyclic=True)
class Cheapest(Choice):
    """The choice of the lowest cost. Its reason is put into words when it is read: few decisions are ever looked at."""

    __slots__ = ("_num_tokens", "_wait_s")

    def __init__(
        self, at: int, num_tokens: int, *, cached_tokens: int, depth: int, wait_s: float, ttft_s: float,
        terms: Sequence[tuple[float, ...]],
    ) -> None:  # fmt: skip
        super().__init__(at, "", cached_tokens=cached_tokens, depth=depth, ttft_s=ttft_s, terms=terms)
        self._num_tokens = num_tokens  # of the prompt
        self._wait_s = wait_s  # for the prefills before

    @property
    def reason(self) -> str:
        held = f"holds {self.cached_tokens} of {self._num_tokens} tokens, " if self.cached_tokens else ""
        return f"lowest cost: {held}waits {self._wait_s:.3f} s"


class Cost(RoutingPolicy):
    """Takes the lowest cost in seconds.

    cost = wait until the replica has computed the prefills before + prefill of the uncached part (both: the TTFT)
    + the same prefill again for those that come after, as often as the load of the fleet says
    + the part of it by which those that share its step are later
    + what the cache evicts for it + what another replica holds of it + the pause of the streams that run there + extra.
    """

    name = "cost"
    terms: tuple[str, ...] = ("wait_s", "prefill_s", "others_s", "extra_s")
    reads_prefixes = True

    def __init__(self, seed: PrefillSeed | None = None) -> None:
        self.prefill_time = PrefillTime(seed or PrefillSeed())
        self._queues: list[PrefillQueue | None] = []  # by slot
        self._sessions: OrderedDict[str, int] = OrderedDict()  # slot that had each session's last request
        self._popular: OrderedDict[bytes, tuple[float, float]] = (
            OrderedDict()
        )  # count and time, by a prefix's last block
        self._load_s = 0.0  # seconds of prefill that were sent, summed with forgetting
        self._load_at_s = 0.0  # when that was brought up to date
        self._num_replicas = 1
        self._stored = 0.0  # tokens that all replicas had to store, those of late weighing more
        self._unit = 1.0  # weight of a token that is stored now
        self._unit_at_s = 0.0
        self._lost_reuse = LostReuse()
        self._uncached = 1.0  # part of the prompts' tokens that is computed, as it was of late

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose the lowest cost; of nearly equal ones, the session's last replica, or one by a hash."""
        replicas = list(replicas)  # of which mypyc reads the items without a call
        self._num_replicas = len(replicas)
        depths = view.depths(prompt.blocks, view.num_slots) if prompt.blocks else [0] * view.num_slots
        line = self.prefill_time
        token_s, token_context_s, resident_s = line.token_s, line.token_context_s, line.resident_s
        later = self._later(now_s)
        evicted_s = self._uncached * (1.0 - self._uncached) * token_s * len(replicas) / max(1.0, self._stored)
        num_tokens = prompt.num_tokens
        deepest = holders = 0
        for replica in replicas:
            depth = depths[replica.slot]
            if depth > deepest:
                deepest, holders = depth, 0
            holders += depth == deepest
        uses = self._count(prompt, deepest, now_s) / (holders + 1) if deepest else 0.0
        copy_s = self._copy_weight(prompt, deepest) * token_s
        least = float(num_tokens - _cached(prompt, deepest))
        depth = 0
        uncached, context = float(num_tokens), 0.5 * num_tokens * num_tokens
        queues: list[PrefillQueue] = []
        request_s = line.request_s
        has_extra = len(extra_s) > 0
        lowest = 1e30
        for replica in replicas:
            queue = self._queue(replica, now_s)
            if depths[replica.slot] != depth:
                depth = depths[replica.slot]
                uncached = float(num_tokens - _cached(prompt, depth))
                context = uncached * (num_tokens - uncached * 0.5)
            pace = queue.pace_at(now_s)
            computed_s = pace * (uncached * token_s + context * token_context_s)
            steps_s = request_s + resident_s * replica.decode_tokens * (1.0 + uncached / CHUNK_TOKENS)
            prefill_s = computed_s + pace * steps_s
            wait_s = queue.wait_s(now_s)
            other_s = prefill_s * later + evicted_s * uncached * queue.stored
            if queue.places.is_full(replica):
                wait_s += queue.places.wait_s(replica)
            elif queue.last_requests:  # their first tokens come with this one's, at the end of the step that they share
                other_s += queue.last_requests * pace * token_s * min(uncached, queue.last_room)
            other_s += computed_s * STREAM_WEIGHT * (replica.requests - replica.prefills)
            other_s += copy_s * (uncached - least)
            cost = wait_s + prefill_s + other_s
            if has_extra:
                cost += extra_s[len(queues)]
            queue.seen_wait_s, queue.seen_prefill_s, queue.seen_cost_s = wait_s, prefill_s, cost
            queues.append(queue)
            if cost < lowest:
                lowest = cost
        if uses >= 1.0:
            lowest = self._invest(prompt, replicas, queues, depths, deepest, uses, copy_s, lowest)
        best = self._of_near(prompt, replicas, queues, lowest, depths)
        depth, queue = depths[replicas[best].slot], queues[best]
        return Cheapest(
            best, num_tokens, cached_tokens=_cached(prompt, depth), depth=depth, wait_s=queue.seen_wait_s,
            ttft_s=queue.seen_wait_s + queue.seen_prefill_s, terms=TermRows(queues, extra_s) if self.explains else (),
        )  # fmt: skip

    def _copy_weight(self, prompt: Prompt, deepest: int) -> float:
        """Count a prompt, and return what copies cost: nothing more where caches are too small for all that repeats."""
        self._lost_reuse.note(prompt.blocks, deepest)
        return COPY_WEIGHT * max(0.0, 1.0 - self._lost_reuse.part / COPY_LOST)

    def _invest(
        self, prompt: Prompt, replicas: list[ReplicaLoad], queues: list[PrefillQueue],
        depths: list[int], deepest: int, uses: float, copy_s: float, lowest: float,
    ) -> float:  # fmt: skip
        """Take off the costs what later requests gain from one more copy of a popular prefix; return the lowest.

        A copy that they gain from is not charged as one.

        uses: requests that would use it, if as many come as came in the last minute and all that hold it share them
        copy_s: that each token of a copy was charged with
        """
        line = self.prefill_time
        work = Work(max(1, prompt.num_tokens - prompt.tokens_at(deepest)), prompt.num_tokens)
        held_s = min([queues[at].seen_cost_s for at, one in enumerate(replicas) if depths[one.slot] == deepest])
        for at, replica in enumerate(replicas):
            if depths[replica.slot] < deepest:
                queue = queues[at]
                then_s = line.seconds(work) + line.resident_s * replica.decode_tokens
                then_s = queue.seen_wait_s + queue.pace * then_s
                if held_s > then_s:
                    charged_s = copy_s * (_cached(prompt, deepest) - _cached(prompt, depths[replica.slot]))
                    gain_s = charged_s + uses * (held_s - then_s)
                    queue.seen_cost_s = min(queue.seen_cost_s, max(then_s, queue.seen_cost_s - gain_s))
                    lowest = min(lowest, queue.seen_cost_s)
        return lowest

    def _count(self, prompt: Prompt, depth: int, now_s: float) -> float:
        """Count a request by its prefix of this depth, and return how many began with it in the last minute or so."""
        name = prompt.blocks[(depth - 1) * BLOCK_BYTES : depth * BLOCK_BYTES]
        count, at_s = self._popular.pop(name, (0.0, now_s))
        count = count * exp(-max(0.0, now_s - at_s) / POPULAR_S) + 1.0
        self._popular[name] = (count, now_s)
        if len(self._popular) > MAX_POPULAR:
            self._popular.popitem(last=False)
        return count

    def _later(self, now_s: float) -> float:
        """Return how many later requests a prefill delays: what queueing theory gives for the load of the fleet."""
        elapsed = max(0.0, now_s - self._load_at_s)
        load = self._load_s * max(0.0, 1.0 - elapsed / _LOAD_MEMORY_S) / (_LOAD_MEMORY_S * self._num_replicas)
        load = min(load, _MAX_LOAD)
        return max(_LEAST_LATER, load / (1.0 - load))

    def _queue(self, replica: ReplicaLoad, now_s: float) -> PrefillQueue:
        slot = replica.slot
        queue = self._queues[slot] if slot < len(self._queues) else None
        if queue is None:
            queue = self._new_queue(slot)
        if replica.report is not None and replica.report is not queue.report:
            queue.correct(replica.report, self.prefill_time.token_s * self._uncached, now_s)
            queue.places.correct(replica, replica.report)
        return queue

    def _new_queue(self, slot: int) -> PrefillQueue:
        while len(self._queues) <= slot:
            self._queues.append(None)
        queue = self._queues[slot] = PrefillQueue()
        return queue

    def _of_near(
        self, prompt: Prompt, replicas: list[ReplicaLoad], queues: list[PrefillQueue], lowest: float, depths: list[int]
    ) -> int:
        """Return one whose cost is nearly the lowest and that is not far busier: of these, one that holds most.

        Costs are seconds until the first token. Streams that share a replica also slow one another down afterwards.
        """
        bound = lowest + min(lowest * NEAR, NEAR_MOST_S) + NEAR_S
        near = [at for at, queue in enumerate(queues) if queue.seen_cost_s <= bound]
        if len(near) == 1:
            return near[0]
        home = self._sessions.get(prompt.session, -1) if prompt.session else -1
        least = replicas[near[0]].requests
        for at in near:
            least = min(least, replicas[at].requests)
        many, deepest = MANY * (1 + least), 0
        for at in near:
            replica = replicas[at]
            if depths[replica.slot] > deepest and (replica.requests < many or replica.slot == home):
                deepest = depths[replica.slot]
        name = prompt.blocks[deepest * BLOCK_BYTES : (deepest + 1) * BLOCK_BYTES] or prompt.key.encode()
        factor = crc32(name) % (_PRIME - 1) + 1
        best, highest = near[0], -1
        for at in near:
            replica = replicas[at]
            if replica.slot == home:
                return at
            if depths[replica.slot] == deepest and replica.requests < many:
                score = _product(replica.spread, factor)
                if score > highest:
                    best, highest = at, score
        return best

    def sent(self, prompt: Prompt, replica: ReplicaLoad, *, cached_tokens: int, now_s: float) -> None:
        """Count its prefill as work that the replica has to do."""
        queue = self._queue(replica, now_s)
        queue.places.sent(prompt.key, replica)
        work = Work(max(0, prompt.num_tokens - cached_tokens), prompt.num_tokens, replica.decode_tokens)
        line = self.prefill_time
        step_s = queue.pace * (line.request_s + line.resident_s * work.resident_tokens)
        seconds = queue.pace * line.seconds(work)
        queue.add(prompt.key, work, prompt.num_tokens, seconds - step_s, step_s, now_s)
        self._store(queue, work.tokens, now_s)
        self._uncached += _UNCACHED_STEP * (work.tokens / max(1, prompt.num_tokens) - self._uncached)
        elapsed = max(0.0, now_s - self._load_at_s)
        self._load_s = self._load_s * max(0.0, 1.0 - elapsed / _LOAD_MEMORY_S) + seconds
        self._load_at_s = now_s
        if prompt.session:
            self._remember(prompt.session, replica.slot)

    def _store(self, queue: PrefillQueue, tokens: float, now_s: float) -> None:
        """Count tokens that a replica has to store. Only ratios matter: new tokens gain weight, old ones keep it."""
        self._unit *= exp(min(40.0, max(0.0, now_s - self._unit_at_s) / CACHE_MEMORY_S))
        self._unit_at_s = now_s
        if self._unit > 1e12:
            for other in self._queues:
                if other is not None:
                    other.stored /= self._unit
            self._stored /= self._unit
            self._unit = 1.0
        queue.stored += tokens * self._unit
        self._stored += tokens * self._unit

    def _remember(self, session: str, slot: int) -> None:
        self._sessions[session] = slot
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def first_token(self, prompt: Prompt, replica: ReplicaLoad, *, cached_tokens: int | None, now_s: float) -> None:
        """Learn from the time that the prefill took."""
        queue = self._queue(replica, now_s)
        computed = None
        if cached_tokens is not None:
            tokens = max(1, prompt.num_tokens - cached_tokens)
            computed = Work(tokens, prompt.num_tokens, replica.decode_tokens)
        waited = queue.places.began(prompt.key, now_s) or queue.places.is_overfull(replica)
        sample = queue.done(prompt.key, computed, now_s, waited=waited)
        if sample is not None:
            self.prefill_time.learn(sample.work, sample.seconds)
            queue.learn(sample.seconds, self.prefill_time.seconds(sample.work), now_s)

    def ended(self, prompt: Prompt, replica: ReplicaLoad, *, output_tokens: int, now_s: float) -> None:
        """Take the prefill off where the request ended without a first token, and its place."""
        queue = self._queue(replica, now_s)
        queue.take(prompt.key, now_s)
        queue.places.ended(prompt.key, now_s)

    def left(self, replica: ReplicaLoad) -> None:
        """Forget the replica's work and pace."""
        queue = self._queues[replica.slot] if replica.slot < len(self._queues) else None
        if queue is not None:
            self._stored -= queue.stored
            self._queues[replica.slot] = None


def _product(left: int, right: int) -> int:
    """Return the product modulo ``_PRIME`` of two numbers below it: compiled code is slow with long products."""
    high, low, other_high, other_low = left >> 16, left & _HALF, right >> 16, right & _HALF
    middle = high * other_low + low * other_high
    return (2 * high * other_high + (middle << 16) + low * other_low) % _PRIME  # 2**32 leaves 2


def _cached(prompt: Prompt, depth: int) -> int:
    """Return the tokens of its first blocks that need not be computed: at least one token does."""
    return min(prompt.tokens_at(depth), prompt.num_tokens - 1)


_PRIME: Final = (1 << 31) - 1
_HALF: Final = (1 << 16) - 1
_UNCACHED_STEP: Final = 0.02  # weight of one request in that part
_LEAST_LATER: Final = 0.5  # later requests that a prefill delays, even at an idle fleet: cached work is free
_MAX_LOAD: Final = 0.75  # beyond, the estimate of a load says little
