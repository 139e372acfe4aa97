"""A client of the console that keeps its cookie, for tests over HTTP."""

from __future__ import annotations

import json
from typing import Any

from gateway_lab import RawClient, Response

from longboat.gateway.process.server import Gateway

__all__ = ("API", "Browser", "signed_in")

API = "/console/api/"


class Browser:
    """A client that keeps its cookie, and sends the page's token with what changes something."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.cookie = ""
        self.csrf = ""
        self.host = "x"

    async def get(self, path: str, headers: str = "") -> Response:
        return await self._ask(f"GET {path} HTTP/1.1\r\nhost: {self.host}\r\n{self._own()}{headers}\r\n".encode())

    async def post(self, path: str, document: Any = None, headers: str | None = None) -> Response:
        body = json.dumps(document or {}).encode()
        token = f"x-csrf-token: {self.csrf}\r\n" if headers is None else headers
        head = f"POST {path} HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n{self._own()}{token}"
        return await self._ask(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    async def sign_in(self, key: str) -> Response:
        answer = await self.post(API + "sign-in", {"key": key})
        if answer.status == 200:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.csrf = (await self.get(API + "session")).json()["csrf"]
        return answer

    async def live(self, section: str, have: str = "") -> Any:
        answer = await self.get(f"{API}live/{section}?have={have}")
        assert answer.status == 200, answer.body
        return answer.json()

    def _own(self) -> str:
        return f"cookie: other=1; {self.cookie}\r\n" if self.cookie else ""

    async def _ask(self, data: bytes) -> Response:
        client = await RawClient.to(self._gateway)
        client.send(data)
        try:
            status, headers = await client.head()
            length = int(headers.get("content-length", 0))  # a 304 has neither a length nor a body
            return Response(status, headers, await client.reader.readexactly(length))
        finally:
            client.abort()


async def signed_in(gateway: Gateway, key: str) -> Browser:
    browser = Browser(gateway)
    assert (await browser.sign_in(key)).status == 200
    return browser
