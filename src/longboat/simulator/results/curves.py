"""Draws charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ("Curve", "bars", "line_chart")

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 920, 340, 64, 190, 16, 48
_BAR_HEIGHT = 120
_TICKS = 5
_COLOURS = ("#4269d0", "#e8590c", "#2f9e44", "#ae3ec9", "#c92a2a", "#0b7285", "#a17c00", "#846358", "#868e96")


@dataclass(frozen=True)
class Curve:
    """Points of one line."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(curves: Sequence[Curve], across: str, up: str, *, logarithmic: bool = False) -> str:
    """Return a chart of lines, with a legend. logarithmic: to the right"""
    drawn = [curve for curve in curves if curve.points]
    xs = [_place(x, logarithmic) for curve in drawn for x, _ in curve.points] or [0.0]
    low, high = min(xs), max(max(xs), min(xs) + 1e-9)
    most = max((y for curve in drawn for _, y in curve.points), default=1.0) or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [_open(_HEIGHT), *_axes(low, high, most, across, up, logarithmic)]
    for number, curve in enumerate(drawn):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(
            f"{_LEFT + width * (_place(x, logarithmic) - low) / (high - low):.1f},{_TOP + height * (1 - y / most):.1f}"
            for x, y in curve.points
        )
        parts.append(f'<polyline class="curve" stroke="{colour}" points="{path}"/>')
        y = _TOP + 14 + 18 * number
        parts.append(f'<rect fill="{colour}" x="{_WIDTH - _RIGHT + 16}" y="{y - 10}" width="12" height="12"/>')
        parts.append(_text(_WIDTH - _RIGHT + 34, y, curve.name))
    return "\n".join([*parts, "</svg>"])


def bars(title: str, values: Sequence[float]) -> str:
    """Return a chart of values between 0 and 1, side by side."""
    width = _WIDTH - _LEFT - 16
    each = width / max(1, len(values))
    parts = [_open(_BAR_HEIGHT + 44), _text(_LEFT, 14, title)]
    for part in (0.0, 0.5, 1.0):
        y = 24 + _BAR_HEIGHT * (1 - part)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + width}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{100 * part:.0f} %", anchor="end"))
    for at, value in enumerate(values):
        top, tall = 24 + _BAR_HEIGHT * (1 - value), _BAR_HEIGHT * value
        x, wide = _LEFT + at * each, max(0.5, each * 0.85)
        parts.append(
            f'<rect fill="{_COLOURS[0]}" x="{x:.2f}" y="{top:.1f}" width="{wide:.2f}" height="{tall:.1f}">'
            f"<title>replica {at}: {100 * value:.1f} %</title></rect>"
        )
    return "\n".join([*parts, "</svg>"])


def _open(height: int) -> str:
    return f'<svg width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" role="img">'


def _axes(low: float, high: float, most: float, across: str, up: str, logarithmic: bool) -> list[str]:
    width, bottom = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _BOTTOM
    parts = [_text(_LEFT + width / 2, _HEIGHT - 8, across, anchor="middle"), _text(8, _TOP + 4, up)]
    for step in range(_TICKS + 1):
        part = step / _TICKS
        x, y = _LEFT + width * part, bottom - (bottom - _TOP) * part
        value = low + (high - low) * part
        shown = 10.0**value if logarithmic else value
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + width}" y2="{y:.1f}"/>')
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{most * part:.3g}", anchor="end"))
        parts.append(_text(x, bottom + 18, f"{shown:.3g}", anchor="middle"))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _place(value: float, logarithmic: bool) -> float:
    return math.log10(max(value, 1e-6)) if logarithmic else value
