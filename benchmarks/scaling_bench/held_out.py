"""Other loads than the table's: other windows of the traces, and rates and lengths from chance.

Those of ``held_out_of`` were held out until the scaler was changed for what they showed. A seed draws others with
``fresh_of``, as many as are wanted: a change of the scaler is judged by seeds that were not played before it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from longboat.core.scaling import Objective
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.traces.trace_request import TraceRequest
from scaling_bench.loads import (
    AZURE,
    LARGE,
    LARGE_LIMITS,
    LARGE_OBJECTIVE,
    MOONCAKE,
    SMALL,
    SMALL_LIMITS,
    SMALL_OBJECTIVE,
    Load,
    Rate,
    drawn,
    read_lengths,
    read_uncached,
)

__all__ = ("FRESH", "HELD_OUT", "fresh_of", "held_out_of")

_HOUR, _DAY = 3600.0, 86_400.0
_SPAN_S = 3400.0

# Forty times as slow as that for Azure's requests, so that nine days have few requests; decisions come each 20 s.
_SLOWEST = StepTime(base_s=0.8, prompt_token_s=8e-3, sequence_s=2e-2, kv_token_s=8e-6)
_SLOWEST_OBJECTIVE = Objective(ttft_ms=80_000.0, itl_ms=4000.0)


def held_out_of(folder: Path, only: Collection[str] = ()) -> Iterator[Load]:
    """Yield the loads. only: their names; empty: all"""
    for name, make in HELD_OUT.items():
        if not only or name in only:
            yield make(name, folder)


def fresh_of(folder: Path, seed: str, only: Collection[str] = ()) -> Iterator[Load]:
    """Yield the loads that a seed draws. only: their names without the seed; empty: all"""
    for name, make in FRESH.items():
        if not only or name in only:
            yield make(f"{name} {seed}", folder, f"{seed} ")


def _azure_backwards(name: str, folder: Path) -> Load:
    """Return Azure's hour played backwards, laid over itself with a quarter of an hour between."""
    return Load(name, _laid(_backwards(read_lengths(folder / AZURE)), 2, 871.0), SMALL, SMALL_LIMITS, SMALL_OBJECTIVE)


def _azure_short(name: str, folder: Path) -> Load:
    """Return the requests of Azure that ask for few tokens, at three times the rate of all of them."""
    rows = [one for one in read_lengths(folder / AZURE) if one.output_tokens < 150]
    return Load(name, _laid(rows, 3, 641.0), SMALL, SMALL_LIMITS, SMALL_OBJECTIVE)


