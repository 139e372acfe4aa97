"""A chart as SVG: throughput against latency as users grow, and the memory of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10

from longboat.planner.fit import RankBytes

__all__ = ("Point", "draw_chart")

WIDTH, PLOT_HEIGHT, LEFT, RIGHT, TOP = 900, 320, 80, 24, 40
BAR_HEIGHT, BAR_GAP, NAME_WIDTH = 18, 8, 190
GIB = 1024**3
COLOURS = {"weights": "#4269d0", "buffers": "#efb118", "cache": "#3ca951", "unused": "#e4e4e4"}
MAX_BARS = 32
TICKS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A load: its users, the seconds between tokens, and tokens per second in total."""

    users: int
    itl_s: float
    tokens_per_s: float


def draw_chart(title: str, points: Sequence[Point], ranks: Sequence[RankBytes]) -> str:
    """The whole file. points: of the same plan, users growing; ranks: of one replica."""
    shown = ranks[:MAX_BARS]
    bars_top = TOP + PLOT_HEIGHT + 110
    height = bars_top + len(shown) * (BAR_HEIGHT + BAR_GAP) + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(LEFT, 22, title, size=15),
        *_curve(points),
        _text(LEFT, bars_top - 30, "Memory of each rank of one replica, GiB", size=14),
        *_bars(shown, bars_top),
        *_legend(bars_top + len(shown) * (BAR_HEIGHT + BAR_GAP) + 24),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'


def _curve(points: Sequence[Point]) -> Iterator[str]:
    """Milliseconds between tokens to the right, tokens per second upwards."""
    across = _round_up(max(point.itl_s * 1e3 for point in points))
    up = _round_up(max(point.tokens_per_s for point in points))
    bottom, width = TOP + PLOT_HEIGHT, WIDTH - LEFT - RIGHT
    for step in range(TICKS + 1):
        y, x = bottom - PLOT_HEIGHT * step / TICKS, LEFT + width * step / TICKS
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + width}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield _text(LEFT - 8, y + 4, f"{up * step / TICKS:g}", anchor="end")
        yield _text(x, bottom + 18, f"{across * step / TICKS:g}", anchor="middle")
    yield _text(LEFT + width / 2, bottom + 38, "milliseconds between tokens of a request", anchor="middle")
    yield _text(LEFT, TOP - 6, "tokens per second in total; numbers are users")
    places = [
        (LEFT + width * point.itl_s * 1e3 / across, bottom - PLOT_HEIGHT * point.tokens_per_s / up) for point in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{line}" fill="none" stroke="{COLOURS["weights"]}" stroke-width="2"/>'
    for point, (x, y) in zip(points, places, strict=True):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS["weights"]}"/>'
        yield _text(x + 7, y - 5, str(point.users))


def _bars(ranks: Sequence[RankBytes], top: int) -> Iterator[str]:
    widest = max((rank.card.memory_bytes for rank in ranks), default=1)
    width = WIDTH - NAME_WIDTH - RIGHT - 60
    for index, rank in enumerate(ranks):
        y, x = top + index * (BAR_HEIGHT + BAR_GAP), float(NAME_WIDTH)
        yield _text(NAME_WIDTH - 8, y + 13, f"{rank.stage}.{rank.tensor_rank} {rank.card.name}", anchor="end")
        used = (rank.weight_bytes, rank.overhead_bytes, rank.cache_bytes)
        sizes = (*used, max(0, rank.card.memory_bytes - sum(used)))
        for name, size in zip(COLOURS, sizes, strict=True):
            part = width * size / widest
            yield f'<rect x="{x:.1f}" y="{y}" width="{part:.1f}" height="{BAR_HEIGHT}" fill="{COLOURS[name]}"/>'
            x += part
        yield _text(x + 6, y + 13, f"{sum(used) / GIB:.1f} of {rank.card.memory_bytes / GIB:.1f}")


def _legend(y: float) -> Iterator[str]:
    for index, (name, colour) in enumerate(COLOURS.items()):
        x = NAME_WIDTH + index * 110
        yield f'<rect x="{x}" y="{y - 11:.1f}" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 18, y, name)


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten: an axis with round numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (ceil(log10(value)) - 1)
    return next((factor * power for factor in (1, 2, 2.5, 5, 10) if value <= factor * power), 10 * power)
