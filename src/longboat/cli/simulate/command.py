"""The options of ``longboat simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ("simulate",)


def simulate(
    fleet: Annotated[str, typer.Option("--fleet", metavar="FILE", help="A fleet file.", show_default=False)] = "",
    trace: Annotated[
        str,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Mooncake, Azure or recorded requests; or sessions:rate=4,system=2000,turns=6.",
            show_default=False,
        ),
    ] = "",
    policies: Annotated[
        str, typer.Option("--policies", help="Routing policies, with commas between; or all.")
    ] = "cost",
    on: Annotated[
        str, typer.Option("--on", help='Machines: "8xH100", a cluster file, here or live.  [default: here]')
    ] = "",
    model: Annotated[
        str | None, typer.Option("--model", help="The model to simulate, if the file has several.")
    ] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", help="Replicas, instead of the file's.")] = None,
    gateways: Annotated[int, typer.Option("--gateways", help="Number of gateways; they share nothing.")] = 1,
    rate_scale: Annotated[float, typer.Option("--rate-scale", help="Play the trace this many times as fast.")] = 1.0,
    requests: Annotated[
        int | None, typer.Option("--requests", help="End after this many; a shorter trace is played again.")
    ] = None,
    jitter_s: Annotated[float, typer.Option("--jitter", help="Delay each request by up to this many seconds.")] = 0.0,
    speed_spread: Annotated[
        float, typer.Option("--speed-spread", help="Replicas differ in speed by up to this share.")
    ] = 0.0,
    slots: Annotated[int | None, typer.Option("--slots", help="Concurrent requests of a replica.")] = None,
    kv_tokens: Annotated[int | None, typer.Option("--kv-tokens", help="Tokens of a replica's KV cache.")] = None,
    step_time: Annotated[
        str,
        typer.Option("--step-time", help="Times of a step, instead of the planner's: base_s=0.01,prompt_token_s=5e-5."),
    ] = "",
    event: Annotated[
        list[str] | None,
        typer.Option("--event", help='"fail replica-0 60": also join, clear and slow. May be repeated.'),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same result.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    report: Annotated[Path | None, typer.Option("--report", help="Write the curves as FILE.html.")] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Simulate nothing: write the requests of live gateways as a trace.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="With --record: the address of one gateway.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="With --record: end after this time.")] = None,
) -> None:
    """Play a trace on a twin of the fleet, once for each routing policy. Nothing is started."""
    if record is not None:
        from longboat.cli.simulate.run_record import run_record

        run_record(record, url=url, seconds=seconds)
        return
    _check_no_recording(url, seconds)
    from longboat.cli.simulate.run_simulate import run_simulate
    from longboat.cli.simulate.simulate_options import SimulateRequest

    request = SimulateRequest(
        fleet=fleet,
        trace=trace,
        policies=policies,
        on=on,
        model=model,
        replicas=replicas,
        gateways=gateways,
        rate_scale=rate_scale,
        requests=requests,
        jitter_s=jitter_s,
        speed_spread=speed_spread,
        slots=slots,
        kv_tokens=kv_tokens,
        step_time=step_time,
        events=tuple(event or ()),
        seed=seed,
    )
    run_simulate(request, as_json=as_json, report=report)


def _check_no_recording(url: str | None, seconds: float | None) -> None:
    """Raise UserInputError where options of --record are given without it."""
    from longboat.core.errors import UserInputError

    for option, value in (("--url", url), ("--seconds", seconds)):
        if value is not None:
            raise UserInputError(f"{option} belongs to --record", hint=f"leave out {option}, or add --record FILE")
