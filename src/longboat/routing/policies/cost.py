"""Longboat's own policy: the replica that costs least in seconds, to this request and to all others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import exp
from typing import Final, overload
from zlib import crc32

from longboat.routing.policies.contract import Choice, ReplicaLoad, View
from longboat.routing.policies.prefill_queue import PrefillQueue
from longboat.routing.policies.prefill_time import CHUNK_TOKENS, PrefillSeed, PrefillTime, Work
from longboat.routing.prefixes.prompt import BLOCK_BYTES, Prompt

__all__ = ("Cost", "TermRows")

NEAR: Final = 0.03  # costs that differ by at most this part count as equal,
NEAR_MOST_S: Final = 0.01  # but by at most this: three percent of a long prefill are worth more than a spread load
NEAR_S: Final = 0.002  # and so do those that differ by at most this
STREAM_WEIGHT: Final = 0.02  # seconds of TTFT that a second's pause of one running stream is worth
CACHE_MEMORY_S: Final = 120.0  # time over which the tokens that a replica has to store are compared with others'
POPULAR_S: Final = 60.0  # time over which requests with a common prefix are counted
MAX_POPULAR: Final = 20_000  # prefixes that are counted
MAX_SESSIONS: Final = 100_000  # whose last replica is remembered
_LOAD_MEMORY_S: Final = 30.0  # time over which the load of the fleet is taken


class TermRows(Sequence[tuple[float, ...]]):
    """Rows of the table of costs, made when they are read: most decisions are never looked at."""

    def __init__(self, *columns: Sequence[float]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    @overload
    def __getitem__(self, at: int) -> tuple[float, ...]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[float, ...]]: ...
    def __getitem__(self, at: int | slice) -> tuple[float, ...] | list[tuple[float, ...]]:
        if isinstance(at, slice):
            return [self[row] for row in range(*at.indices(len(self)))]
        return tuple([column[at] for column in self._columns])


class Cost:
    """Takes the lowest cost in seconds.

    cost = wait until the replica has computed the prefills before + prefill of the uncached part (both: the TTFT)
    + the same prefill again for those that come after, as often as the load of the fleet says
    + the pause of the streams that run there + extra.
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
        self._uncached = 1.0  # part of the prompts' tokens that is computed, as it was of late

    def choose(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], view: View, *, now_s: float, turn: int,
        extra_s: Sequence[float] = (),
    ) -> Choice:  # fmt: skip
        """Choose the lowest cost; of nearly equal ones, the session's last replica, or one by a hash."""
        self._num_replicas = len(replicas)
        depths = view.index.depths(prompt.blocks, view.num_slots) if prompt.blocks else [0] * view.num_slots
        line = self.prefill_time
        token_s, token_context_s, resident_s = line.token_s, line.token_context_s, line.resident_s
        later = self._later(now_s)
        evicted_s = self._uncached * (1.0 - self._uncached) * token_s * len(replicas) / max(1.0, self._stored)
        num_tokens = prompt.num_tokens
        depth, cached = 0, 0
        uncached, context = float(num_tokens), 0.5 * num_tokens * num_tokens
        waits: list[float] = []
        prefills: list[float] = []
        others: list[float] = []
        costs: list[float] = []
        lowest = 1e30
        for at, replica in enumerate(replicas):
            queue = self._queue(replica, now_s)
            if depths[replica.slot] != depth:
                depth = depths[replica.slot]
                cached = min(prompt.tokens_at(depth), num_tokens - 1)
                uncached = float(num_tokens - cached)
                context = uncached * (num_tokens - uncached * 0.5)
            computed_s = queue.pace * (uncached * token_s + context * token_context_s)
            steps_s = line.request_s + resident_s * replica.decode_tokens * (1.0 + uncached / CHUNK_TOKENS)
            prefill_s = computed_s + queue.pace * steps_s
            wait_s = queue.wait_s(now_s)
            other_s = prefill_s * later + evicted_s * uncached * queue.stored
            other_s += computed_s * STREAM_WEIGHT * (replica.requests - replica.prefills)
            cost = wait_s + prefill_s + other_s
            if extra_s:
                cost += extra_s[at]
            waits.append(wait_s)
            prefills.append(prefill_s)
            others.append(other_s)
            costs.append(cost)
            if cost < lowest:
                lowest = cost
        if prompt.blocks:
            lowest = self._invest(prompt, replicas, costs, waits, depths, lowest, now_s)
        best = self._of_near(prompt, replicas, costs, lowest, depths)
        cached = min(prompt.tokens_at(depths[replicas[best].slot]), num_tokens - 1)
        rows = TermRows(waits, prefills, others, extra_s or [0.0] * len(waits))
        ttft_s = waits[best] + prefills[best]
        return Choice(best, _reason(cached, num_tokens, waits[best]), cached_tokens=cached, terms=rows, ttft_s=ttft_s)

    def _invest(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], costs: list[float], waits: list[float],
        depths: list[int], lowest: float, now_s: float,
    ) -> float:  # fmt: skip
        """Take off the costs what later requests gain from one more copy of a popular prefix; return the lowest."""
        deepest = max([depths[replica.slot] for replica in replicas])
        if not deepest:
            return lowest
        uses = self._count(prompt.blocks[(deepest - 1) * BLOCK_BYTES : deepest * BLOCK_BYTES], now_s) / len(replicas)
        if uses < 1.0:
            return lowest
        line = self.prefill_time
        work = Work(max(1, prompt.num_tokens - prompt.tokens_at(deepest)), prompt.num_tokens)
        held_s = min([costs[at] for at, replica in enumerate(replicas) if depths[replica.slot] == deepest])
        for at, replica in enumerate(replicas):
            if depths[replica.slot] < deepest:
                then_s = line.seconds(work) + line.resident_s * replica.decode_tokens
                then_s = waits[at] + self._queue(replica, now_s).pace * then_s
                costs[at] = min(costs[at], max(then_s, costs[at] - uses * max(0.0, held_s - then_s)))
                lowest = min(lowest, costs[at])
        return lowest

    def _count(self, name: bytes, now_s: float) -> float:
        """Count a request that begins with a block, and return how many came in the last minute or so."""
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
        while len(self._queues) <= slot:
            self._queues.append(None)
        queue = self._queues[slot]
        if queue is None:
            queue = self._queues[slot] = PrefillQueue()
        if replica.report is not None:
            queue.correct(replica.report, self.prefill_time.token_s * self._uncached, now_s)
        return queue

    def _of_near(
        self, prompt: Prompt, replicas: Sequence[ReplicaLoad], costs: list[float], lowest: float, depths: list[int]
    ) -> int:
        """Return one of those whose cost is nearly the lowest."""
        bound = lowest + min(lowest * NEAR, NEAR_MOST_S) + NEAR_S
        near = [at for at, cost in enumerate(costs) if cost <= bound]
        if len(near) == 1:
            return near[0]
        home = self._sessions.get(prompt.session, -1) if prompt.session else -1
        deepest = max([depths[replicas[at].slot] for at in near])
        name = prompt.blocks[deepest * BLOCK_BYTES : (deepest + 1) * BLOCK_BYTES] or prompt.key.encode()
        best, highest = near[0], -1
        for at in near:
            replica = replicas[at]
            if replica.slot == home:
                return at
            score = crc32(replica.key.encode(), crc32(name))
            if score > highest:
                best, highest = at, score
        return best

    def sent(self, prompt: Prompt, replica: ReplicaLoad, *, cached_tokens: int, now_s: float) -> None:
        """Count its prefill as work that the replica has to do."""
        queue = self._queue(replica, now_s)
        work = Work(max(0, prompt.num_tokens - cached_tokens), prompt.num_tokens, replica.decode_tokens)
        seconds = queue.pace * self.prefill_time.seconds(work)
        queue.add(prompt.key, work, prompt.num_tokens, seconds, now_s)
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
        sample = queue.done(prompt.key, computed, now_s)
        if sample is not None:
            self.prefill_time.learn(sample.work, sample.seconds)
            queue.learn(sample.seconds, self.prefill_time.seconds(sample.work))

    def ended(self, prompt: Prompt, replica: ReplicaLoad, *, output_tokens: int, now_s: float) -> None:
        """Take the prefill off where the request ended without a first token."""
        self._queue(replica, now_s).take(prompt.key, now_s)

    def left(self, replica: ReplicaLoad) -> None:
        """Forget the replica's work and pace."""
        queue = self._queues[replica.slot] if replica.slot < len(self._queues) else None
        if queue is not None:
            self._stored -= queue.stored
            self._queues[replica.slot] = None


def _reason(cached: int, num_tokens: int, wait_s: float) -> str:
    if cached:
        return f"lowest cost: holds {cached} of {num_tokens} tokens, waits {wait_s:.3f} s"
    return f"lowest cost: waits {wait_s:.3f} s"


_UNCACHED_STEP: Final = 0.02  # weight of one request in that part
_LEAST_LATER: Final = 0.25  # later requests that a prefill delays, even at an idle fleet: cached work is free
_MAX_LOAD: Final = 0.75  # beyond, the estimate of a load says little
