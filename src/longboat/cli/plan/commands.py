"""``longboat plan``, ``fit`` and ``cost``: what the planner expects, and how far it is from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longboat.cli.plan import plan_options as options

__all__ = ("cost", "fit", "plan_app")

plan_app = typer.Typer(
    cls=options.ModelGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="longboat plan model --help lists the options of a plan.",
)

Rows = Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured rows: docs/concepts/prediction.md.")]
Catalog = Annotated[list[Path] | None, typer.Option("--catalog", help="A catalog file of your own; may be repeated.")]
Models = Annotated[
    Path | None, typer.Option("--models", help="A folder of config.json files or model folders, by model name.")
]
Constants = Annotated[
    Path | None, typer.Option("--calibration", help="A calibration file, instead of your own or the built-in one.")
]


@plan_app.command("model")
@options.takes_request()
def plan_model(
    model: options.ModelName,
    request: options.PlanRequest,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Write throughput against latency, and memory, as FILE.svg.")
    ] = None,
    write: Annotated[Path | None, typer.Option("--write", help="Write a fleet file for check and up.")] = None,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print the commands that start the engine without Longboat.")
    ] = False,
    must_keep: Annotated[
        bool, typer.Option("--must-keep", help="Exit with 6 where the best plan misses --slo or --rate.")
    ] = False,
    speculation: Annotated[
        str,
        typer.Option("--speculation", help="Compare with speculative decoding: mtp:1, eagle3:3, or eagle3:3:0.7."),
    ] = "",
    draft_model: Annotated[str, typer.Option("--draft-model", help="The model of --speculation draft:4.")] = "",
    offload: Annotated[
        str, typer.Option("--offload", help='Keep what does not fit a card in RAM: "Desktop 2ch DDR5-5600 64GB".')
    ] = "",
    apart: Annotated[
        bool, typer.Option("--apart", help="Compare with prefill and decode on separate replicas.")
    ] = False,
    kv_tier: Annotated[
        list[str] | None,
        typer.Option(
            "--kv-tier", help='Room behind the cache on each node: "ram 256GiB" or "disk 2TB 7GB/s". May be repeated.'
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Plan a model on machines: how to split it, how fast it will be, and why. The word `model` may be left out."""
    from longboat.cli.plan.outputs.what_if_notes import WhatIf
    from longboat.cli.plan.plan_command import Wanted, run_plan

    wanted = Wanted(
        as_json=as_json,
        chart=chart,
        write=write,
        commands=commands,
        must_keep=must_keep,
        what_if=WhatIf(speculation=speculation, draft_model=draft_model, apart=apart, kv_tiers=tuple(kv_tier or ())),
        offload=offload,
    )
    run_plan(model, request, wanted)


@plan_app.command("list")
def list_catalog(
    kind: Annotated[str, typer.Argument(help="models, cards, networks, engines or prices.")],
    catalog: Catalog = None,
    as_json: options.Json = False,
) -> None:
    """List the names that plans take: models, cards, networks, engines, prices."""
    from longboat.cli.plan.list_command import run_list

    run_list(kind, catalog=tuple(catalog or ()), as_json=as_json)


@plan_app.command()
def evaluate(
    file: Rows,
    folds: Annotated[
        bool, typer.Option("--folds", help="Fit to one half of the groups, predict the other, and the reverse.")
    ] = False,
    as_json: options.Json = False,
    catalog: Catalog = None,
    models: Models = None,
    calibration: Constants = None,
) -> None:
    """Compare predictions with measured rows, by model, hardware and engine."""
    from longboat.cli.plan.plan_measured import run_evaluate

    run_evaluate(
        file, folds=folds, as_json=as_json, catalog=tuple(catalog or ()), models=models, calibration=calibration
    )


@plan_app.command()
def calibrate(
    file: Rows,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write; your own calibration file when left out.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start from the defaults, not from what was learned.")] = False,
    source: Annotated[str, typer.Option("--source", help="Where the rows come from, for the file.")] = "",
    elsewhere: Annotated[bool, typer.Option("--elsewhere", help="The rows are not from your own machines.")] = False,
    catalog: Catalog = None,
    models: Models = None,
) -> None:
    """Fit the time model to measured rows; predictions use it from then on."""
    from longboat.cli.plan.plan_measured import run_calibrate

    run_calibrate(
        file,
        output=output,
        fresh=fresh,
        source=source,
        here=not elsewhere,
        catalog=tuple(catalog or ()),
        models=models,
    )


@options.takes_request(
    "add",
    "remove",
    "swap",
    "net",
    "os",
    "rate",
    "burstiness",
    "tensor",
    "pipeline",
    "data",
    "expert_parallel",
)
def fit(
    request: options.PlanRequest,
    all_models: Annotated[
        bool, typer.Option("--all", help="Show models that do not fit or miss --slo too, with the reason.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List which models of the catalog fit on machines, and how well."""
    from longboat.cli.plan.fit_command import run_fit

    run_fit(request, as_json=as_json, all_models=all_models)


@options.takes_request(
    "add", "remove", "swap", "net", "os", "context", "slo", "kv_bits", "tensor", "pipeline", "data", "expert_parallel"
)
def cost(
    model: options.ModelName,
    request: options.PlanRequest,
    electricity: Annotated[
        str, typer.Option("--electricity", help="USD for a kWh, or a region of the catalog.")
    ] = "United States",
    utilization: Annotated[float, typer.Option("--utilization", help="Share of the time with this load.")] = 0.5,
    tokens_per_day: Annotated[
        float | None,
        typer.Option("--tokens-per-day", help="Tokens of prompts and responses, instead of --utilization."),
    ] = None,
    years: Annotated[float, typer.Option("--years", help="Depreciation period in years.")] = 3.0,
    price: Annotated[
        float | None, typer.Option("--price", help="USD for all machines, instead of the catalog's prices.")
    ] = None,
    api: Annotated[
        str, typer.Option("--api", help="An API price of the catalog to compare with.", show_default=False)
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Count watts and money per million tokens, and when a purchase pays."""
    from longboat.cli.plan.cost_command import Money, run_cost

    money = Money(
        electricity=electricity,
        utilization=utilization,
        tokens_per_day=tokens_per_day,
        years=years,
        price_usd=price,
        api=api,
    )
    run_cost(model, request, money, as_json=as_json)
