"""An external provider for tests: a scripted server over TLS, with an authority that only the test's gateways trust."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from fake_upstream import FakeUpstream, Script, Seen, chunk

from longboat.core.external import Budget, ExternalModel, Price
from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.external import address

SECRET = "sk-never-shown-0123456789"
ASK = {"model": "cloud", "messages": [{"role": "user", "content": "hello"}]}
PRICE = Price(input_per_million=0.5, output_per_million=2.0, currency="EUR")
USAGE = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}


@dataclass
class Provider(FakeUpstream):
    """A scripted server that speaks TLS as ``localhost``."""

    tls: ssl.SSLContext | None = None

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


class Authority:
    """Makes certificates, and the file by which gateways trust them."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._authority.cert_pem.bytes())

    def tls(self, name: str = "localhost") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(name).configure_cert(context)
        return context


MakeProvider = Callable[..., Awaitable[Provider]]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Return an authority that this test's gateways trust; the provider's key is in their environment."""
    made = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
    monkeypatch.setenv("LB_TEST_PROVIDER_KEY", SECRET)
    address._tls.cache_clear()
    return made


@pytest.fixture
async def provider(authority: Authority) -> AsyncIterator[MakeProvider]:
    made: list[Provider] = []

    async def make(script: Script | None = None, name: str = "localhost") -> Provider:
        one = Provider(script or answers(), tls=authority.tls(name))
        await one.start()
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def model(*urls: str, name: str = "cloud", **values: Any) -> ExternalModel:
    """An external model that is called ``big-7`` there, and whose key is in an environment variable."""
    return ExternalModel(
        name=name, urls=urls, **{"model": "big-7", "api_key_env": "LB_TEST_PROVIDER_KEY", "connect_s": 10.0, **values}
    )


def open_policy(*models: ExternalModel, external: bool = True, **changes: Any) -> Policy:
    """A policy without keys, whose requests may leave the fleet."""
    return Policy(external=models, tenants=(TenantPolicy(name="anonymous", external=external),), **changes)


def budget(**values: Any) -> Budget:
    return Budget(**values)


def whole(document: Any, status: str = "200 OK", headers: str = "") -> bytes:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answers(status: str = "200 OK", headers: str = "", document: Any = None) -> Script:
    """A script that gives every request this whole response."""

    async def script(seen: Seen) -> None:
        await seen.send(whole({"id": "c1", "usage": USAGE} if document is None else document, status, headers))

    return script


def error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "code": None}}


def delta(text: str) -> bytes:
    return chunk(f'data: {{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}\n\n'.encode())


END = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
