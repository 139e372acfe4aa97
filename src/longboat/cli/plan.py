"""``longboat plan``: what the planner expects, and how far it is from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ("plan_app",)

plan_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Rows = Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured rows: docs/concepts/prediction.md.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Catalog = Annotated[list[Path] | None, typer.Option("--catalog", help="A catalog file of your own; may be repeated.")]
Models = Annotated[
    Path | None, typer.Option("--models", help="A folder of config.json files or model folders, by model name.")
]
Constants = Annotated[
    Path | None, typer.Option("--calibration", help="A calibration file, instead of your own or the built-in one.")
]


@plan_app.command()
def evaluate(
    file: Rows,
    folds: Annotated[
        bool, typer.Option("--folds", help="Fit to one half of the groups, predict the other, and the reverse.")
    ] = False,
    as_json: Json = False,
    catalog: Catalog = None,
    models: Models = None,
    calibration: Constants = None,
) -> None:
    """Compare predictions with measured rows, by model, hardware and engine."""
    from longboat.cli.plan_measured import run_evaluate

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
    from longboat.cli.plan_measured import run_calibrate

    run_calibrate(
        file,
        output=output,
        fresh=fresh,
        source=source,
        here=not elsewhere,
        catalog=tuple(catalog or ()),
        models=models,
    )
