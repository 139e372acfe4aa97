"""Usage as an SVG file: a bar of tokens for each day, divided by tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

__all__ = ("usage_chart",)

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 920, 380, 84, 24, 56, 76
COLORS = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#6cc5b0", "#a463f2", "#97bbf5", "#9c6b4e")
OTHERS = "all others"
TICKS = 4
# Files are read on light and on dark pages; viewers that know no media queries show the light ones.
STYLE = """\
<style>
.page { fill: #ffffff } text { fill: #1c1c1c } .grid { stroke: #dddddd }
@media (prefers-color-scheme: dark) { .page { fill: #16181d } text { fill: #ececec } .grid { stroke: #3a3d44 } }
</style>"""

Row = Mapping[str, Any]


def usage_chart(rows: Iterable[Row], days: Sequence[str]) -> str:
    """Return the whole file. Seven tenants have a colour of their own; the others share one."""
    found = [(row["day"], row["tenant"], row["prompt_tokens"] + row["completion_tokens"]) for row in rows]
    known = set(days)
    found = [entry for entry in found if entry[0] in known]
    names = _tenants(found)
    tokens: Counter[tuple[str, str]] = Counter()
    for day, tenant, number in found:
        tokens[day, tenant if tenant in names else OTHERS] += number
    most = max((sum(tokens[day, name] for name in names) for day in days), default=0)
    most = max(most, TICKS)  # so that each line has a number of its own
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'{STYLE}\n<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        _text(16, 28, "Tokens by day (UTC), prompt and completion, by tenant", size=16),
        *_axes(days, most),
        *_bars(days, names, tokens, most),
        *_legend(names),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _tenants(found: Iterable[tuple[str, str, int]]) -> list[str]:
    """Return the names of the legend, those with the most tokens first."""
    totals: Counter[str] = Counter()
    for _, tenant, number in found:
        totals[tenant] += number
    names = [name for name, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))]
    return names if len(names) <= len(COLORS) else [*names[: len(COLORS) - 1], OTHERS]


def _axes(days: Sequence[str], most: int) -> Iterator[str]:
    base, height = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM
    for step in range(TICKS + 1):
        y = base - height * step / TICKS
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        yield _text(LEFT - 8, y + 4, f"{most * step / TICKS:,.0f}", anchor="end")
    if days:
        yield _text(LEFT, base + 18, days[0])
        yield _text(WIDTH - RIGHT, base + 18, days[-1], anchor="end")


def _bars(days: Sequence[str], names: Sequence[str], tokens: Counter[tuple[str, str]], most: int) -> Iterator[str]:
    step, height = (WIDTH - LEFT - RIGHT) / max(1, len(days)), HEIGHT - TOP - BOTTOM
    for index, day in enumerate(days):
        y = float(HEIGHT - BOTTOM)
        for name, color in zip(names, COLORS, strict=False):
            number = tokens[day, name]
            size = height * number / most
            y -= size
            if number:
                place = f'x="{LEFT + (index + 0.12) * step:.1f}" y="{y:.1f}" width="{step * 0.76:.1f}"'
                told = f"<title>{escape(f'{day}, {name}: {number:,} tokens')}</title>"
                yield f'<rect {place} height="{size:.1f}" fill="{color}">{told}</rect>'


def _legend(names: Sequence[str]) -> Iterator[str]:
    """Place four names on each of two lines."""
    for index, (name, color) in enumerate(zip(names, COLORS, strict=False)):
        x, y = LEFT + index % 4 * 200, HEIGHT - 36 + index // 4 * 20
        yield f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{color}"/>'
        yield _text(x + 18, y, name if len(name) <= 24 else f"{name[:23]}…")


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
