"""One address outside the fleet: how it is reached, and what each request to it begins with."""

from __future__ import annotations

import asyncio
import base64
import functools
import ipaddress
import socket
import ssl
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from longboat.core.external import ExternalModel

__all__ = ("Address", "addresses_of")

_PASSED_ON = frozenset((b"content-type", b"accept", b"anthropic-version", b"anthropic-beta", b"openai-beta"))
"""Headers of clients that leave the fleet. What else a client sends is for the gateway and its engines."""

_ANTHROPIC_VERSION = "2023-06-01"
_MAX_PROXY_HEAD = 16384


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return what this process trusts: the system's certificates, or those of SSL_CERT_FILE and SSL_CERT_DIR."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Address:
    """An address of an external model."""

    __slots__ = ("_base", "_own_lines", "_own_names", "_proxy", "connect_s", "host", "label", "port", "tls")

    def __init__(self, model: ExternalModel, url: str, label: str, key: str) -> None:
        """label: by which it is known in headers, logs and metrics; key: empty where it asks for none"""
        parts = urlsplit(url)
        self.label = label
        self.host = str(parts.hostname)
        self.tls = parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self.connect_s = model.connect_s
        self._proxy = _proxy_of(model.proxy, parts.scheme, self.host)
        self._base = _base_path(parts.path, model.api).encode()
        lines = {"host": parts.netloc, "accept-encoding": "identity", "user-agent": "longboat", **model.headers}
        if key:
            lines |= _key_header(model, key)
        self._own_names = frozenset(name.encode() for name in lines)
        self._own_lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")
        if model.api == "anthropic" and "anthropic-version" not in lines:
            self._own_names |= {b""}  # it is written where the client names none

    def request_start(self, method: str, path: bytes, forwarded: list[bytes]) -> bytes:
        """Return the head of a request, up to the lines that differ in every request."""
        kept = [line for line in forwarded if self._passes(line.partition(b":")[0].lower())]
        if b"" in self._own_names and not any(line.lower().startswith(b"anthropic-version:") for line in kept):
            kept.append(f"anthropic-version: {_ANTHROPIC_VERSION}\r\n".encode())
        target = path.removeprefix(b"/v1")
        return b"".join((b"%b %b%b HTTP/1.1\r\n" % (method.encode(), self._base, target), self._own_lines, *kept))

    def _passes(self, name: bytes) -> bool:
        return name in _PASSED_ON and name not in self._own_names

    async def open(self, make: Callable[[], Any]) -> None:
        """Connect a protocol, through the proxy where there is one.

        Raises OSError: refused, unreachable, a certificate that is not trusted; TimeoutError when it takes too long
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_s):
                tls, name = (_tls(), self.host) if self.tls else (None, None)
                if self._proxy is None:
                    await loop.create_connection(make, self.host, self.port, ssl=tls, server_hostname=name)
                else:
                    sock = await _tunnel(self._proxy, self.host, self.port)
                    await loop.create_connection(make, sock=sock, ssl=tls, server_hostname=name)
        except TimeoutError:
            raise TimeoutError(f"no connection to {self.label} within {self.connect_s:g} s") from None
        except UnicodeError as error:  # from the name look-up
            raise OSError(f"{self.host!r} is not a valid host name") from error


def addresses_of(model: ExternalModel, key: str) -> tuple[Address, ...]:
    """Return the addresses of a model, each with a label of its own."""
    labels: list[str] = []
    for url in model.urls:
        parts = urlsplit(url)
        label = parts.netloc if parts.netloc not in labels else f"{parts.netloc}{parts.path}"
        labels.append(label)
    return tuple(Address(model, url, label, key) for url, label in zip(model.urls, labels, strict=True))


def _base_path(path: str, api: str) -> str:
    """Return what stands in the place of ``/v1``: client libraries of Anthropic's API add that themselves."""
    path = path.rstrip("/")
    if api == "anthropic":
        return f"{path.removesuffix('/v1')}/v1"
    return path or "/v1"


def _key_header(model: ExternalModel, key: str) -> dict[str, str]:
    if model.api_key_header is not None:
        return {model.api_key_header: key}
    return {"x-api-key": key} if model.api == "anthropic" else {"authorization": f"Bearer {key}"}


class _Proxy(NamedTuple):
    host: str
    port: int
    credentials: bytes  # a line of the head, or empty

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


def _proxy_of(given: str | None, scheme: str, host: str) -> _Proxy | None:
    """Return the proxy: the file's, else the environment's as other programs read it."""
    url = given
    if url is None and not _is_loopback(host) and not urllib.request.proxy_bypass_environment(host):  # type: ignore[attr-defined]
        url = urllib.request.getproxies_environment().get(scheme)
    if not url:
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return _Proxy(parts.hostname, parts.port or 3128, _credentials(parts)) if parts.hostname else None


def _credentials(parts: SplitResult) -> bytes:
    if parts.username is None:
        return b""
    pair = unquote_to_bytes(parts.username) + b":" + unquote_to_bytes(parts.password or "")
    return b"proxy-authorization: Basic %b\r\n" % base64.b64encode(pair)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _connected(proxy: _Proxy) -> socket.socket:
    """Return a connection to the first of a proxy's addresses that takes one."""
    loop = asyncio.get_running_loop()
    failure = OSError(f"the proxy {proxy.name} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # a machine without IPv6, say
            failure = error
            continue
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _tunnel(proxy: _Proxy, host: str, port: int) -> socket.socket:
    """Return a socket that a proxy has connected to the host (HTTP CONNECT)."""
    loop = asyncio.get_running_loop()
    sock = await _connected(proxy)
    try:
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        head_lines = f"CONNECT {name} HTTP/1.1\r\nhost: {name}\r\n".encode()
        await loop.sock_sendall(sock, b"%b%b\r\n" % (head_lines, proxy.credentials))
        head = b""
        while b"\r\n\r\n" not in head:
            more = await loop.sock_recv(sock, 1)  # a byte at a time: what follows the head is TLS
            if not more or len(head) > _MAX_PROXY_HEAD:
                raise ConnectionResetError("the proxy closed the connection")
            head += more
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            words = head.partition(b"\r\n")[0].decode("latin-1")[:200]
            raise ConnectionRefusedError(f"the proxy {proxy.name} refused: {words}")
    except BaseException:
        sock.close()
        raise
    return sock
