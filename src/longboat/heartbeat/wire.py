"""The wire format of heartbeats: a line that opens the connection, then one line a heartbeat."""

from __future__ import annotations

import hashlib
import hmac

import orjson

from longboat.routing.health.liveness import Beat, Life, RankBeat

__all__ = ("BEAT_EVERY_S", "MAX_LINE_BYTES", "decode_beat", "door_word", "encode_beat")

BEAT_EVERY_S = 0.25
MAX_LINE_BYTES = 65536


def door_word(api_key: str) -> bytes:
    """Return the greeting for a gang whose engine has this key. The key itself is not sent."""
    return hmac.new(api_key.encode(), b"longboat heartbeats", hashlib.sha256).hexdigest().encode() + b"\n"


def encode_beat(beat: Beat) -> bytes:
    """Write one line."""
    ranks = [
        (r.node_rank, r.life.value, round(r.cpu_s, 2), round(r.silent_s, 3), round(r.unreached_s, 3))
        for r in beat.ranks
    ]
    values: dict[str, object] = {"ranks": ranks, "steps": beat.steps, "running": beat.num_running}
    if links := [(r.node_rank, round(r.unacked_s, 3), r.unacked_by) for r in beat.ranks if r.unacked_s]:
        values["links"] = links
    if quit_ranks := [r.node_rank for r in beat.ranks if r.on_request]:
        values["quit"] = quit_ranks  # a listener of an older version reads over it
    return orjson.dumps(values) + b"\n"


def decode_beat(line: bytes) -> Beat:
    """Read a line. Raise ValueError where it is not what :func:`encode_beat` writes."""
    try:
        values = orjson.loads(line)
        links = {number: _link(*link) for number, *link in values.get("links", ())}
        left = values.get("quit", ())
        ranks = tuple(_rank(*row, link=links.get(row[0], (0.0, "")), left=row[0] in left) for row in values["ranks"])
        return Beat(ranks=ranks, steps=_number(values["steps"]), num_running=_number(values["running"]))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the line is not a heartbeat: {error!r}") from error


def _rank(node_rank: object, life: object, *seconds: object, link: tuple[float, str], left: bool) -> RankBeat:
    if not isinstance(node_rank, int) or not isinstance(life, str):
        raise TypeError("the rank is not a number, or its state is not a text")
    cpu_s, silent_s, unreached_s = (_seconds(value) for value in seconds)
    return RankBeat(
        node_rank=node_rank,
        life=Life(life),
        cpu_s=cpu_s,
        silent_s=silent_s,
        unreached_s=unreached_s,
        unacked_s=link[0],
        unacked_by=link[1],
        on_request=left,
    )


def _link(unacked_s: object, peer: object) -> tuple[float, str]:
    if not isinstance(peer, str):
        raise TypeError("the address of a rank is not a text")
    return _seconds(unacked_s), peer


def _seconds(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number of seconds")
    return float(value)


def _number(value: object) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value
