"""Fleets and requests for tests of the twin."""

from __future__ import annotations

import random
from collections.abc import Iterator

from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.fleet.fleet import Fleet, even_fleet
from longboat.simulator.traces.sessions import Sessions, generate_sessions
from longboat.simulator.traces.trace_request import TraceRequest

TIME = StepTime(base_s=0.01, prompt_token_s=5e-5, prompt_pair_s=1e-9, sequence_s=5e-5, kv_token_s=1e-8)
LIMITS = EngineLimits(kv_blocks=4000)
LOAD = Sessions(rate=1.0, hours=0.02, think=3.0, block=32, longest=16_000)


def fleet_of(count: int = 4, **settings: object) -> Fleet:
    return Fleet(replicas=even_fleet(count, TIME, LIMITS), **settings)  # type: ignore[arg-type]


def talks(seed: int = 1) -> Iterator[TraceRequest]:
    return generate_sessions(LOAD, seed)


def plain(rate: float, count: int, prompt_tokens: int, output_tokens: int, seed: int = 1) -> Iterator[TraceRequest]:
    """Yield requests that share nothing, at exponential intervals."""
    draw, now_s = random.Random(seed), 0.0
    for _ in range(count):
        now_s += draw.expovariate(rate)
        yield TraceRequest(now_s, prompt_tokens, output_tokens)
