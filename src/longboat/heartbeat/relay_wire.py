"""The wire format of relays: what one node's relay tells gateways about the gangs on its node. Pure.

A listener greets with the relay's word and the interval that it wants. It gets a line with all gangs not known to be
well, then a line whenever that changes, and an empty line where nothing changed for the interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from longboat.routing.health.liveness import Health, Judgement

__all__ = (
    "ALIVE",
    "MAX_EVERY_S",
    "MIN_EVERY_S",
    "NOTHING_NEW",
    "Judgements",
    "interval_s",
    "read_greeting",
    "silence_s",
    "write_greeting",
)

MIN_EVERY_S = 0.25
MAX_EVERY_S = 1.0
LINES_A_SECOND = 1000.0
"""A gateway asks relays for longer intervals rather than read more empty lines than this."""
NOTHING_NEW = b"\n"
ALIVE = Judgement(health=Health.ALIVE)


def interval_s(num_relays: int) -> float:
    """Return the seconds between two lines of a relay, for a gateway that listens to this number of relays."""
    return min(MAX_EVERY_S, max(MIN_EVERY_S, num_relays / LINES_A_SECOND))


def silence_s(every_s: float) -> float:
    """Return the silence after which a listener connects again, to find out whether the node replies."""
    return max(1.0, 2.0 * every_s)


def write_greeting(word: bytes, every_s: float) -> bytes:
    """Return the line that opens a connection. word: ends with a line end"""
    return b"%b %d\n" % (word.rstrip(b"\n"), round(every_s * 1000))


def read_greeting(line: bytes) -> tuple[bytes, float]:
    """Return word and interval. Raise ValueError where the line is not a greeting."""
    word, _, every_ms = line.rstrip(b"\n").partition(b" ")
    if not every_ms.isdigit():
        raise ValueError("the greeting has no interval")
    return word + b"\n", min(MAX_EVERY_S, max(MIN_EVERY_S, int(every_ms) / 1000))


class Judgements:
    """The judgements about a node's gangs not known to be alive, numbered. Both ends of a connection have one."""

    def __init__(self) -> None:
        self.number = 0
        self.unwell: dict[str, Judgement] = {}  # key of the endpoint → why

    def of(self, key: str) -> Judgement:
        return self.unwell.get(key, ALIVE)

    def differ(self, found: Mapping[str, Judgement]) -> bytes:
        """Take the newest judgements; return the line that says what changed, empty where nothing did.

        Only what follows from a judgement counts as a change: its words hold seconds that grow.
        """
        was, now = self.unwell, {key: judged for key, judged in found.items() if judged != ALIVE}
        news: dict[str, Any] = {key: _row(new) for key, new in now.items() if _is_new(was.get(key), new)}
        news.update((key, None) for key in was if key not in now)
        self.unwell = {key: new if key in news else was[key] for key, new in now.items()}
        if not news:
            return b""
        self.number += 1
        return orjson.dumps({"n": self.number, "set": news}) + b"\n"

    def whole(self) -> bytes:
        """Return the line that a new listener gets."""
        rows = {key: _row(judged) for key, judged in self.unwell.items()}
        return orjson.dumps({"n": self.number, "all": rows}) + b"\n"

    def take(self, line: bytes) -> None:
        """Take a line of a relay. Raise ValueError where it cannot be read, or one before it is missing."""
        try:
            values = orjson.loads(line)
            number, rows = int(values["n"]), values.get("all", values.get("set"))
            unwell = {} if "all" in values else dict(self.unwell)
            if "all" not in values and number != self.number + 1:
                raise ValueError(f"line {number} came after line {self.number}")
            for key, row in rows.items():
                unwell.pop(key, None)
                if row is not None:
                    unwell[key] = _judgement(*row)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the line is not a relay's: {error!r}") from error
        self.number, self.unwell = number, unwell


def _is_new(old: Judgement | None, new: Judgement) -> bool:
    return old is None or (old.health, old.cause, old.node_rank) != (new.health, new.cause, new.node_rank)


def _row(judged: Judgement) -> tuple[str, str, str, int | None]:
    return judged.health.value, judged.cause, judged.detail, judged.node_rank


def _judgement(health: object, cause: object, detail: object, node_rank: object) -> Judgement:
    if node_rank is not None and not isinstance(node_rank, int):
        raise TypeError("the rank is not a number")
    return Judgement(health=Health(str(health)), cause=str(cause), detail=str(detail), node_rank=node_rank)
