"""A sign-in provider of the tests' own: it makes good tokens and bad ones, with real keys, and counts its questions."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from gateway_lab import RawClient, Response, config, table
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from longboat.core.policy import AdminCredential, KeyRecord, Policy, TenantPolicy
from longboat.core.sign_in import GroupRights, SignIn
from longboat.gateway.limits.keys import new_admin_key, new_key
from longboat.gateway.process.server import Gateway

__all__ = ("CLIENT", "HOST", "Person", "Provider", "ShiftedClock", "opened_gateway", "private_key", "sign_in_policy")

CLIENT = "longboat"
HOST = "127.0.0.1:8000"
RIGHTS = (
    GroupRights(group="ops", role="operator"),
    GroupRights(group="watch", role="viewer"),
    GroupRights(group="science", tenant="a"),
)


@cache
def private_key(name: str) -> Any:
    """Return a key that is the same in all tests: names beginning with ``ec`` are of an elliptic curve."""
    if name.startswith("ec"):
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_jwk(name: str, **changes: Any) -> dict[str, Any]:
    key = private_key(name).public_key()
    made = ECAlgorithm.to_jwk(key, as_dict=True) if name.startswith("ec") else RSAAlgorithm.to_jwk(key, as_dict=True)
    return {**made, "kid": name, "use": "sig", **changes}


@dataclass
class ShiftedClock:
    """The wall clock, some seconds ahead."""

    ahead_s: float = 0.0

    def monotonic_s(self) -> float:
        return time.monotonic() + self.ahead_s

    def unix_s(self) -> float:
        return time.time() + self.ahead_s


@dataclass
class Provider:
    """Serves HTTP on this machine. Tests change its fields while it runs."""

    port: int = 0
    groups: list[str] = field(default_factory=lambda: ["staff", "ops"])
    key: str = "one"  # signs new tokens
    keys: list[dict[str, Any]] = field(default_factory=lambda: [public_jwk("one")])
    claims: dict[str, Any] = field(default_factory=dict)  # that ID tokens have beside, or instead of, their own
    raw_id_token: str = ""  # is sent as it is
    has_userinfo: bool = True
    userinfo_groups: bool = True
    gives_refresh: bool = True
    revoked: bool = False  # it takes neither access nor refresh tokens
    is_down: bool = False
    rotates: bool = False  # a refresh token is good once; the answer has the next
    takes_access: str = ""  # the only access token that userinfo takes; empty: all
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)  # in place of its own; text is sent as it is
    gates: dict[str, asyncio.Event] = field(default_factory=dict)  # paths whose answers wait for an event
    document: dict[str, Any] = field(default_factory=dict)  # changes of its own document
    asked: Counter[str] = field(default_factory=Counter)
    forms: list[dict[str, str]] = field(default_factory=list)
    _refreshes: int = 0
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, *, key: str = "", algorithm: str = "", headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """Return a signed token. A claim that is None is left out."""
        name, now_s = key or self.key, int(time.time())
        own = {
            "iss": self.issuer,
            "sub": "u-1",
            "aud": CLIENT,
            "iat": now_s,
            "exp": now_s + 3600,
            "groups": self.groups,
        }
        payload = {claim: value for claim, value in {**own, **claims}.items() if value is not None}
        return jwt.encode(
            payload,
            private_key(name),
            algorithm=algorithm or ("ES256" if name.startswith("ec") else "RS256"),
            headers=headers if headers is not None else {"kid": name},
        )

    def authorize(self, url: str) -> str:
        """Return the path and the query by which the browser comes back, after the person has agreed."""
        asked = dict(parse_qsl(urlsplit(url).query))
        code = f"code-{len(self._codes)}"
        self._codes[code] = asked
        back = {"code": code, "state": asked["state"]}
        return f"{urlsplit(asked['redirect_uri']).path}?{urlencode(back)}"

    def answer(self, path: str, head: str, form: dict[str, str]) -> tuple[int, Any]:
        self.asked[path] += 1
        if path in self.answers:
            return self.answers[path]
        match path:
            case "/.well-known/openid-configuration":
                return 200, {**self._document(), **self.document}
            case "/keys":
                return 200, {"keys": self.keys}
            case "/token":
                self.forms.append({**form, "head": head})
                return self._tokens(form)
            case "/userinfo":
                groups = {"groups": self.groups} if self.userinfo_groups else {}
                good = {"sub": "u-1", "preferred_username": "ada", **groups}
                is_taken = f"bearer {self.takes_access}" in head.lower() and not self.revoked
                return (200, good) if is_taken else (401, {"error": "invalid_token"})
        return 404, {}

    def _document(self) -> dict[str, Any]:
        found = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", "token_endpoint": f"{self.issuer}/token"}
        found["authorization_endpoint"] = f"{self.issuer}/authorize"
        return {**found, **({"userinfo_endpoint": f"{self.issuer}/userinfo"} if self.has_userinfo else {})}

    def _tokens(self, form: dict[str, str]) -> tuple[int, Any]:
        if form.get("grant_type") == "refresh_token":
            if self.revoked:
                return 400, {"error": "invalid_grant"}
            if self.rotates and form["refresh_token"] != f"refresh-{self._refreshes + 1}":
                return 400, {"error": "invalid_grant"}
            self._refreshes += 1
            rotated = {"refresh_token": f"refresh-{self._refreshes + 1}"} if self.rotates else {}
            access = f"access-{self._refreshes + 1}"
            return 200, {"access_token": access, "id_token": self.token(), "token_type": "Bearer", **rotated}
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if asked is None or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        id_token = self.raw_id_token or self.token(**{"nonce": asked["nonce"], **self.claims})
        refresh = {"refresh_token": "refresh-1"} if self.gives_refresh else {}
        return 200, {"access_token": "access-1", "id_token": id_token, "token_type": "Bearer", **refresh}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(line[15:]) for line in head.lower().split("\r\n") if line[:15] == "content-length:"), 0)
            form = dict(parse_qsl((await reader.readexactly(length)).decode()))
            reply = self._reply(path := head.split(" ")[1], head, form)
            if path in self.gates:
                await self.gates[path].wait()
            writer.write(reply)
            await writer.drain()
        writer.close()

    def _reply(self, target: str, head: str, form: dict[str, str]) -> bytes:
        if target.startswith("/authorize?"):  # a browser, whose person agrees at once
            where = urlsplit(dict(parse_qsl(urlsplit(target).query))["redirect_uri"])
            back = f"{where.scheme}://{where.netloc}{self.authorize(target)}"
            return f"HTTP/1.1 303 X\r\nlocation: {back}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".encode()
        status, document = (500, {}) if self.is_down else self.answer(target, head, form)
        body = (document if isinstance(document, str) else json.dumps(document)).encode()
        return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body)) + body


@asynccontextmanager
async def opened_provider(**changes: Any) -> AsyncIterator[Provider]:
    provider = Provider(**changes)
    server = await asyncio.start_server(provider.handle, "127.0.0.1", 0)
    provider.port = server.sockets[0].getsockname()[1]
    try:
        yield provider
    finally:
        server.close()


def sign_in_policy(issuer: str, **changes: Any) -> tuple[Policy, dict[str, str]]:
    """Return a policy with a provider beside an admin's secret and a tenant's key, and these two."""
    admin_key, admin = new_admin_key("hand", "operator")
    tenant_key, record = new_key("a", now_s=0.0)
    sign_in = SignIn(issuer=issuer, client_id=CLIENT, console_urls=(f"http://{HOST}",), groups=RIGHTS)
    sign_in = dataclasses.replace(sign_in, **changes)
    admins: tuple[AdminCredential, ...] = (admin,)
    keys: tuple[KeyRecord, ...] = (record,)
    tenants = (TenantPolicy(name="a"), TenantPolicy(name="b"))
    policy = Policy(auth="keys", tenants=tenants, keys=keys, admins=admins, sign_in=sign_in)
    return policy, {"operator": admin_key, "a": tenant_key}


@asynccontextmanager
async def opened_gateway(policy: Policy, clock: ShiftedClock, **settings: Any) -> AsyncIterator[Gateway]:
    """Open a gateway without models. It has a table: without one, it would keep its first clients for two seconds."""
    gateway = Gateway(config(policy=policy, **settings), clock)
    await gateway.start()
    gateway.state.offer_table("e", table(models=()))
    try:
        yield gateway
    finally:
        gateway.stop(0.0)
        await gateway.stopped.wait()


class Person:
    """A browser with its cookies, at the address that the provider knows."""

    def __init__(self, gateway: Gateway, host: str = HOST) -> None:
        self._gateway = gateway
        self._host = host
        self.cookies: dict[str, str] = {}

    async def get(self, path: str, headers: str = "") -> Response:
        return await self._ask(f"GET {path} HTTP/1.1\r\nhost: {self._host}\r\n{self._own()}{headers}\r\n".encode())

    async def post(self, path: str, headers: str = "") -> Response:
        head = f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\n{self._own()}{headers}content-length: 0\r\n\r\n"
        return await self._ask(head.encode())

    async def start(self) -> str:
        """Return the provider's address to which the console sends the browser."""
        answer = await self.get("/console/api/oidc/start")
        assert answer.status == 303, answer.body
        return answer.headers["location"]

    async def arrive(self, provider: Provider) -> str:
        """Sign in, and return the address that the browser is sent to at last."""
        return (await self.get(provider.authorize(await self.start()))).headers["location"]

    async def session(self) -> dict[str, Any]:
        answer = await self.get("/console/api/session")
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json()
        return found

    def _own(self) -> str:
        pairs = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return f"cookie: {pairs}\r\n" if pairs else ""

    async def _ask(self, data: bytes) -> Response:
        client = await RawClient.to(self._gateway)
        client.send(data)
        try:
            head = (await client.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            lines = [line.partition(":") for line in head[1:] if line]
            headers = {name.lower(): value.strip() for name, _, value in lines}
            for name, _, value in lines:
                if name.lower() == "set-cookie":
                    cookie, _, rest = value.strip().partition("=")
                    self.cookies[cookie] = rest.partition(";")[0]
            body = await client.reader.readexactly(int(headers.get("content-length", 0)))
            return Response(int(head[0].split()[1]), headers, body)
        finally:
            client.abort()