def _mooncake_backwards(name: str, folder: Path) -> Load:
    """Return the second half of Mooncake's hour backwards, laid four times over itself."""
    rows = read_uncached(folder / MOONCAKE)
    return Load(name, _laid(_backwards(rows[len(rows) // 2 :]), 4, 397.0), LARGE, LARGE_LIMITS, LARGE_OBJECTIVE)


def _azure_drawn(name: str, folder: Path, salt: str) -> Load:
    """Return some of Azure's requests as a seed changes them."""
    rows = _changed(read_lengths(folder / AZURE), random.Random(name))
    return Load(name, rows, SMALL, SMALL_LIMITS, SMALL_OBJECTIVE)


def _mooncake_drawn(name: str, folder: Path, salt: str) -> Load:
    """Return some of Mooncake's requests as a seed changes them."""
    rows = _changed(read_uncached(folder / MOONCAKE), random.Random(name))
    return Load(name, rows, LARGE, LARGE_LIMITS, LARGE_OBJECTIVE)


def _wandering(name: str, folder: Path, salt: str = "") -> Load:
    """Return a rate whose logarithm wanders by chance, around 8 requests a second, with lengths from chance."""
    draw = random.Random(f"{salt}a wandering rate")
    logs = [0.0]
    for _ in range(int(_HOUR / 5)):
        logs.append(0.995 * logs[-1] + 0.05 * draw.gauss(0.0, 1.0))
    return _small(name, lambda t: 8.0 * math.exp(max(-1.5, min(1.2, logs[int(t / 5)]))), _HOUR, _chance_lengths(salt))


def _steps(name: str, folder: Path, salt: str = "") -> Load:
    """Return a rate that changes at moments of chance, each five minutes on average, by at most a half."""
    draw = random.Random(f"{salt}steps")
    times, rates = [0.0], [7.0]
    while times[-1] < _HOUR:
        times.append(times[-1] + draw.expovariate(1 / 300.0))
        rates.append(min(20.0, max(3.0, rates[-1] * draw.uniform(0.67, 1.5))))
    return _small(name, lambda t: rates[sum(one <= t for one in times) - 1], _HOUR, _chance_lengths(salt))


def _saw(name: str, folder: Path) -> Load:
    """Return a rate that rises from 4 to 14 requests a second in 37 minutes, falls at once, and rises again."""
    return _small(name, lambda t: 4.0 + 10.0 * (t % 2220.0) / 2220.0, 1.5 * _HOUR, _chance_lengths())


def _saw_drawn(name: str, folder: Path, salt: str) -> Load:
    """Return the saw with teeth and rates of chance."""
    draw = random.Random(name)
    period_s, least, more = draw.uniform(900.0, 3000.0), draw.uniform(3.0, 8.0), draw.uniform(5.0, 15.0)
    return _small(name, lambda t: least + more * (t % period_s) / period_s, 1.5 * _HOUR, _chance_lengths(salt))


def _bursty(name: str, folder: Path, salt: str = "") -> Load:
    """Return requests that come in groups of chance, of four on average."""
    draw, found, at_s = random.Random(f"{salt}groups"), list[TraceRequest](), 0.0
    lengths = _chance_lengths(salt)
    while (at_s := at_s + draw.expovariate(2.5)) < _HOUR:
        for _ in range(1 + int(draw.expovariate(1 / 3.5))):
            prompt, output = lengths[draw.randrange(len(lengths))]
            found.append(TraceRequest(at_s, prompt, output))
    return Load(name, found, SMALL, SMALL_LIMITS, SMALL_OBJECTIVE)


def _week(name: str, folder: Path) -> Load:
    """Return nine days of office hours, with less on the sixth and seventh day."""

    def rate_at(at_s: float) -> float:
        day = int(at_s / _DAY) % 7
        return 0.03 + (0.05 if day in (5, 6) else 0.2) * max(0.0, -math.cos(2 * math.pi * at_s / _DAY)) ** 1.5

    load = _small(name, rate_at, 9 * _DAY, _chance_lengths())
    return replace(load, time=_SLOWEST, objective=_SLOWEST_OBJECTIVE, tick_s=20.0)


HELD_OUT: dict[str, Callable[[str, Path], Load]] = {
    "azure backwards": _azure_backwards,
    "azure short": _azure_short,
    "mooncake backwards": _mooncake_backwards,
    "wandering": _wandering,
    "steps": _steps,
    "saw": _saw,
    "bursty": _bursty,
    "week": _week,
}


FRESH: dict[str, Callable[[str, Path, str], Load]] = {
    "azure": _azure_drawn,
    "azure again": _azure_drawn,
    "mooncake": _mooncake_drawn,
    "mooncake again": _mooncake_drawn,
    "wandering": _wandering,
    "steps": _steps,
    "saw": _saw_drawn,
    "bursty": _bursty,
}


def _small(name: str, rate_at: Rate, span_s: float, lengths: list[tuple[int, int]]) -> Load:
    return Load(name, drawn(name, lengths, rate_at, span_s), SMALL, SMALL_LIMITS, SMALL_OBJECTIVE)


def _chance_lengths(salt: str = "") -> list[tuple[int, int]]:
    """Return lengths of logarithmic normal distributions: prompts around 700 tokens, outputs around 160."""
    draw = random.Random(f"{salt}lengths")
    return [
        (min(8000, 1 + int(draw.lognormvariate(6.55, 0.8))), min(1500, 1 + int(draw.lognormvariate(5.1, 0.7))))
        for _ in range(5000)
    ]


def _backwards(rows: list[TraceRequest]) -> list[TraceRequest]:
    last_s = rows[-1].at_s
    return [TraceRequest(last_s - one.at_s, one.prompt_tokens, one.output_tokens) for one in reversed(rows)]


def _changed(rows: list[TraceRequest], draw: random.Random) -> list[TraceRequest]:
    """Return a trace in which much is by chance.

    Long prompts or long outputs may be left out; it may be backwards, slower or faster; it is laid two to five times
    over itself.
    """
    tokens = attrgetter(draw.choice(["prompt_tokens", "output_tokens"]))
    longest = sorted(map(tokens, rows))[int(draw.uniform(0.4, 1.0) * len(rows)) - 1]
    rows = [one for one in rows if tokens(one) <= longest]
    if draw.random() < 0.5:
        rows = _backwards(rows)
    slower = draw.uniform(0.8, 1.5)
    rows = [TraceRequest(slower * one.at_s, one.prompt_tokens, one.output_tokens) for one in rows]
    return _laid(rows, draw.randint(2, 5), draw.uniform(200.0, 1500.0))


def _laid(rows: list[TraceRequest], times: int, apart_s: float) -> list[TraceRequest]:
    """Return a trace laid over itself, each time shifted further around its own end."""
    begin_s, span_s = rows[0].at_s, rows[-1].at_s - rows[0].at_s
    found = [
        TraceRequest((one.at_s - begin_s + turn * apart_s) % span_s, one.prompt_tokens, one.output_tokens)
        for turn in range(times)
        for one in rows
    ]
    return sorted((one for one in found if one.at_s < _SPAN_S), key=lambda one: one.at_s)
