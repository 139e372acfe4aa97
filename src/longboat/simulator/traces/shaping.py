"""Changes the load of a trace: its rate, its length, and the moments at which requests come."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator

from longboat.core.errors import UserInputError
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("shaped",)


def shaped(
    read: Callable[[int], Iterator[TraceRequest]],
    *,
    rate_scale: float = 1.0,
    requests: int | None = None,
    jitter_s: float = 0.0,
    seed: int = 0,
) -> Iterator[TraceRequest]:
    """Yield the requests of a trace, one by one.

    read: reads it from its beginning; prompts that were read with another number share nothing with these
    rate_scale: how many times as fast requests come
    requests: to yield; a trace with fewer is played again from its beginning, as if by other users; None: all of it.
        One whose requests all come at one moment has no rate, and cannot be played again: UserInputError
    jitter_s: the most by which each request comes later, of the time after scaling; the order may change a little
    """
    found = _scaled(_repeated(read, requests), rate_scale)
    return _jittered(found, jitter_s, random.Random(seed)) if jitter_s > 0.0 else found


def _repeated(read: Callable[[int], Iterator[TraceRequest]], requests: int | None) -> Iterator[TraceRequest]:
    left, start_s, last_s, turn = requests, 0.0, 0.0, 0
    while True:
        count = 0
        for request in read(turn):
            if left == 0:
                return
            count += 1
            left = None if left is None else left - 1
            last_s = request.at_s = start_s + request.at_s
            yield request
        if not count:
            raise UserInputError("the trace has no requests", hint="give a file with at least one line")
        if not left:
            return
        if last_s == start_s:
            raise UserInputError(
                f"the trace has only {count} requests, all at one moment: it cannot be repeated at its rate",
                hint=f"--requests {count}, or a trace with more",
            )
        turn += 1
        start_s = last_s + (last_s - start_s) / count  # after a mean pause


def _scaled(requests: Iterator[TraceRequest], rate_scale: float) -> Iterator[TraceRequest]:
    for request in requests:
        request.at_s /= rate_scale
        yield request


def _jittered(requests: Iterator[TraceRequest], jitter_s: float, draw: random.Random) -> Iterator[TraceRequest]:
    held: list[tuple[float, int, TraceRequest]] = []
    for number, request in enumerate(requests):
        while held and held[0][0] <= request.at_s:
            yield heapq.heappop(held)[2]
        request.at_s += draw.random() * jitter_s
        heapq.heappush(held, (request.at_s, number, request))
    while held:
        yield heapq.heappop(held)[2]
