"""What one gateway process is told at its start, read from one JSON document."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from longboat.core.errors import Problem, UserInputError

__all__ = ("GatewayConfig", "GatewayLimits", "decode_config", "encode_config")

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Bounds on what clients and engines may cost.

    max_head_bytes: request line and headers; max_body_bytes: one request body
    max_held_bytes: all request bodies that this process holds at one moment
    head_timeout_s, body_timeout_s: grace for a slow sender; a body gets a second more per min_body_bytes_per_s received
    keepalive_s: idle client connections are closed after it
    client_stall_s: a client that reads nothing for so long while bytes wait for it is cut off
    connect_timeout_s: for a TCP connection to an engine; suspect_s: how long an engine is avoided after that failed
    engine_silence_s: an engine that sends nothing for so long during a request is given up
    pool_idle_s: idle engine connections are closed after it (vLLM's server closes after 5 s)
    stop_deadline_s: running requests get this long after a stop
    max_outstanding: requests per endpoint and process; None is no limit
    """

    max_head_bytes: int = 64 * 1024
    max_body_bytes: int = 32 * MIB
    max_held_bytes: int = 512 * MIB
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    min_body_bytes_per_s: int = 16 * 1024
    keepalive_s: float = 75.0
    client_stall_s: float = 120.0
    connect_timeout_s: float = 1.0
    suspect_s: float = 1.0
    engine_silence_s: float = 600.0
    pool_idle_s: float = 4.0
    stop_deadline_s: float = 30.0
    max_outstanding: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway: where it listens, who may steer it, what it is called.

    port: 0 lets the system choose; processes: workers that share the port
    control_socket: path of a Unix socket, in a folder that only this user can enter
    orphan_grace_s: with no word on the control socket for so long, the gateway drains and ends; None waits for ever
    access_log: path of a file that gets one JSON line a request; None writes none
    worker_index, parent_pid: set by the parent for its workers; they share the port and end with the parent
    """

    port: int
    control_socket: str
    control_token: str = field(repr=False)
    host: str = "127.0.0.1"
    processes: int = 1
    fleet: str = ""
    node: str = ""
    orphan_grace_s: float | None = 60.0
    access_log: str | None = None
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    worker_index: int | None = None
    parent_pid: int | None = None


_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
    "str | None": (str, type(None)),
}


def decode_config(document: bytes) -> GatewayConfig:
    """:raises UserInputError: the document is not JSON, or a value is unknown, missing or of the wrong kind."""
    try:
        values = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise UserInputError(
            f"the gateway's configuration is not JSON: {error}", hint="send one JSON object"
        ) from error
    if not isinstance(values, dict):
        raise UserInputError("the gateway's configuration is not a JSON object", hint="send one JSON object")
    limits = values.pop("limits", {})
    problems = _problems(GatewayConfig, values, "") + _problems(GatewayLimits, limits, "limits.")
    if not problems and not values["control_token"]:
        problems = (Problem(where="control_token", what="is empty", hint="give a random secret"),)
    if not problems and not 1 <= values.get("processes", 1) <= 256:
        problems = (Problem(where="processes", what="is not between 1 and 256", hint="1 process per two cores"),)
    if problems:
        raise UserInputError("; ".join(map(str, problems)), hint=problems[0].hint, problems=problems)
    return GatewayConfig(**values, limits=GatewayLimits(**limits))


def encode_config(config: GatewayConfig) -> bytes:
    """The JSON document that :func:`decode_config` reads."""
    return orjson.dumps(dataclasses.asdict(config))


def _problems(kind: type[GatewayConfig] | type[GatewayLimits], values: Any, prefix: str) -> tuple[Problem, ...]:
    if not isinstance(values, dict):
        return (Problem(where=prefix.rstrip("."), what="is not a JSON object", hint="give an object or leave it out"),)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.name != "limits"}
    found = [
        Problem(where=prefix + name, what="is not a setting of the gateway", hint=f"known: {', '.join(fields)}")
        for name in values.keys() - fields.keys()
    ]
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if name not in values and required:
            found.append(Problem(where=prefix + name, what="is missing", hint=f"give a value of type {f.type}"))
        if name in values and not _fits(values[name], str(f.type)):
            what = f"is {type(values[name]).__name__}, not {f.type}"
            found.append(Problem(where=prefix + name, what=what, hint=f"give a value of type {f.type}"))
    return tuple(found)


def _fits(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and not isinstance(value, bool)
