"""The section ``media`` of a model: images, sounds and videos in its requests."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from longboat.core.media import MediaRules
from longboat.core.sizes import size_bytes
from longboat.spec.types.section import Section, checked_size, mistake

__all__ = ("MediaSpec",)

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DOMAIN = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_MOST_BYTES = 1 << 30


def _domain(value: str) -> str:
    host = value.lower().rstrip(".")
    if _is_address(host):
        return str(ipaddress.ip_address(host))
    if not _DOMAIN.fullmatch(host) or len(host) > 253 or host.rpartition(".")[2].isdigit():
        hint = "write a host: images.example.com, or *.example.com for all hosts below it"
        raise mistake(f"{value!r} is not a host", hint)
    if host.startswith("*.") and "." not in host[2:]:
        raise mistake(f"{value!r} covers a whole top-level domain", "write *.example.com")
    return host


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _size(value: str) -> str:
    size = checked_size(value, "20MiB")
    if size_bytes(size) > _MOST_BYTES:
        raise mistake(f"{value} is more than the limit, 1GiB", 'write it like "20MiB"')
    return size


def _reachable(private: bool, info: ValidationInfo) -> bool:
    for domain in info.data.get("domains", ()):
        if _is_address(domain) and not ipaddress.ip_address(domain).is_global and not private:
            raise mistake(f"{domain} is not a public address", "write private_addresses: true, or leave it out")
    return private


class MediaSpec(Section):
    """Images, sounds and videos in requests. Data URLs are always allowed."""

    domains: tuple[Annotated[str, AfterValidator(_domain)], ...] = Field(default=(), max_length=100)
    """Hosts from which the engine may fetch: exact ones, or *.example.com for all below; none by default."""
    max_bytes: Annotated[str, AfterValidator(_size)] = "20MiB"
    """Largest image, sound or video, with its unit ("20MiB")."""
    max_pixels: int = Field(default=33_554_432, ge=1, le=178_956_970)
    """Most pixels of one image, once it is decoded."""
    max_items: int = Field(default=16, ge=0, le=1000)
    """Most images, sounds and videos in one request; 0 allows none."""
    private_addresses: Annotated[bool, AfterValidator(_reachable), Field(validate_default=True)] = False
    """Whether these hosts may have addresses that are not public: servers inside your network."""

    @property
    def rules(self) -> MediaRules:
        """The same rules for gateways and engines."""
        return MediaRules(
            domains=self.domains,
            max_bytes=size_bytes(self.max_bytes),
            max_pixels=self.max_pixels,
            max_items=self.max_items,
            private_addresses=self.private_addresses,
        )
