"""The console's own files, as they ship in the wheel, and the security headers of everything under ``/console``."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ("SECURITY_HEADERS", "StaticFile", "asset", "page")

SECURITY_HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
"""Scripts and styles only from files of this gateway; no text can become markup; no other page may frame this one."""

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    """A file as browsers get it."""

    body: bytes
    content_type: str
    etag: str


def page() -> StaticFile:
    """Return the one HTML document: its scripts show the page that the address names."""
    return _files()["index.html"]


def asset(name: str) -> StaticFile | None:
    """Return a script, a style sheet or a picture by its file name; None where there is no such file."""
    return _files().get(name) if name != "index.html" else None


@cache
def _files() -> dict[str, StaticFile]:
    """Read all files at the first request, about 60 kB. No other path is ever opened."""
    folder = files("longboat.gateway.console") / "assets"
    return {
        entry.name: StaticFile(body, _TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:16]}"')
        for entry in folder.iterdir()
        if (suffix := entry.name.rpartition(".")[2]) in _TYPES
        for body in (entry.read_bytes(),)
    }
