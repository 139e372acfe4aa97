"""``longboat simulate``: plays a trace on the twin once for each policy, and shows what the requests saw."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from longboat.cli.simulate.fleet_to_simulate import fleet_to_simulate, seed_of
from longboat.cli.simulate.simulate_options import SimulateRequest, parse_policies
from longboat.cli.simulate.trace_to_play import TraceToPlay
from longboat.core.errors import UserInputError, unwritable
from longboat.routing.policies.registry import policy_of
from longboat.simulator.fleet.fleet import Fleet
from longboat.simulator.fleet.simulation import simulate
from longboat.simulator.results.html_report import html_report
from longboat.simulator.results.result import Result
from longboat.simulator.results.rows import row_of
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("run_simulate",)

_NOTE_S = 1.0


def run_simulate(request: SimulateRequest, *, as_json: bool, report: Path | None) -> None:
    """Print a row for each policy, and write the report where one is wanted."""
    request.check()
    policies = parse_policies(request.policies)
    if report is not None and report.suffix != ".html":
        raise UserInputError(f"{report} is not an HTML file", hint=f"--report {report.with_suffix('.html')}")
    spec, fleet, title, gaps = fleet_to_simulate(request)
    for gap in gaps:
        print(f"not played: {gap}", file=sys.stderr)
    trace = TraceToPlay(request, spec.name)
    results = [_run(policy, fleet, trace.play, request) for policy in policies]
    _check(results[0], fleet)
    if trace.others:
        names = ", ".join(sorted(trace.others))
        print(f"{trace.others.total()} requests of other models are left out: {names}", file=sys.stderr)
    told = (
        f"{spec.name}: {len(fleet.replicas)} replicas of {title}; {request.trace} at {request.rate_scale:g} x its rate"
    )
    if report is not None:
        _write(report, html_report(told, results))
    if as_json:
        document = {**_document(spec.name, title, fleet, request, results), "not_played": gaps}
        print(json.dumps(document, indent=2))
        return
    from longboat.cli.simulate.simulate_table import print_results

    print_results(told, results)


def _run(policy: str, fleet: Fleet, play: Callable[[], Iterator[TraceRequest]], request: SimulateRequest) -> Result:
    seed, began_s = seed_of(fleet), time.monotonic()
    requests = _told(play(), policy, request.requests)
    result = simulate(fleet, requests, lambda: policy_of(policy, seed), seed=request.seed)
    took_s = time.monotonic() - began_s
    ratio = result.span_s / took_s if took_s else 0.0
    note = f"{policy}: {result.requests} requests of {result.span_s:.0f} s in {took_s:.1f} s, {ratio:.0f} x real time"
    print(f"\r{note}\033[K" if sys.stderr.isatty() else note, file=sys.stderr, flush=True)
    return result


def _told(requests: Iterator[TraceRequest], policy: str, total: int | None) -> Iterator[TraceRequest]:
    """Pass requests on, and say on a terminal how many there were."""
    if not sys.stderr.isatty():
        yield from requests
        return
    noted_s = time.monotonic()
    for number, request in enumerate(requests):
        if number % 256 == 0 and time.monotonic() - noted_s >= _NOTE_S:
            noted_s = time.monotonic()
            of = f" of {total}" if total else ""
            print(f"\r{policy}: {number}{of} requests\033[K", end="", file=sys.stderr, flush=True)
        yield request


def _check(result: Result, fleet: Fleet) -> None:
    limits = fleet.replicas[0].limits
    room = limits.kv_blocks * limits.block_tokens
    if result.too_long and not result.requests:
        raise UserInputError(
            f"none of the {result.too_long} requests fits into a replica's KV cache of {room} tokens",
            hint="give --on with more memory, a split over more cards, or another trace",
        )
    if result.too_long:
        note = f"{result.too_long} requests are longer than a replica's KV cache ({room} tokens): they are left out"
        print(note, file=sys.stderr)


def _document(
    model: str, title: str, fleet: Fleet, request: SimulateRequest, results: list[Result]
) -> dict[str, object]:
    time_of, limits = fleet.replicas[0].time, fleet.replicas[0].limits
    return {
        "model": model,
        "replicas": len(fleet.replicas),
        "replica": title,
        "gateways": fleet.gateways,
        "trace": request.trace,
        "rate_scale": request.rate_scale,
        "seed": request.seed,
        "step_time": {name: getattr(time_of, name) for name in time_of.__dataclass_fields__},
        "limits": {name: getattr(limits, name) for name in limits.__dataclass_fields__},
        "policies": [row_of(result) for result in results],
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from None
