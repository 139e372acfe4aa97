"""The connector by which vLLM loads images, sounds and videos: it fetches only from the domains of the fleet file.

``VLLM_MEDIA_CONNECTOR=longboat`` chooses it; the rules come in ``LONGBOAT_MEDIA`` as JSON. A host's name is resolved
once, and only public addresses among the results are connected to: a name whose address changes after a check leads
nowhere else. Redirects are not followed, and proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("NAME", "RULES", "Rules", "install", "is_public", "resample_by_pyav")

NAME = "longboat"
RULES = "LONGBOAT_MEDIA"
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_TIMEOUT_S = 10.0
_PIECE_BYTES = 65536


class Rules:
    """The rules of this engine's model."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.domains = tuple(str(domain) for domain in values.get("domains", ()))
        self.max_bytes = int(values.get("max_bytes", 20 * 2**20))
        self.private_addresses = bool(values.get("private_addresses", False))

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Rules:
        """Read the rules; without any, nothing is fetched."""
        return cls(json.loads(environ.get(RULES) or "{}"))

    def allows(self, host: str) -> bool:
        """Return whether a host is among the domains; an address must also be one that may be connected to."""
        host = host.lower().strip("[]").rstrip(".")
        named = any(host == one or (one.startswith("*.") and host.endswith(one[1:])) for one in self.domains)
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return named
        return named and self.may_connect(host)

    def may_connect(self, address: str) -> bool:
        """Return whether this address may be connected to."""
        return self.private_addresses or is_public(address)


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the public network; also where it wraps an IPv4 address."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is None and int(found) >> 32 == 0:
            inner = ipaddress.IPv4Address(int(found))
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast


def install() -> None:
    """Register the connector. Loading it again changes nothing."""
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from PIL import Image
    from urllib3.util import parse_url
    from vllm.multimodal.media.connector import MEDIA_CONNECTOR_REGISTRY, MediaConnector

    class PublicResolver(AbstractResolver):  # type: ignore[misc]
        """A resolver that leaves out the addresses that may not be connected to."""

        def __init__(self, rules: Rules) -> None:
            self._rules = rules

        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
            )
            usable = [one for one in found if self._rules.may_connect(str(one[4][0]))]
            if not usable:
                raise OSError(f"{host} has no address that may be connected to")
            return [
                ResolveResult(
                    hostname=host, host=str(one[4][0]), port=port, family=one[0], proto=one[2],
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
                for one in usable
            ]  # fmt: skip

        async def close(self) -> None:
            """Nothing is kept."""

    class LongboatConnector(MediaConnector):  # type: ignore[misc]
        """vLLM's connector with the rules of the fleet file. What it refuses is the client's mistake."""

        def _rules(self) -> Rules:
            return Rules.read()

        def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
            if not _is_data(url):
                raise ValueError("media are fetched from addresses in chats only")
            return self._decoded(self._load_data_url, self._bounded(url), media_io)

        async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
            if _is_data(url):
                return await asyncio.to_thread(self._decoded, self._load_data_url, self._bounded(url), media_io)
            data = await self._fetched(url, float(fetch_timeout or _TIMEOUT_S))
            return await asyncio.to_thread(self._decoded, lambda raw, io: io.load_bytes(raw), data, media_io)

        def _bounded(self, url: str) -> str:
            limit = self._rules().max_bytes
            if len(url) * 3 // 4 > limit + 1024:
                raise ValueError(f"the media are larger than {limit} bytes")
            return url

        def _decoded(self, load: Any, data: Any, media_io: Any) -> Any:
            try:
                return load(data, media_io)
            except (Image.DecompressionBombError, NotImplementedError) as error:
                raise ValueError(str(error)) from error

        async def _fetched(self, url: str, timeout_s: float) -> bytes:
            rules, found = self._rules(), parse_url(url)
            if found.scheme not in ("http", "https") or found.auth is not None or not found.host:
                raise ValueError("media are fetched from http and https addresses without a user name")
            if not rules.allows(found.host):
                raise ValueError(f"media are not fetched from {found.host!r}")
            connector = aiohttp.TCPConnector(resolver=PublicResolver(rules), use_dns_cache=False)
            timeout = aiohttp.ClientTimeout(total=timeout_s)
            try:
                async with (
                    aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session,
                    session.get(found.url, allow_redirects=False) as answer,
                ):
                    if answer.status != 200:
                        told = f"{found.host} answers {answer.status} for the media; redirects are not followed"
                        raise ValueError(told)
                    return await _read(answer.content.iter_chunked(_PIECE_BYTES), rules.max_bytes)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why = getattr(error, "os_error", None) or error
                raise ValueError(f"the media cannot be fetched from {found.host!r}: {why}") from error

    MEDIA_CONNECTOR_REGISTRY.register(NAME)(LongboatConnector)


def resample_by_pyav() -> None:
    """Let chats resample audio by PyAV where torchaudio is missing, as transcriptions do. Raises UnexpectedShapeError.

    vLLM's chats resample by torchaudio alone, which Longboat's environments leave out.
    """
    if importlib.util.find_spec("torchaudio") is not None:
        return
    from vllm.multimodal import audio

    if not hasattr(audio, "resample_audio_torchaudio"):
        return
    expect(hasattr(audio, "resample_audio_pyav"), "audio is not resampled by PyAV")
    audio.resample_audio_torchaudio = audio.resample_audio_pyav


def _is_data(url: str) -> bool:
    return url[:5].lower() == "data:"


async def _read(pieces: Any, max_bytes: int) -> bytes:
    found, size = [], 0
    async for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise ValueError(f"the media are larger than {max_bytes} bytes")
        found.append(piece)
    return b"".join(found)
