"""What a chaos run comes to: counts, gaps and detection times by kind of fault. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chaos_suite.play import Played
from chaos_suite.schedule import GATEWAY_FAULTS, LINK_FAULTS

__all__ = ("differing_kinds", "figures_of", "is_good", "percentile")

AFTER_S = 15.0
"""A fault that waits for an answer to reach its token may show so much later."""

LINGERS_S = 2.0
"""A fault that waits for answers has found them, and engines are back when all were killed, after about so long."""

LINK_S = 1.0
"""So long after a fault of a link began it has happened at the latest."""

QUIET_S = 0.15
"""An answer that was silent for so long before a fault was silent for another reason."""

Answer = Mapping[str, Any]


def figures_of(answers: Sequence[Answer], played: Sequence[Played]) -> dict[str, Any]:
    """What the faulted phase comes to. Gaps and detection times are milliseconds."""
    by_kind = {kind: _kind_figures(kind, answers, played) for kind in sorted({p.fault.kind for p in played})}
    resumed = {answer["number"] for found in by_kind.values() for answer in found.pop("answers") if _is_whole(answer)}
    detections = [p.detected_s * 1e3 for p in played if p.detected_s is not None]
    gaps = [gap for found in by_kind.values() for gap in found.pop("gaps")]
    return {
        **counts(answers),
        "faults": len(played),
        "resumed": len(resumed),
        "by_kind": by_kind,
        "gap_ms": spread(gaps),
        "detection_ms": spread(detections),
    }


def counts(answers: Sequence[Answer]) -> dict[str, int]:
    """Streams, and how many of them were no good in which way."""
    return {
        "streams": len(answers),
        "failed": sum(bool(a["failure"]) and not a["is_hung"] for a in answers),
        "differing": sum(bool(a["wrongs"]) and not a["failure"] for a in answers),
        "hung": sum(a["is_hung"] for a in answers),
        "reconnected": sum(len(a["gateways"]) > 1 for a in answers),
    }


def differing_kinds(answers: Sequence[Answer]) -> dict[str, int]:
    """Kinds of requests, and how many answers to each differ."""
    return dict(sorted(Counter(a["kind"] for a in answers if a["wrongs"] and not a["failure"]).items()))


def is_good(found: Mapping[str, Any]) -> bool:
    """Whether nothing failed, differed or hung."""
    return not (found["failed"] or found["differing"] or found["hung"])


def percentile(values: Sequence[float], ratio: float) -> float | None:
    """By the nearest rank; None of no values."""
    if not values:
        return None
    return round(sorted(values)[min(len(values) - 1, int(ratio * len(values)))], 1)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """count: of the values."""
    found = {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99), "max": percentile(values, 1.0)}
    return {"count": len(values), **found}


def _kind_figures(kind: str, answers: Sequence[Answer], played: Sequence[Played]) -> dict[str, Any]:
    mine = [p for p in played if p.fault.kind == kind]
    hits = [(answer, p, gap) for p in mine for answer in answers if (gap := _gap(answer, p)) is not None]
    affected = {answer["number"]: answer for answer, _, _ in hits}
    gaps = [(end_s - begin_s) * 1e3 for _, p, (begin_s, end_s) in hits if _is_alone(p, played)]
    bad = [answer for answer in affected.values() if not _is_whole(answer)]
    return {
        "faults": len(mine),
        "affected": len(affected),
        "resumed": len(affected) - len(bad),
        "failed": len(bad),
        "gap_ms": spread(gaps),
        "detection_ms": spread([p.detected_s * 1e3 for p in mine if p.detected_s is not None]),
        "gaps": gaps,
        "answers": list(affected.values()),
    }


def _is_whole(answer: Answer) -> bool:
    return not (answer["failure"] or answer["wrongs"])


def _gap(answer: Answer, played: Played) -> tuple[float, float] | None:
    """From when to when the client heard nothing around this fault; None: it was not where the fault was, or was
    silent before: then another fault held it."""
    began_s, ended_s = answer["began_s"], answer["began_s"] + answer["lasted_ms"] / 1e3
    if not began_s < played.at_s < ended_s or not _was_there(answer, played):
        return None
    moments = [began_s, *(began_s + ms / 1e3 for ms in answer["arrivals_ms"]), ended_s]
    first_s, last_s = played.at_s - QUIET_S, played.at_s + _shows_within_s(played)
    around = [
        (before, after)
        for before, after in itertools.pairwise(moments)
        if after >= played.at_s and first_s <= before <= last_s
    ]
    return max(around, key=lambda gap: gap[1] - gap[0], default=None)


def _is_alone(mine: Played, played: Sequence[Played]) -> bool:
    """Whether no other fault was under way when this one came. One that comes within its gap may make that longer."""
    return not any(
        other is not mine and other.at_s <= mine.at_s < other.at_s + max(QUIET_S, _lingers_s(other)) for other in played
    )


def _lingers_s(played: Played) -> float:
    """How long it may still hit answers."""
    return LINGERS_S if played.fault.kind in (*_LATE, "error", "kill-all") else played.fault.lasts_s


def _shows_within_s(played: Played) -> float:
    if played.fault.kind in LINK_FAULTS:
        return LINK_S
    return AFTER_S if played.fault.after_tokens and played.fault.kind in _LATE else 0.05


def _was_there(answer: Answer, played: Played) -> bool:
    if played.fault.kind in GATEWAY_FAULTS:
        number = int(played.victim[1:])
        at = [gateway for gateway, since_s in answer["gateways"] if since_s <= played.at_s]
        return bool(at) and at[-1] == number
    return played.victim == "*" or any(replica.startswith(played.victim) for replica in answer["replicas"])


_LATE = ("break", "truncate", "garbage", "nonsense", "report", "stall")
