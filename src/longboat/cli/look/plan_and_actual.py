"""Predicted against measured, for ``longboat status``; the pairs are kept in ``LONGBOAT_HOME/measured.csv``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longboat.cluster.protocol.messages import FleetReport
from longboat.core.states import Phase
from longboat.folders import home_folder
from longboat.planner.search.measured import Pair, merged_rows, pair_of, row_of

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ("MEASURED_FILE", "forced_lines", "keep_pairs", "pair_table", "pairs_of")

MEASURED_FILE = "measured.csv"
GIB = 1024**3


def pairs_of(report: FleetReport) -> dict[str, Pair]:
    """Return a pair for every model with a replica that is ready, as far as anything is planned or measured."""
    models = dict.fromkeys(state.model for state in report.replicas if state.phase is Phase.READY)
    return {model: pair_of(_planned(report, model), _actuals(report, model)) for model in models}


def _planned(report: FleetReport, model: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = report.planned.get("models", {}).get(model, {})
    return found


def _actuals(report: FleetReport, model: str) -> Iterator[Any]:
    for state in report.replicas:
        if state.model == model and state.phase is Phase.READY and state.actual is not None:
            yield state.actual


def forced_lines(report: FleetReport) -> list[str]:
    """Return what was started against the plan's advice."""
    return [f"started with --force: {problem}" for problem in report.planned.get("forced", ())]


def pair_table(pairs: Mapping[str, Pair]) -> Table:
    """Return predicted / measured, and of how many tokens; a dash where there is no such figure."""
    from rich.text import Text

    from longboat.cli.shared.console import simple_table

    table = simple_table("PREDICTED / MEASURED", "KV BLOCKS", "GiB", "ITL ms", "TTFT ms", "CONCURRENT", "TOKENS")
    for model, pair in pairs.items():
        table.add_row(
            model,
            _both(pair.predicted_kv_blocks, pair.kv_blocks, "{:d}"),
            _both(_gib(pair.predicted_rank_bytes), _gib(pair.rank_bytes), "{:.2f}"),
            _both(_ms(pair.predicted_itl_s), _ms(pair.itl_s), "{:.1f}"),
            _both(_ms(pair.predicted_ttft_s), _ms(pair.ttft_s), "{:.0f}"),
            f"{pair.concurrency:.1f}" if pair.num_tokens else "-",
            Text(str(pair.num_tokens), style="" if pair.is_enough else "dim"),
        )
    return table


def _both(predicted: float | None, measured: float | None, form: str) -> str:
    return " / ".join("-" if value is None else form.format(value) for value in (predicted, measured))


def _gib(count: int | None) -> float | None:
    return None if count is None else count / GIB


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def keep_pairs(report: FleetReport, engines: Mapping[str, str], home: Path | None = None) -> Path | None:
    """Write measured values beside the predicted ones; return the file, or None where none was written.

    engines: model → kind of its engine; the fake engine is left out, since it measures nothing. A file that cannot be
    written raises no error, so that the caller can show the values anyway.
    """
    digests = {state.model: state.digest for state in report.replicas if state.phase is Phase.READY}
    rows = [
        row
        for model, pair in pairs_of(report).items()
        if engines.get(model) not in (None, "fake")
        and (row := row_of(_planned(report, model), pair, engine=engines[model], deployed=digests[model]))
    ]
    path = (home or home_folder()) / MEASURED_FILE
    if not rows:
        return None
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        path.write_text(merged_rows(before, rows), encoding="utf-8")
        return path
    return None
