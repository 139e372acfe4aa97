"""How heartbeats travel: a line that opens a door, then one line a beat."""

from __future__ import annotations

import hashlib
import hmac

import orjson

from longboat.routing.health.liveness import Beat, Life, RankBeat

__all__ = ("BEAT_EVERY_S", "MAX_LINE_BYTES", "decode_beat", "door_word", "encode_beat")

BEAT_EVERY_S = 0.25
MAX_LINE_BYTES = 65536


def door_word(api_key: str) -> bytes:
    """What opens the door of a gang whose engine has this key. The key itself does not travel."""
    return hmac.new(api_key.encode(), b"longboat heartbeats", hashlib.sha256).hexdigest().encode() + b"\n"


def encode_beat(beat: Beat) -> bytes:
    """One line."""
    ranks = [
        (r.node_rank, r.life.value, round(r.cpu_s, 2), round(r.silent_s, 3), round(r.unreached_s, 3))
        for r in beat.ranks
    ]
    return orjson.dumps({"ranks": ranks, "steps": beat.steps, "running": beat.num_running}) + b"\n"


def decode_beat(line: bytes) -> Beat:
    """:raises ValueError: it is not what :func:`encode_beat` writes"""
    try:
        values = orjson.loads(line)
        ranks = tuple(_rank(*row) for row in values["ranks"])
        return Beat(ranks=ranks, steps=_number(values["steps"]), num_running=_number(values["running"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no heartbeat: {error!r}") from error


def _rank(node_rank: object, life: object, *seconds: object) -> RankBeat:
    if not isinstance(node_rank, int) or not isinstance(life, str):
        raise TypeError("no rank, or no life")
    cpu_s, silent_s, unreached_s = (_seconds(value) for value in seconds)
    return RankBeat(node_rank=node_rank, life=Life(life), cpu_s=cpu_s, silent_s=silent_s, unreached_s=unreached_s)


def _seconds(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError("no number of seconds")
    return float(value)


def _number(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError("no whole number")
    return value
