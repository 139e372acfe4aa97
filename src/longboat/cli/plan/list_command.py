"""``longboat plan list``: the names that plans take, with the figures that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from longboat.catalog.entries import CloudPrice
from longboat.catalog.library import Library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.names import nearest_names
from longboat.cli.shared.catalog_files import read_library
from longboat.core.errors import UserInputError

__all__ = ("run_list",)

Row = tuple[str, ...]
GIB = 1024**3


def run_list(kind: str, *, catalog: tuple[Path, ...], as_json: bool) -> None:
    """Print the catalog's entries of one kind. Raises UserInputError where there is no such kind."""
    wanted = kind.strip().lower()
    wanted = wanted if wanted in KINDS else f"{wanted}s"
    if wanted not in KINDS:
        near = nearest_names(kind, KINDS)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(KINDS)}"
        raise UserInputError(f"there is no list of {kind!r}", hint=hint)
    columns, rows = KINDS[wanted]
    found = list(rows(read_library(catalog)))
    if as_json:
        names = [column.rstrip(">").lower().replace(" ", "_") for column in columns]
        print(json.dumps([dict(zip(names, row, strict=True)) for row in found], indent=2))
        return
    from longboat.cli.plan.plan_tables import console
    from longboat.cli.shared.console import simple_table

    table = simple_table(*columns)
    for row in found:
        table.add_row(*row)
    console().print(table)


def _models(library: Library) -> Iterator[Row]:
    for entry in library.models.values():
        shape = shape_of_entry(entry)
        size = f"{shape.num_params / 1e9:.1f}B"
        active = f"{shape.num_active_params / 1e9:.1f}B" if shape.num_active_params < 0.9 * shape.num_params else ""
        stored = f"{shape.weight_bytes / GIB:.1f}"
        yield entry.name, size, active, stored, shape.quantization or shape.dtype, ", ".join(entry.aliases[:3])


def _cards(library: Library) -> Iterator[Row]:
    for entry in library.accelerators.values():
        price = f"{entry.price_usd:.0f}" if entry.price_usd else ""
        flops = f"{entry.flops('bf16') / 1e12:.0f}"
        yield entry.name, f"{entry.memory_bytes / GIB:.1f}", f"{entry.bandwidth_gb_s:.0f}", flops, entry.link, price


def _networks(library: Library) -> Iterator[Row]:
    for entry in library.links.values():
        yield entry.name, entry.kind, f"{entry.bandwidth_gb_s:g}", f"{entry.latency_us:g}", ", ".join(entry.aliases[:3])


def _engines(library: Library) -> Iterator[Row]:
    for entry in library.engines.values():
        yield entry.name, entry.version, ", ".join(entry.platforms), ", ".join(entry.quantizations)


def _prices(library: Library) -> Iterator[Row]:
    for api in library.apis.values():
        figures = f"{api.usd_per_million_input:g} in, {api.usd_per_million_output:g} out, USD a million tokens"
        yield api.name, "API", f"{api.provider}, {api.model}", figures, str(api.date)
    for cloud in library.clouds.values():
        yield cloud.name, "cloud", _rented(cloud), f"{cloud.usd_per_hour:g} USD an hour", str(cloud.date)
    for power in library.electricity.values():
        yield power.name, "electricity", "", f"{power.usd_per_kwh:g} USD a kWh", str(power.date)


def _rented(cloud: CloudPrice) -> str:
    return f"{cloud.count} x {cloud.accelerator}"


KINDS: dict[str, tuple[Row, Callable[[Library], Iterator[Row]]]] = {
    "models": (("MODEL", "PARAMS>", "ACTIVE>", "GiB>", "WEIGHTS", "ALSO"), _models),
    "cards": (("CARD", "GiB>", "GB/s>", "bf16 TFLOPS>", "LINK", "USD>"), _cards),
    "networks": (("NAME", "KIND", "GB/s>", "us>", "ALSO"), _networks),
    "engines": (("ENGINE", "VERSION", "PLATFORMS", "FORMATS"), _engines),
    "prices": (("NAME", "KIND", "OF", "PRICE", "DATE"), _prices),
}
