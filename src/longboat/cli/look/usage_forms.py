"""Usage as CSV for spreadsheets, and as bars in the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ("CSV_COLUMNS", "day_totals", "usage_csv", "usage_plot")

CSV_COLUMNS = (
    "day", "tenant", "model", "requests", "prompt_tokens", "completion_tokens", "cached_tokens", "cost", "currency",
)  # fmt: skip
_BAR_WIDTH = 40


def usage_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the table with a head. ``cost`` and ``currency`` are empty where nothing cost money."""
    out = io.StringIO()
    writer = csv.DictWriter(out, CSV_COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**row, "cost": f"{row['cost']:.9f}" if "cost" in row else ""} for row in rows)
    return out.getvalue()


def day_totals(rows: Iterable[Mapping[str, Any]], days: Sequence[str]) -> dict[str, tuple[int, dict[str, float]]]:
    """Return each of ``days``: its prompt and completion tokens together, and its money by currency."""
    tokens = dict.fromkeys(days, 0)
    money: dict[str, dict[str, float]] = {day: {} for day in days}
    for row in rows:
        if (day := row["day"]) in tokens:
            tokens[day] += row["prompt_tokens"] + row["completion_tokens"]
            if "cost" in row:
                unit = row["currency"]
                money[day][unit] = money[day].get(unit, 0.0) + row["cost"]
    return {day: (tokens[day], money[day]) for day in days}


def usage_plot(rows: Iterable[Mapping[str, Any]], days: Sequence[str]) -> str:
    """Return one line for each day: a bar of its tokens, the number, and what it cost."""
    totals = day_totals(rows, days)
    most = max((tokens for tokens, _ in totals.values()), default=0)
    width = max((len(f"{tokens:,}") for tokens, _ in totals.values()), default=1)
    lines = [f"tokens by day (UTC), prompt and completion; the longest bar is {most:,}"]
    for day, (tokens, money) in totals.items():
        full = tokens * _BAR_WIDTH / most if most else 0.0
        bar = "█" * int(full) + ("▌" if full % 1 >= 0.5 or 0 < full < 1 else "")
        costs = "  ".join(f"{amount:,.4f} {unit}".rstrip() for unit, amount in sorted(money.items()))
        lines.append(f"{day}  {bar:<{_BAR_WIDTH + 1}}  {tokens:>{width},}  {costs}".rstrip())
    return "\n".join(lines)
