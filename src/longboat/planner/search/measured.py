"""What was expected of a model beside what its engines measured, and both as a row that calibration reads. Pure."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from io import StringIO
from math import log, log2
from typing import Any

from longboat.core.states import EngineActual
from longboat.planner.predict.calibration.rows import COLUMNS

__all__ = ("Pair", "at_users", "merged_rows", "pair_of", "row_of")

MIN_TOKENS = 64
"""Fewer say little about the time between them."""
# Lengths of a row are the longest of those between 80 and 100 %; the mean of such is nine tenths of it.
MEAN_RATIO = 0.9
PAIR_COLUMNS = ("predicted_ttft_ms", "predicted_itl_ms", "kv_blocks", "predicted_kv_blocks", "rank_bytes")
HEAD = (*COLUMNS, "link", "hop", *PAIR_COLUMNS, "predicted_rank_bytes", "tokens", "deployed")
KEY = ("model", "hardware", "engine", "quantization", "tensor", "pipeline", "deployed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Predicted and measured figures of one replica. None: not known, or not measured yet."""

    kv_blocks: int | None = None
    predicted_kv_blocks: int | None = None
    rank_bytes: int | None = None
    predicted_rank_bytes: int | None = None
    itl_s: float | None = None
    predicted_itl_s: float | None = None
    ttft_s: float | None = None
    predicted_ttft_s: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    concurrency: float = 0.0  # requests at once while it was measured; the predicted times are for the same number
    num_tokens: int = 0  # tokens that were measured

    @property
    def is_enough(self) -> bool:
        """Whether times were measured over tokens enough to keep them."""
        return self.num_tokens >= MIN_TOKENS and bool(self.itl_s and self.ttft_s)

    def values(self) -> dict[str, float | int | None]:
        """Return plain values, by field."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def pair_of(planned: Mapping[str, Any], actuals: Iterable[EngineActual]) -> Pair:
    """Return the pair. planned: as ``planned_values`` made it, {}: nothing was; actuals: of the model's replicas.

    Times are means over all tokens; memory is that of the fullest rank; blocks those of the replica with the fewest.
    """
    told = list(actuals)
    busy = [one for one in told if one.num_tokens]
    tokens = sum(one.num_tokens for one in busy)
    concurrency = _mean([(one.concurrency, one.num_tokens) for one in busy]) or 0.0
    expected = at_users(planned, concurrency or float(planned.get("users", 1.0))) or (None, None)
    return Pair(
        kv_blocks=min((one.kv_blocks for one in told if one.kv_blocks), default=None),
        predicted_kv_blocks=planned.get("kv_blocks"),
        rank_bytes=max((one.rank_bytes for one in told), default=0) or None,
        predicted_rank_bytes=planned.get("rank_bytes") or None,
        itl_s=_mean([(one.itl_s, one.num_tokens) for one in busy]),
        predicted_itl_s=expected[0],
        ttft_s=_mean([(one.ttft_s, one.num_tokens) for one in busy]),
        predicted_ttft_s=expected[1],
        prompt_tokens=_mean([(one.prompt_tokens, one.num_tokens) for one in busy]),
        output_tokens=_mean([(one.output_tokens, one.num_tokens) for one in busy]),
        concurrency=concurrency,
        num_tokens=tokens,
    )


def _mean(weighted: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in weighted if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def row_of(planned: Mapping[str, Any], pair: Pair, *, engine: str, deployed: str) -> dict[str, str] | None:
    """Return a line of the file; None where too little was measured. deployed: digest of what replicas started with."""
    if not pair.is_enough or not planned:
        return None
    source = str(planned["source"])
    row: dict[str, object] = {
        "model": planned["model"] if source.startswith("hf:") else source,
        "hardware": planned["hardware"],
        "engine": engine,
        "quantization": planned["quantization"],
        "tensor": planned["tensor"],
        "pipeline": planned["pipeline"],
        "concurrency": f"{max(1.0, pair.concurrency):.2f}",
        "prompt_tokens": round((pair.prompt_tokens or 1) / MEAN_RATIO) or 1,
        "output_tokens": round((pair.output_tokens or 1) / MEAN_RATIO) or 1,
        "ttft_ms": _milliseconds(pair.ttft_s),
        "itl_ms": _milliseconds(pair.itl_s),
        "link": planned["link"],
        "hop": planned["hop"],
        "predicted_ttft_ms": _milliseconds(pair.predicted_ttft_s),
        "predicted_itl_ms": _milliseconds(pair.predicted_itl_s),
        "kv_blocks": pair.kv_blocks,
        "predicted_kv_blocks": pair.predicted_kv_blocks,
        "rank_bytes": pair.rank_bytes,
        "predicted_rank_bytes": pair.predicted_rank_bytes,
        "tokens": pair.num_tokens,
        "deployed": deployed,
    }
    return {name: "" if value is None else str(value) for name, value in row.items()}


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"


def merged_rows(text: str, rows: Iterable[Mapping[str, str]]) -> str:
    """Return the file's text with these rows; one that is there of the same deployment and load is replaced.

    Loads are the same where their concurrency has the same nearest power of two.
    """
    kept = {_key(row): row for row in csv.DictReader(StringIO(text))} if text.strip() else {}
    kept |= {_key(row): dict(row) for row in rows}
    out = StringIO()
    writer = csv.DictWriter(out, HEAD, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(kept.values())
    return out.getvalue()


def _key(row: Mapping[str, str]) -> tuple[object, ...]:
    try:
        load = round(log2(max(1.0, float(row.get("concurrency") or 1))))
    except ValueError:
        load = 0
    return (*(row.get(name) or "" for name in KEY), load)


def at_users(planned: Mapping[str, Any], users: float) -> tuple[float, float] | None:
    """Return ITL and TTFT in seconds of a replica with that many users, between predicted ones; None: none were."""
    curve = [(float(point[0]), float(point[1]), float(point[2])) for point in planned.get("curve", ())]
    if not curve:
        return None
    below = max((point for point in curve if point[0] <= users), default=curve[0])
    above = min((point for point in curve if point[0] >= users), default=curve[-1])
    if below[0] >= above[0]:
        return below[1], below[2]
    share = log(max(1.0, users) / below[0]) / log(above[0] / below[0])
    itl_s, ttft_s = (low * (high / low) ** share for low, high in zip(below[1:], above[1:], strict=True))
    return itl_s, ttft_s
