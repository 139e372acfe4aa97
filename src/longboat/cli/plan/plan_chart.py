"""A chart as SVG: throughput against latency as users grow, and the memory of each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, hypot, log10

from longboat.planner.memory.fit import RankBytes

__all__ = ("Point", "draw_chart")

Place = tuple[float, float]

WIDTH, PLOT_HEIGHT, LEFT, RIGHT, TOP = 920, 320, 80, 24, 76
BAR_HEIGHT, BAR_GAP, NAME_WIDTH, SIZE_WIDTH = 18, 8, 276, 100
GIB = 1024**3
PARTS = ("weights", "buffers", "cache", "unused")
MAX_BARS = 32
TICKS = 5
ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
# Loads whose points are nearer than this share a label.
LABEL_PIXELS = 13.0
# Files are read on light and on dark pages; viewers that know no media queries show the light ones.
STYLE = """\
<style>
.page { fill: #ffffff } text { fill: #1c1c1c } .quiet { fill: #5f5f5f } .grid { stroke: #dddddd }
.line { stroke: #3a5fc4; fill: none; stroke-width: 2 } .dot { fill: #3a5fc4 }
.weights { fill: #4269d0 } .buffers { fill: #efb118 } .cache { fill: #3ca951 } .unused { fill: #e4e4e4 }
@media (prefers-color-scheme: dark) {
.page { fill: #16181d } text { fill: #ececec } .quiet { fill: #a8a8a8 } .grid { stroke: #3a3d44 }
.line { stroke: #8fabff } .dot { fill: #8fabff } .weights { fill: #6d8ee8 } .unused { fill: #3a3d44 }
}
</style>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A load: its users, the seconds between tokens, and tokens per second in total."""

    users: int
    itl_s: float
    tokens_per_s: float


def draw_chart(title: str, subtitle: str, points: Sequence[Point], ranks: Sequence[RankBytes]) -> str:
    """Return the whole file. points: of the same plan, users growing; ranks: of one replica."""
    shown = ranks[:MAX_BARS]
    bars_top = TOP + PLOT_HEIGHT + 104
    bottom = bars_top + len(shown) * (BAR_HEIGHT + BAR_GAP)
    height = bottom + 48
    more = f"; {len(ranks) - len(shown)} more are like these" if len(ranks) > len(shown) else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        STYLE,
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        _text(16, 26, title, size=16),
        _text(16, 44, subtitle, quiet=True),
        *_curve(points),
        _text(16, bars_top - 18, f"Memory of each rank of one replica, GiB used of the card's{more}", size=14),
        *_bars(shown, bars_top),
        *_legend(bottom + 24),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", quiet: bool = False) -> str:
    kind = ' class="quiet"' if quiet else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'


def _curve(points: Sequence[Point]) -> Iterator[str]:
    """Milliseconds between tokens to the right, tokens per second upwards."""
    across = _round_up(max(point.itl_s * 1e3 for point in points))
    up = _round_up(max(point.tokens_per_s for point in points))
    bottom, width = TOP + PLOT_HEIGHT, WIDTH - LEFT - RIGHT
    for step in range(TICKS + 1):
        y, x = bottom - PLOT_HEIGHT * step / TICKS, LEFT + width * step / TICKS
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + width}" y2="{y:.1f}"/>'
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield _text(LEFT - 8, y + 4, f"{up * step / TICKS:g}", anchor="end")
        yield _text(x, bottom + 18, f"{across * step / TICKS:g}", anchor="middle" if step < TICKS else "end")
    yield _text(LEFT + width / 2, bottom + 38, "milliseconds between tokens of a request", anchor="middle")
    yield _text(LEFT, TOP - 10, "tokens per second of all users; at each point, users at once")
    places = [
        (LEFT + width * point.itl_s * 1e3 / across, bottom - PLOT_HEIGHT * point.tokens_per_s / up) for point in points
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline class="line" points="{line}"/>'
    yield from (f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in places)
    yield from _labels(points, places)


def _labels(points: Sequence[Point], places: Sequence[Place]) -> Iterator[str]:
    """Users of each point, left of it and above: the curve comes from below. Points in one place share a label."""
    first = 0
    for index, (x, y) in enumerate(places):
        following = places[index + 1] if index + 1 < len(places) else None
        if following is not None and hypot(following[0] - x, following[1] - y) < LABEL_PIXELS:
            continue
        few, many = points[first].users, points[index].users
        yield _text(x - 8, y - 6, str(many) if few == many else f"{few} to {many}", anchor="end")
        first = index + 1


def _bars(ranks: Sequence[RankBytes], top: int) -> Iterator[str]:
    widest = max((rank.card.memory_bytes for rank in ranks), default=1)
    width = WIDTH - NAME_WIDTH - RIGHT - SIZE_WIDTH
    for index, rank in enumerate(ranks):
        y, x = top + index * (BAR_HEIGHT + BAR_GAP), float(NAME_WIDTH)
        name = f"stage {rank.stage}, rank {rank.tensor_rank}: {rank.card.name}"
        yield _text(NAME_WIDTH - 8, y + 13, name, anchor="end")
        used = (rank.weight_bytes, rank.overhead_bytes, rank.cache_bytes)
        sizes = (*used, max(0, rank.card.memory_bytes - sum(used)))
        for part, size in zip(PARTS, sizes, strict=True):
            pixels = width * size / widest
            yield f'<rect class="{part}" x="{x:.1f}" y="{y}" width="{pixels:.1f}" height="{BAR_HEIGHT}"/>'
            x += pixels
        yield _text(x + 6, y + 13, f"{sum(used) / GIB:.1f} of {rank.card.memory_bytes / GIB:.1f}")


def _legend(y: float) -> Iterator[str]:
    for index, name in enumerate(PARTS):
        x = NAME_WIDTH + index * 110
        yield f'<rect class="{name}" x="{x}" y="{y - 11:.1f}" width="12" height="12"/>'
        yield _text(x + 18, y, name)


def _round_up(value: float) -> float:
    """Return the next of ``ROUND`` times a power of ten: an axis with round numbers, well filled."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (ceil(log10(value)) - 1)
    return next((factor * power for factor in ROUND if value <= factor * power), 10 * power)
