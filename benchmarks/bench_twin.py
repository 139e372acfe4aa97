"""Compares the twin with engines: the same load through a real gateway to real processes, and through the simulation.

``bench_twin.py --part fake`` plays it on fake engines that batch continuously, ``--part vllm`` on a real vLLM with the
built-in model on CPUs. First the terms of a step are measured with a few requests; then the load is played. It prints
quantiles of TTFT and ITL of both, and the ratio of the twin's to the measured one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from gateway_bench.stand import say
from twin_compare import beside, show
from twin_stand import RealEngine, Seen, add_engine_options, ask, conversations, fake_engines, gateway, play

from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import COLD_AFTER_S, StepTime
from longboat.simulator.fleet.fleet import Fleet, even_fleet
from longboat.simulator.plan.fit_step_time import Row, fitted
from longboat.simulator.results.result import quantiles
from longboat.simulator.traces.sessions import Sessions
from longboat.simulator.traces.trace_request import TraceRequest

FAKE_FLAGS = (
    *("--step-ms", "100", "--prompt-token-us", "800", "--sequence-us", "2000", "--block-size", "16"),
    *("--kv-blocks", "8000", "--max-num-batched-tokens", "2048", "--max-num-seqs", "64"),
)
MEAN_TURNS = 3.527726473  # the load of the published results, to the request
FAKE_LIMITS = EngineLimits(kv_blocks=8000, max_num_seqs=64, max_num_batched_tokens=2048)
ROUNDS = 3
DECODES = 5
OUTPUT = 32
BLOCK = 32  # tokens: a multiple of the blocks of all engines under test
NEW_TOKENS = (16, 64, 160, 512, 1500)  # of the prompts from which the terms are learned, to compute,
CACHED_TOKENS = (0, 640, 1600)  # and before these, in the cache
PREFIXES = 8  # of each length: an engine's own caches hold what lies before, and a processor's should not
SHORT_S = 0.005  # pause in which engines stay warm: without one, Linux takes processors from real-time processes
PAUSES_S = (SHORT_S, 0.6)  # before a request: engines are warm, or have rested
PROBES = (64, 256, 512, 1024)  # tokens of prompts that are computed beside a stream
BEFORE_PROBE, AFTER_PROBE = 40, 40  # tokens of that stream
JITTER_PARTS = 400
CROWD_TOKENS, CROWD_OUTPUT = 1024, 8  # of the requests that several engines compute at once: mostly prefill
CROWD_ROUNDS = 9


@contextmanager
def engines(real: RealEngine | None, folder: Path) -> Iterator[tuple[list[str], EngineLimits]]:
    """Addresses of the engines under test, and their limits."""
    if real is None:
        with fake_engines(2, FAKE_FLAGS) as urls:
            yield urls, FAKE_LIMITS
    else:
        with real.running(folder) as found:
            yield found


def load_of(part: str, count: int, seed: int, rate: float) -> list[TraceRequest]:
    """The requests of the run."""
    longest = 3500 if part == "vllm" else 8000
    settings = Sessions(
        rate=rate, systems=3, system=600, turns=MEAN_TURNS, user=120, output=40, think=4.0, block=16, longest=longest
    )
    return conversations(settings, count, seed)


Cell = tuple[int, int, float]  # new tokens, cached tokens, pause before


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of engines from outside."""

    time: StepTime
    request_s: float  # of a request beside its steps: connections, and what gateway and API server do for each
    received_token_s: float  # of each prompt token beside its steps: it is parsed, hashed and passed on
    crowding: float  # part of a step's time that each other engine adds while it computes: they share processors
    jitter_s: tuple[float, ...]  # what a step takes beyond its terms, equally likely
    received_jitter_s: tuple[float, ...]  # the same of a request until its first step


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Times that were taken at engines, from which the terms are solved."""

    decodes: dict[tuple[int, int], list[float]]  # sequences, tokens before each: seconds of a step
    alone: dict[Cell, list[Seen]]  # requests that had the engine for themselves
    delays: dict[int, list[float]]  # tokens of a prompt: by how much it delayed a stream
    walls: tuple[list[float], list[float]]  # of one request, and of one at each engine of the machine

    def joined(self, other: Samples) -> Samples:
        """Return the times of both."""
        return Samples(
            decodes={key: times + other.decodes[key] for key, times in self.decodes.items()},
            alone={key: seen + other.alone[key] for key, seen in self.alone.items()},
            delays={key: times + other.delays[key] for key, times in self.delays.items()},
            walls=(self.walls[0] + other.walls[0], self.walls[1] + other.walls[1]),
        )


async def sample(
    url: str, seed: int, every: str = "", count: int = 1, rounds: int = ROUNDS, output_tokens: int = OUTPUT
) -> Samples:
    """Take times at one engine.

    every: the address of a gateway in front of all ``count`` engines of the machine
    rounds, output_tokens: of the requests from which the terms of prompts are learned
    """
    draw = _fresh(seed)
    decodes = {key: times for sequences in (1, 4, 16) for key, times in (await _decodes(url, sequences, draw)).items()}
    return Samples(
        decodes=decodes,
        alone=await _alone(url, draw, rounds, output_tokens),
        delays={tokens: [await _delay_s(url, draw, tokens) for _ in range(max(3, rounds))] for tokens in PROBES},
        walls=await _walls(every, draw, count) if count > 1 else ([], []),
    )


def solved(samples: Samples, count: int = 1) -> Measured:
    """Return a step's terms, its jitter, and what a request takes beside its steps.

    All terms of prompts are solved together: what a request takes beside its steps, and what any step that computes
    a prompt takes, look the same to the client, and only streams beside it tell them apart.
    """
    base_s, sequence_s, kv_token_s = fitted(list(_decode_rows(samples.decodes)))
    rows = [*_request_rows(samples.alone, base_s), *_step_rows(samples.delays, base_s + sequence_s)]
    request_s, received_token_s, wake_s, prompt_base_s, prompt_token_s, prompt_pair_s = fitted(rows)
    time = StepTime(
        base_s=base_s,
        prompt_base_s=prompt_base_s,
        prompt_token_s=max(prompt_token_s, 1e-9),
        prompt_pair_s=prompt_pair_s,
        sequence_s=sequence_s,
        kv_token_s=kv_token_s,
        wake_s=wake_s,
    )
    jitter_s = _jitter([one for seen in samples.alone.values() for one in seen])
    return Measured(
        time=time,
        request_s=request_s,
        received_token_s=received_token_s,
        crowding=_crowding(samples.walls, count) if count > 1 else 0.0,
        jitter_s=jitter_s,
        received_jitter_s=_received_jitter(samples.alone.values(), jitter_s),
    )


async def _alone(url: str, draw: Callable[[int], list[int]], rounds: int, output_tokens: int) -> dict[Cell, list[Seen]]:
    """Ask one request after another, with and without a pause before it."""
    prefixes = {tokens: [draw(tokens) for _ in range(PREFIXES)] for tokens in CACHED_TOKENS}
    for ids in [one for several in prefixes.values() for one in several]:
        await ask(url, ids or draw(BLOCK), 2)
    cells = [(new, cached, pause_s) for new in NEW_TOKENS for cached in CACHED_TOKENS for pause_s in PAUSES_S]
    plan = cells * rounds
    random.Random(len(plan)).shuffle(plan)  # what else runs on the machine meets all of them
    seen: dict[Cell, list[Seen]] = {cell: [] for cell in cells}
    for at, (new, cached, pause_s) in enumerate(plan):
        await asyncio.sleep(pause_s)
        ids = prefixes[cached][at % PREFIXES] + draw(new)
        seen[new, cached, pause_s].append(await ask(url, ids, output_tokens))
    return seen


def _request_rows(alone: Mapping[Cell, Sequence[Seen]], base_s: float) -> Iterator[Row]:
    """Yield what requests take until their first tokens, without what every step takes."""
    for (new, cached, pause_s), seen in alone.items():
        ttft_s = statistics.median([one.ttft_s for one in seen])
        cold = float(pause_s >= COLD_AFTER_S)
        row = (1.0, float(new + cached), cold, 1.0, float(new), new * (cached + new / 2.0))
        yield row, max(1e-6, ttft_s - base_s), ttft_s


def _step_rows(delays: Mapping[int, Sequence[float]], decode_s: float) -> Iterator[Row]:
    """Yield what prompts delay a stream by that decodes beside them: these are their steps."""
    for tokens, times in delays.items():
        more_s = max(1e-6, statistics.median(times))
        yield (0.0, 0.0, 0.0, 1.0, float(tokens), tokens * tokens / 2.0), more_s, decode_s + more_s


async def _delay_s(url: str, draw: Callable[[int], list[int]], tokens: int) -> float:
    """Return by how much a prompt delays a stream: what its gaps take meanwhile beyond those before.

    An engine that prepares a step while another runs delivers some tokens late, so no single gap is the whole step.
    """
    await asyncio.sleep(SHORT_S)
    seen = Seen()
    stream = asyncio.ensure_future(ask(url, draw(BLOCK), BEFORE_PROBE + 2000, seen))
    while seen.num_tokens < BEFORE_PROBE:  # noqa: ASYNC110  (notes are plain data)
        await asyncio.sleep(0.001)
    count, usual_s = len(seen.gaps_s), statistics.median(seen.gaps_s)
    await ask(url, draw(tokens), 1)
    until = seen.num_tokens + 3
    while seen.num_tokens < until and not stream.done():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    stream.cancel()
    with suppress(asyncio.CancelledError):
        await stream
    gaps = seen.gaps_s[count:]
    return sum(gaps) - usual_s * len(gaps)


def _jitter(alone: Sequence[Seen]) -> tuple[float, ...]:
    """Return by how much the gaps of requests that ran alone differ from the middle one of each, in the mean by 0."""
    found = sorted([gap_s - statistics.median(one.gaps_s) for one in alone if one.gaps_s for gap_s in one.gaps_s])
    mean_s = statistics.fmean(found)
    return tuple(found[int((at + 0.5) / JITTER_PARTS * len(found))] - mean_s for at in range(JITTER_PARTS))


def _received_jitter(alone: Iterable[Sequence[Seen]], jitter_s: Sequence[float]) -> tuple[float, ...]:
    """Return by how much the times to the first tokens of equal requests differ, without what their steps do.

    Each first token comes with a step, whose jitter the twin draws too: that part of the variance is taken off. Few
    requests of a cell lie closer to their own mean than to that of all: their differences are widened for it.
    """
    found: list[float] = []
    for seen in alone:
        times_s = [one.ttft_s for one in seen]
        if (num := len(times_s)) < 2:
            continue
        mean_s, wider = statistics.fmean(times_s), (num / (num - 1)) ** 0.5
        found.extend([wider * (time_s - mean_s) for time_s in times_s])
    if len(found) < 2:
        return ()
    rest = max(0.0, 1.0 - statistics.pvariance(jitter_s) / max(1e-12, statistics.pvariance(found)))
    return tuple(sorted(rest**0.5 * value_s for value_s in found))


async def _walls(url: str, draw: Callable[[int], list[int]], count: int) -> tuple[list[float], list[float]]:
    """Time one request, and one at each engine at the same time."""
    alone, together = [], []
    for _ in range(CROWD_ROUNDS):  # in turns: what else runs on the machine slows both
        alone.append(await _wall_s(url, [draw(CROWD_TOKENS)], CROWD_OUTPUT))
        together.append(await _wall_s(url, [draw(CROWD_TOKENS) for _ in range(count)], CROWD_OUTPUT))
    return alone, together


def _crowding(walls: tuple[Sequence[float], Sequence[float]], count: int) -> float:
    """Return what each further engine that computes at the same time adds to a request, as a part of its time."""
    alone, together = walls
    return max(0.0, statistics.median(together) / statistics.median(alone) - 1.0) / (count - 1)


async def _decodes(url: str, count: int, draw: Callable[[int], list[int]]) -> dict[tuple[int, int], list[float]]:
    """Measure steps of ``count`` sequences with short and with long contexts, by what more tokens take.

    Times between tokens say less: a client or a server that is late passes several on at once.
    """
    found: dict[tuple[int, int], list[float]] = {}
    for tokens in (64, 1024):
        prompts = [draw(tokens) for _ in range(count)]
        await _wall_s(url, prompts, 2)  # they are cached then
        walls = [(await _wall_s(url, prompts, 2 + OUTPUT) - await _wall_s(url, prompts, 2)) for _ in range(DECODES)]
        found[count, tokens] = [wall_s / OUTPUT for wall_s in walls]
    return found


def _decode_rows(decodes: Mapping[tuple[int, int], Sequence[float]]) -> Iterator[Row]:
    for (count, tokens), times in decodes.items():
        step_s = max(1e-4, statistics.median(times))
        yield (1.0, float(count), float(count * (tokens + OUTPUT // 2))), step_s, step_s


async def _wall_s(url: str, prompts: Sequence[Sequence[int]], output_tokens: int) -> float:
    await asyncio.sleep(SHORT_S)
    began_s = perf_counter()
    await asyncio.gather(*(ask(url, ids, output_tokens) for ids in prompts))
    return perf_counter() - began_s


def _fresh(seed: int) -> Callable[[int], list[int]]:
    draw = random.Random(-seed)
    return lambda tokens: [draw.randrange(64, 3700) for _ in range(tokens)]


def twin_of(count: int, limits: EngineLimits, found: Measured) -> Fleet:
    """The fleet of the run, on one machine: what a request takes beside its steps counts as the network's."""
    plain = even_fleet(count, found.time, limits)
    replicas = tuple(replace(one, host="this", jitter_s=found.jitter_s) for one in plain)
    return Fleet(
        replicas=replicas,
        slots=limits.max_num_seqs,
        network_s=found.request_s / 2.0,
        received_token_s=found.received_token_s,
        received_jitter_s=found.received_jitter_s,
        crowding=found.crowding,
        report_s=0.0,
    )


