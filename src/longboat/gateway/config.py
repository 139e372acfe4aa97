"""Reads the settings that one gateway process gets at its start, from one JSON document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from longboat.core.errors import Problem, UserInputError
from longboat.core.policy import Policy

__all__ = ("SWEEP_S", "GatewayConfig", "GatewayLimits", "decode_config", "encode_config")

SWEEP_S = 0.2  # how often the limits in seconds of every connection are looked at
MIB = 1024 * 1024
SECRETS = ("control_token", "redis_url", "policy")

Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
NonEmpty = Annotated[str, Meta(min_length=1)]


class GatewayLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what clients and engines may cost.

    max_head_bytes: request line and headers; max_body_bytes: one request body
    max_held_bytes: all request bodies that this process holds at one moment
    head_timeout_s, body_timeout_s: grace for a slow sender; a body gets a second more per min_body_bytes_per_s received
    handshake_timeout_s: for a TLS handshake
    keepalive_s: idle client connections are closed after it
    client_stall_s: a client that reads nothing for this time while bytes wait for it is cut off
    connect_timeout_s: for a TCP connection to an engine; suspect_s: how long an engine is avoided after that failed
    engine_silence_s: an engine that sends nothing for this time during a request is given up
    pool_idle_s: idle engine connections are closed after it (vLLM's server closes after 5 s)
    stop_deadline_s: running requests get this long after a stop
    max_outstanding: most requests per endpoint and process; None sets no limit
    """

    max_head_bytes: Positive = 64 * 1024
    max_body_bytes: Positive = 32 * MIB
    max_held_bytes: Positive = 512 * MIB
    head_timeout_s: Seconds = 10.0
    body_timeout_s: Seconds = 30.0
    min_body_bytes_per_s: Positive = 16 * 1024
    handshake_timeout_s: Seconds = 10.0
    keepalive_s: Seconds = 75.0
    client_stall_s: Seconds = 120.0
    connect_timeout_s: Seconds = 1.0
    suspect_s: Seconds = 1.0
    engine_silence_s: Seconds = 600.0
    pool_idle_s: Seconds = 4.0
    stop_deadline_s: Seconds = 30.0
    max_outstanding: Positive | None = None


class GatewayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One gateway: where it listens, who may steer it, what it is called, where it keeps things.

    port: 0 lets the system choose; processes: workers that share the port
    control_socket: path of a Unix socket, in a folder that only this user can enter
    orphan_grace_s: after this time without a word on the control socket, the gateway drains and ends; None: never
    tls_certificate, tls_key: paths of PEM files, read again when they change; None serves plain HTTP
    access_log: path of a file that gets one JSON line a request; None writes none. At access_log_max_bytes the file is
        renamed and a new one begun; access_log_keep of the renamed ones stay
    tracing_endpoint: OTLP over HTTP (``http://collector:4318``); None makes no traces. tracing_sample_ratio: 0 to 1, of
        the requests that bring no decision of their own
    redis_url: where the counters are that all gateways share (a secret); None counts on this node
    daemon_socket: path of the Unix socket at which the node's daemon takes changes of adapters; None refuses them
    state_folder: holds what outlives this process: the usage; None keeps it in memory
    policy: how requests are served until the control socket brings a newer one; the endpoints come only that way
    scrape_s: seconds between two looks at what each engine says of its own queue; None never looks
    prefix_index_bytes: most memory of the index of prefixes, which all processes of this node share
    prefix_index_path: file of that index; set by the parent for its workers. None keeps it in this process
    recent_requests: finished requests that each process remembers for the admin API
    max_label_values: tenants that metrics tell apart, and models in rare counters; the others share one label
    worker_index, parent_pid, parent_socket: set by the parent for its workers, which share the port, end with the
        parent, and ask it (with the same token) for what all workers know together
    """

    port: Annotated[int, Meta(ge=0, le=65535)]
    control_socket: str
    control_token: NonEmpty
    host: NonEmpty = "127.0.0.1"
    processes: Annotated[int, Meta(ge=1, le=256)] = 1
    fleet: str = ""
    node: str = ""
    orphan_grace_s: Seconds | None = 60.0
    tls_certificate: NonEmpty | None = None
    tls_key: NonEmpty | None = None
    access_log: NonEmpty | None = None
    access_log_max_bytes: Annotated[int, Meta(ge=4096)] = 256 * MIB
    access_log_keep: Count = 4
    tracing_endpoint: NonEmpty | None = None
    tracing_sample_ratio: Annotated[float, Meta(ge=0, le=1)] = 1.0
    redis_url: NonEmpty | None = None
    daemon_socket: NonEmpty | None = None
    state_folder: NonEmpty | None = None
    policy: Policy | None = None
    scrape_s: Annotated[float, Meta(gt=0)] | None = 1.0
    prefix_index_bytes: Annotated[int, Meta(ge=MIB)] = 64 * MIB
    prefix_index_path: str | None = None
    recent_requests: Count = 1000
    max_label_values: Positive = 200
    limits: GatewayLimits = msgspec.field(default_factory=GatewayLimits)
    worker_index: Count | None = None
    parent_pid: int | None = None
    parent_socket: str | None = None

    @property
    def run_folder(self) -> Path | None:
        """The run folder of this node, in which the cluster is found; None: the gateway belongs to no fleet."""
        return Path(self.daemon_socket).parent if self.daemon_socket else None

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in SECRETS)
        return f"GatewayConfig({', '.join(shown)})"

    def __rich_repr__(self) -> Any:
        """msgspec's own would show the secrets."""
        yield from ((name, getattr(self, name)) for name in self.__struct_fields__ if name not in SECRETS)

    def replaced(self, **changes: Any) -> GatewayConfig:
        """Return a copy with other values."""
        return msgspec.structs.replace(self, **changes)


_DECODER = msgspec.json.Decoder(GatewayConfig)
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_NAME = re.compile(r"`([^`]*)`")


def decode_config(document: bytes) -> GatewayConfig:
    """:raises UserInputError: the document is not JSON, or a value is unknown, missing or of the wrong kind."""
    try:
        config = _DECODER.decode(document)
    except msgspec.ValidationError as error:
        raise _refusal(_problem_of(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = f"the gateway's configuration is not JSON: {error}"
        raise _refusal(Problem(where="", what=what, hint="send one JSON object")) from None
    if (config.tls_certificate is None) != (config.tls_key is None):
        missing = "tls_key" if config.tls_key is None else "tls_certificate"
        what = "is missing: TLS takes a certificate and its key"
        raise _refusal(Problem(where=missing, what=what, hint="give both, or none for plain HTTP"))
    return config


def encode_config(config: GatewayConfig) -> bytes:
    """Write the JSON document that :func:`decode_config` reads. It holds secrets."""
    return msgspec.json.encode(config)


def _refusal(problem: Problem) -> UserInputError:
    return UserInputError(str(problem), hint=problem.hint, problems=(problem,))


def _problem_of(message: str) -> Problem:
    """msgspec's message, ``Expected `int`, got `str` - at `$.limits.suspect_s```, as a place and a mistake."""
    found = _PLACE.search(message)
    place = found[1] if found else ""
    text = message[: found.start()] if found else message
    name = _NAME.search(text)
    inside = f"{place}." if place else ""
    if name and "unknown field" in text:
        owner = GatewayLimits if place == "limits" else GatewayConfig
        hint = f"known: {', '.join(owner.__struct_fields__)}"
        return Problem(where=f"{inside}{name[1]}", what="is not a setting of the gateway", hint=hint)
    if name and "missing required field" in text:
        return Problem(where=f"{inside}{name[1]}", what="is missing", hint=f"give {inside}{name[1]} a value")
    hint = "see GatewayConfig for its meaning and its limits" if place else "send one JSON object"
    return Problem(where=place, what=text[:1].lower() + text[1:].replace("`", ""), hint=hint)
