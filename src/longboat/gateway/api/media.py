"""Images, sounds and videos in a request: each is checked before an engine sees it. Pure.

An address is checked here by its spelling. What a host's name resolves to is checked by the engine when it connects.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import Any

from longboat.core.media import MediaRules
from longboat.gateway.http.responses import Refusal

__all__ = ("form_refusal", "holds_media", "media_refusal")

_ADDRESS = re.compile(r"https?://(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?([/?#][\x21-\x5b\x5d-\x7e]*)?")
_DATA = re.compile(r"data:(?P<kind>image|audio|video)/[\w.+-]{1,60}(;[\w.+=-]{1,60})*;base64,", re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9.]+|0[xX][0-9A-Fa-f]+(\..*)?")
_URL_KINDS = {
    "image_url": "image",
    "audio_url": "audio",
    "video_url": "video",
    "file_url": "",
    "image": "image",
    "audio": "audio",
    "video": "video",
}
"""Field → kind of what it holds; empty: any kind."""
_FREE = frozenset(("tools", "metadata", "response_format", "chat_template_kwargs"))
"""Fields whose content is the client's own, and never loaded."""
_MARKS = (b'_url"', b'image"', b'audio"', b'video"', b'source"', b'file_data"')
"""Ends of all fields that hold media, in as few pieces as possible: each request is searched for them."""
_SHOWN_CHARS = 80


def holds_media(body: bytes) -> bool:
    """Return whether a body whose names of fields have no escapes may hold media."""
    return any([mark in body for mark in _MARKS])


def media_refusal(document: Any, rules: MediaRules) -> Refusal | None:
    """Return why a request may not be sent to an engine with these rules; None where it may."""
    items = list(_items(document))
    if len(items) > rules.max_items:
        return _count_refusal(len(items), rules)
    for kind, text, is_data in items:
        found = _data_refusal(text, kind, rules) if is_data else _url_refusal(text, kind, rules)
        if found is not None:
            return found
    return None


def form_refusal(file_bytes: Sequence[int], rules: MediaRules) -> Refusal | None:
    """Return why a form with files of these sizes may not be sent to an engine with these rules; None where it may."""
    if len(file_bytes) > rules.max_items:
        return _count_refusal(len(file_bytes), rules, param="file")
    if (largest := max(file_bytes, default=0)) > rules.max_bytes:
        return _size_refusal(f"The file has {largest} bytes", rules, param="file")
    return None


def _items(value: Any) -> Iterator[tuple[str, str, bool]]:
    """Yield each item's kind and its address, or its data."""
    if type(value) is list:
        for one in value:
            yield from _items(one)
    if type(value) is not dict or value.get("type") == "tool_use":  # a tool's input is the client's own too
        return
    for name, inner in value.items():
        if name in _FREE:
            continue
        if name in _URL_KINDS:
            url = inner.get("url") if type(inner) is dict else inner
            if type(url) is str:
                yield _URL_KINDS[name], url, False
                continue
        elif name == "source" and type(inner) is dict:
            yield from _of_source(inner)
        elif name == "input_audio" and type(inner) is dict and type(inner.get("data")) is str:
            yield "audio", inner["data"], True
        elif name == "file_data" and type(inner) is str:
            yield "", inner, True
        if type(inner) is list or type(inner) is dict:
            yield from _items(inner)


def _of_source(source: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield what a ``source`` of Anthropic's API holds: engines take all other than an address for data."""
    name = "url" if source.get("type") == "url" else "data"
    if type(source.get(name)) is str:
        yield "", source[name], name == "data"


def _url_refusal(url: str, kind: str, rules: MediaRules) -> Refusal | None:
    if url[:5].lower() == "data:":
        return _data_url_refusal(url, kind, rules)
    found = _ADDRESS.fullmatch(url)
    if found is None:
        message = f"{_shown(url)} is not an address that an engine may fetch: write https://HOST/PATH, or a data URL."
        return _refusal(message, "media_address")
    host = found["host"].lower().strip("[]").rstrip(".")
    if not rules.domains:
        message = f"This model fetches nothing from addresses such as {_shown(url)}. Send the media as a data URL."
        return _refusal(message, "media_address")
    if not _is_allowed(host, rules.domains):
        named = ", ".join(rules.domains[:10])
        return _refusal(f"This model fetches nothing from {host!r}, only from {named}.", "media_address")
    if not _may_connect(host, rules):
        return _refusal(f"{host!r} is not a public address.", "media_address")
    return None


def _data_url_refusal(url: str, kind: str, rules: MediaRules) -> Refusal | None:
    found = _DATA.match(url[:400])
    if found is None or (kind and found["kind"].lower() != kind):
        what = f"data:{kind or 'image'}/TYPE;base64,DATA"
        return _refusal(f"{_shown(url)} is not a data URL of this kind: write {what}.", "media_data")
    return _data_refusal(url[found.end() :], kind, rules)


def _data_refusal(data: str, kind: str, rules: MediaRules) -> Refusal | None:
    num_bytes = len(data) * 3 // 4
    if num_bytes <= rules.max_bytes:
        return None
    return _size_refusal(f"The {kind or 'file'} has about {num_bytes} bytes", rules)


def _count_refusal(count: int, rules: MediaRules, *, param: str = "messages") -> Refusal:
    message = f"The request has {count} images, sounds and videos; this model takes {rules.max_items}."
    return _refusal(message, "too_many_media", param=param)


def _size_refusal(what: str, rules: MediaRules, *, param: str = "messages") -> Refusal:
    message = f"{what}; this model takes {rules.max_bytes}."
    return _refusal(message, "media_too_large", status=413, param=param)


def _is_allowed(host: str, domains: Sequence[str]) -> bool:
    return any(host == domain or (domain[:2] == "*." and host.endswith(domain[1:])) for domain in domains)


def _may_connect(host: str, rules: MediaRules) -> bool:
    """Return whether a host is a name, or an address that may be used. Unusual spellings of addresses never are."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return not _NUMBERS.fullmatch(host) and not host.rpartition(".")[2].isdigit()
    return rules.private_addresses or (address.is_global and not address.is_multicast)


def _shown(url: str) -> str:
    return repr(url if len(url) <= _SHOWN_CHARS else f"{url[:_SHOWN_CHARS]}...")


def _refusal(message: str, code: str, *, status: int = 400, param: str = "messages") -> Refusal:
    return Refusal(status=status, message=message, code=code, param=param)
