"""Tables, verdicts and curves of ``bench_scaling``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from longboat.simulator.results.curves import Curve, line_chart
from scaling_bench.grid import COST_GOAL, KNOWING, OURS, Lines, Row
from scaling_bench.peers import PEERS

__all__ = ("best_of", "fewest_of", "html", "markdown", "svg", "verdicts")

_STYLE = ".curve{fill:none;stroke-width:1.5}.grid{stroke:#ccc}text{font:12px sans-serif}"

KEPT_GOAL, STARTS_GOAL = 0.99, 60.0
CHEAPER = 1.05
"""A peer's setting counts as of equal cost up to this part of ours."""


def best_of(rows: Sequence[Row], ours: Row, peer: str) -> Row:
    """Return the setting of a peer that misses least at our cost; its cheapest where all cost more."""
    mine = [one for one in rows if (one.load, one.cold_start_s, one.rule) == (ours.load, ours.cold_start_s, peer)]
    equal = [one for one in mine if _costs_no_more(one, ours)]
    return max(equal, key=lambda one: one.kept_share) if equal else min(mine, key=lambda one: one.replica_s)


def fewest_of(rows: Sequence[Row], ours: Row) -> Row | None:
    """Return the peer with the fewest starts of all that keep the objective at our cost, if one does."""
    fair = [
        one
        for one in rows
        if (one.load, one.cold_start_s) == (ours.load, ours.cold_start_s)
        and one.rule in PEERS
        and one.kept_share >= KEPT_GOAL
        and _costs_no_more(one, ours)
    ]
    return min(fair, key=lambda one: (one.starts, one.replica_s), default=None)


def _costs_no_more(peer: Row, ours: Row) -> bool:
    return peer.replica_s <= ours.replica_s * CHEAPER


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table: each cell is the requests that kept the objective, the cost, and the starts."""
    peers = [name for name in (KNOWING, *PEERS) if any(one.rule == name for one in rows)]
    yield f"| load | cold start | longboat | {' | '.join(peers)} | fewest starts of peers | clairvoyant starts |"
    yield "| --- " * (len(peers) + 5) + "|"
    for ours in (one for one in rows if one.rule == OURS):
        least = next(
            one
            for one in rows
            if (one.load, one.cold_start_s, one.rule) == (ours.load, ours.cold_start_s, "clairvoyant")
        )
        fewest = fewest_of(rows, ours)
        fair = f"{fewest.rule} {fewest.starts}" if fewest else "none" if _has_peers(rows, ours) else "–"
        cells = [_cell(ours), *(_cell_of(rows, ours, name) for name in peers), fair, str(least.starts)]
        yield f"| {ours.load} | {ours.cold_start_s:g} s | {' | '.join(cells)} |"


def _has_peers(rows: Sequence[Row], ours: Row, rule: str = "") -> bool:
    """Return whether a peer, or this rule, was played on the load."""
    return any(
        (one.load, one.cold_start_s) == (ours.load, ours.cold_start_s)
        and (one.rule == rule if rule else one.rule in PEERS)
        for one in rows
    )


def _cell_of(rows: Sequence[Row], ours: Row, rule: str) -> str:
    return _cell(best_of(rows, ours, rule)) if _has_peers(rows, ours, rule) else "–"


def _cell(row: Row) -> str:
    return f"{100 * row.kept_share:.2f} % · {row.cost:.2f}x · {row.starts}"


def verdicts(rows: Sequence[Row]) -> Iterator[str]:
    """Yield every goal that is missed, and every peer that does better."""
    for ours in (one for one in rows if one.rule == OURS):
        where = f"{ours.load}, cold start {ours.cold_start_s:g} s"
        if ours.kept_share < KEPT_GOAL:
            yield f"{where}: {100 * ours.kept_share:.2f} % kept the objective, not {100 * KEPT_GOAL:g} %"
        if ours.cost > COST_GOAL:
            yield f"{where}: cost is {ours.cost:.2f} times the minimum, not {COST_GOAL}"
        if ours.starts_per_hour > STARTS_GOAL:
            yield f"{where}: {ours.starts_per_hour:.0f} starts an hour, not {STARTS_GOAL:g}"
        for name in (peer for peer in PEERS if _has_peers(rows, ours, peer)):
            other = best_of(rows, ours, name)
            if _costs_no_more(other, ours) and other.kept_share > ours.kept_share:
                yield f"{where}: {name} misses fewer at equal cost: {100 * other.kept_share:.2f} %"
        fewest = fewest_of(rows, ours)
        if fewest is not None and fewest.starts < ours.starts:
            found = f"{fewest.starts}, not {ours.starts}"
            yield f"{where}: {fewest.rule} keeps the objective at equal cost with fewer starts: {found}"


def html(curves: Mapping[str, Lines], table: Sequence[str]) -> str:
    """Return a page with curves of our runs."""
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Scaling</title><style>",
        f"body{{font-family:sans-serif;margin:2rem auto;max-width:960px}}{_STYLE}</style></head><body><h1>Scaling</h1>",
        f"<pre>{escape(chr(10).join(table))}</pre>",
    ]
    for title, lines in curves.items():
        parts += [f"<h2>{escape(title)}</h2>", _chart(lines)]
    return "\n".join([*parts, "</body></html>"]) + "\n"


def svg(lines: Lines) -> str:
    """Return the curves of one run as a picture of its own."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" style="background:#fff"><style>{_STYLE}</style>'
    opening, rest = _chart(lines).split(">", 1)
    return f"{opening.replace('<svg', head.split('>')[0], 1)}>{head.split('>', 1)[1]}{rest}\n"


def _chart(lines: Lines) -> str:
    curves = [Curve(name, points) for name, points in lines.items()]
    return line_chart(curves, "seconds", "replicas, and requests each second")