def run(real: RealEngine | None, count: int, seed: int, rates: Sequence[float]) -> dict[str, object]:
    """Play and simulate each rate, with times taken before and after it. real: the engines under test; None: fake ones

    What else runs on the machine changes within minutes, and makes steps a fifth longer.
    """
    part = "fake" if real is None else "vllm"
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, engines(real, Path(folder)) as (urls, limits):
        say(f"taking times, engines: {len(urls)}; this is repeated after each rate")
        before = _sampled(urls, seed, is_real=real is not None)
        for at, rate in enumerate(rates):
            requests = load_of(part, count, seed + at, rate)  # other prompts, so that nothing is cached before
            say(f"{rate:g} conversations a second, {at + 1} of {len(rates)}: {requests[-1].at_s:.0f} s of load")
            with gateway(urls) as url:
                seen = asyncio.run(play(url, requests))
            say("taking times again")
            after = _sampled(urls, seed + 1000 * (at + 1), is_real=real is not None)
            found = solved(before.joined(after), len(urls))
            fleet = twin_of(len(urls), limits, found)
            rows.append({"rate": rate, "terms": asdict(found), **beside(fleet, requests, seen, seed)})
            before = after
    return {"part": part, "rates": rows}


def _sampled(urls: Sequence[str], seed: int, *, is_real: bool) -> Samples:
    effort = {} if is_real else {"rounds": 1, "output_tokens": 4}
    with gateway(urls[:1]) as url, gateway(urls) as every:
        return asyncio.run(sample(url, seed, every, len(urls), **effort))


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("fake", "vllm"), default="fake")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.25], help="conversations that begin each second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worst", type=int, default=0, help="print as many requests that waited longest")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and requests there")
    add_engine_options(parser)
    options = parser.parse_args()
    real = RealEngine.told(options) if options.part == "vllm" else None
    found = run(real, options.requests, options.seed, options.rates)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    for row in found["rates"]:  # type: ignore[attr-defined]
        _show_terms(row["terms"])
        show(row, options.worst)


def _show_terms(terms: Mapping[str, Any]) -> None:
    print(
        f"each request takes {terms['request_s'] * 1e3:.2f} ms beside its steps and "
        f"{terms['received_token_s'] * 1e6:.2f} us more for each token; each other engine adds {terms['crowding']:.0%}"
    )
    jitter_ms = [1e3 * value for value in quantiles(terms["jitter_s"], (0.1, 0.5, 0.9, 0.99))]
    print(f"jitter of a step, p10, p50, p90 and p99: {', '.join(f'{value:+.2f}' for value in jitter_ms)} ms")
    print(f"step: {terms['time']}")


if __name__ == "__main__":
    main()
