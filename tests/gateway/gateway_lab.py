"""What the gateway's tests share: a gateway in the test's own loop, and a client that sends exactly what it is told."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from fake_upstream import DEADLINE_S, FakeUpstream

from longboat.core.policy import Policy, ResumePolicy, RoutingRules, TenantPolicy
from longboat.core.states import Endpoint, EndpointTable
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.config import GatewayConfig, GatewayLimits
from longboat.gateway.limits.keys import new_key
from longboat.gateway.process.server import Gateway

API_KEY = "engine-secret"
EVEN = RoutingRules(policy="least_requests")
"""Spreads equal prompts, which the default policy keeps together."""


def config(**changes: Any) -> GatewayConfig:
    values: dict[str, Any] = {"port": 0, "control_socket": "", "control_token": "t", "orphan_grace_s": None}
    return GatewayConfig(**{**values, **changes})


def endpoint(upstream: FakeUpstream | str, replica: str = "r0", model: str = "tiny", **changes: Any) -> Endpoint:
    url = upstream if isinstance(upstream, str) else upstream.url
    values: dict[str, Any] = {"model": model, "replica": replica, "generation": 1, "url": url, "api_key": API_KEY}
    return Endpoint(**{**values, **changes})


def table(*endpoints: Endpoint, version: int = 1, models: tuple[str, ...] = ("tiny",)) -> EndpointTable:
    return EndpointTable(version=version, models=models, endpoints=endpoints)


async def started_gateway(
    *upstreams: FakeUpstream | str,
    policy: Policy | None = None,
    endpoints: Sequence[Endpoint] = (),
    settings: Mapping[str, Any] | None = None,
    **limits: Any,
) -> Gateway:
    """A gateway that listens and has these upstreams as replicas r0, r1, … of ``tiny``.

    endpoints: further ones, of any model; settings: of the gateway's configuration
    policy: where it says nothing of it, nobody waits for an engine that is not there
    """
    policy = policy or Policy()
    if policy.resume == ResumePolicy():
        policy = dataclasses.replace(policy, resume=ResumePolicy(wait_s=0))
    gateway = Gateway(config(limits=GatewayLimits(**limits), policy=policy, **(settings or {})))
    await gateway.start()
    tiny = [endpoint(u, f"r{i}") for i, u in enumerate(upstreams)]
    models = tuple(dict.fromkeys(("tiny", *(e.model for e in endpoints))))
    gateway.state.offer_table("e", table(*tiny, *endpoints, models=models))
    return gateway


def settled(gateway: Gateway) -> GatewayState:
    """Its state once all that ended is written down, as whoever asks it from outside finds it."""
    gateway.state.accounting.flush()
    return gateway.state


def push_policy(gateway: Gateway, policy: Policy) -> None:
    """As the control socket does it."""
    gateway.state.offer_policy(msgspec.json.encode(policy))


def keyed(*tenants: TenantPolicy, **changes: Any) -> tuple[Policy, list[str]]:
    """A policy that asks for keys, and a header line with a key for each of the tenants."""
    made = [new_key(tenant.name, now_s=0.0) for tenant in tenants]
    policy = Policy(auth="keys", tenants=tenants, keys=tuple(record for _, record in made), **changes)
    return policy, [f"authorization: Bearer {key}\r\n" for key, _ in made]


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["error"]["code"])


class RawClient:
    """Sends bytes, reads responses. Every read has a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, gateway: Gateway | int) -> RawClient:
        port = gateway if isinstance(gateway, int) else gateway.port
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def post(self, document: Any, path: str = "/v1/chat/completions", headers: str = "") -> Response:
        self.send(post_bytes(document, path, headers))
        return await self.response()

    async def get(self, path: str, headers: str = "") -> Response:
        self.send(f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{headers}\r\n".encode())
        return await self.response()

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(DEADLINE_S):
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        return int(first.split()[1]), {k.lower(): v.strip() for k, _, v in pairs}

    async def response(self) -> Response:
        status, headers = await self.head()
        while status == 100:
            status, headers = await self.head()
        async with asyncio.timeout(DEADLINE_S):
            if "content-length" in headers:
                return Response(status, headers, await self.reader.readexactly(int(headers["content-length"])))
            if headers.get("transfer-encoding") == "chunked":
                body, complete = await self.chunked_body()
                return Response(status, headers, body, complete)
            return Response(status, headers, await self.reader.read())

    async def chunked_body(self) -> tuple[bytes, bool]:
        pieces: list[bytes] = []
        while line := await self.reader.readline():
            size = int(line, 16)
            pieces.append(await self.reader.readexactly(size))
            await self.reader.readexactly(2)
            if size == 0:
                return b"".join(pieces), True
        return b"".join(pieces), False

    async def read_some(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read(65536)

    async def at_end(self) -> bool:
        """Whether the gateway closed the connection, with nothing more to read."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read() == b""

    def abort(self) -> None:
        self.writer.transport.abort()


def post_bytes(document: Any, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def eventually(fact: Any, what: str) -> None:
    """Wait until ``fact()`` is true, for a generous time."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not fact():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"never came true: {what}") from None
