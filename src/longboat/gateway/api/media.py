"""Images, sounds and videos in a request: each is checked before an engine sees it. Pure.

An address is checked here by its spelling. What a host's name resolves to is checked by the engine when it connects.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
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
    **{f"{kind}{end}": kind for kind in ("image", "audio", "video") for end in ("", "_data")},
}
"""Field → kind of what it holds; empty: any kind."""
_FREE = frozenset(
    (
        *("tools", "metadata", "response_format", "chat_template_kwargs"),
        *("structured_outputs", "guided_json", "json_schema", "text"),
    )
)
"""Top-level fields whose content is the client's own, and never loaded."""
_MARKS = (b'_url"', b'image"', b'audio"', b'video"', b'source"', b'_data"')
"""Ends of all fields that hold media, in as few pieces as possible: each request is searched for them."""
_TEXT_IMAGE = re.compile(r"(?:!\[\]|\A\s*\[?\])\((?P<address>[^)]*)(?P<closed>\))?")
"""An image in a text, as TGI finds it, or its end where a prompt's template may put several texts together."""
_TEXT_ADDRESS = re.compile(r"\A\s*\((?P<address>[^)]*)(?P<closed>\))?")
_TEXT_MARK = re.compile(r"!\[\]\s*\Z|\A\s*\[?\]\s*\Z")
"""A text that such a template may put before an address."""
_LOADED = ("http:", "https:", "data:", "file:", "//")
"""How addresses begin that an engine may load. TGI takes no others; they are ordinary in Markdown."""
_AS_TEXT = "TGI may load what a text names as ![](ADDRESS); ![a boat](ADDRESS) stays text."
_SHOWN_CHARS = 80
_Item = tuple[str, str, bool]  # its kind, its address or its data, and whether it is data


def holds_media(body: bytes) -> bool:
    """Return whether a body whose names of fields have no escapes may hold media."""
    return any([mark in body for mark in _MARKS])


def media_refusal(document: Any, rules: MediaRules) -> Refusal | None:
    """Return why a request may not be sent to an engine with these rules; None where it may."""
    items = list(_items(document))
    in_texts = list(_text_addresses(document)) if rules.in_texts else []
    if (count := len(items) + len(in_texts)) > rules.max_items:
        return _count_refusal(count, rules)
    for kind, text, is_data in items:
        found = _data_refusal(text, kind, rules) if is_data else _url_refusal(text, kind, rules)
        if found is not None:
            return found
    for address in in_texts:
        if (found := _url_refusal(address, "image", rules)) is not None:
            return replace(found, message=f"{found.message} {_AS_TEXT}")
    return None


def form_refusal(file_bytes: Sequence[int], rules: MediaRules) -> Refusal | None:
    """Return why a form with files of these sizes may not be sent to an engine with these rules; None where it may."""
    if len(file_bytes) > rules.max_items:
        return _count_refusal(len(file_bytes), rules, param="file")
    if (largest := max(file_bytes, default=0)) > rules.max_bytes:
        return _size_refusal(f"The file has {largest} bytes", rules, param="file")
    return None


def _items(document: dict[str, Any]) -> Iterator[_Item]:
    """Yield each item that a field holds."""
    for name, inner in document.items():
        if name not in _FREE:
            yield from _of_field(name, inner)


def _of_field(name: str, value: Any) -> Iterator[_Item]:
    if name in _URL_KINDS:
        yield from ((_URL_KINDS[name], url, False) for url in _urls(value))
    elif name == "source" and type(value) is dict:
        yield from _of_source(value)
    elif name == "input_audio" and type(value) is dict and type(value.get("data")) is str:
        yield "audio", value["data"], True
    elif name == "file_data" and type(value) is str:
        yield "", value, True
    yield from _within(value, is_content=name == "content")


def _within(value: Any, *, is_content: bool) -> Iterator[_Item]:
    """Yield what a field's value holds. is_content: lists are of parts, of which some are calls of tools"""
    for one in value if type(value) is list else (value,):
        if type(one) is list:
            yield from _within(one, is_content=False)
        elif type(one) is dict:
            is_call = is_content and one is not value and one.get("type") == "tool_use"
            for name, inner in one.items():
                if not (is_call and name == "input"):  # what a tool gets is the client's own too
                    yield from _of_field(name, inner)


def _urls(value: Any) -> Iterator[str]:
    for one in value if type(value) is list else (value,):
        url = one.get("url") if type(one) is dict else one
        if type(url) is str:
            yield url
        elif type(one) is list:
            yield from _urls(one)


def _of_source(source: dict[str, Any]) -> Iterator[_Item]:
    """Yield what a ``source`` of Anthropic's API holds: engines differ in which of both they take for which type."""
    for name in ("url", "data"):
        if type(source.get(name)) is str:
            yield "", source[name], name == "data"


def _text_addresses(document: dict[str, Any]) -> Iterator[str]:
    """Yield the address of each image that an engine finds in the texts of a request."""
    texts = list(_texts(document))
    patterns = (_TEXT_IMAGE, _TEXT_ADDRESS) if any([_TEXT_MARK.search(text) for text in texts]) else (_TEXT_IMAGE,)
    for text in texts:
        for pattern in patterns:
            for found in pattern.finditer(text):
                if _is_loaded(found):
                    yield _address_at(found)


def _texts(value: Any, *, is_part: bool = False) -> Iterator[str]:
    """Yield each text. Names of fields are texts too: prompts show tools as JSON.

    is_part: its text was read with that of the other parts, because engines join them
    """
    if type(value) is str:
        yield value
    elif type(value) is list:
        parts = [one["text"] for one in value if type(one) is dict and type(one.get("text")) is str]
        yield "".join(parts)
        for one in value:
            yield from _texts(one, is_part=True)
    elif type(value) is dict:
        for name, inner in value.items():
            yield name
            if not (is_part and name == "text" and type(inner) is str):
                yield from _texts(inner)


def _is_loaded(found: re.Match[str]) -> bool:
    """Return whether an engine may load an image. An address may go on in another text, or hold another image."""
    start = found["address"].lstrip()[:8].lower()
    if start.startswith(_LOADED) or "![](" in found["address"]:
        return True
    return not found["closed"] and any([one.startswith(start) for one in _LOADED])


def _address_at(found: re.Match[str]) -> str:
    """Return an image's address. It gets an end that none may have where it holds another, or ends in another text."""
    address = found["address"]
    return address if found["closed"] and "![](" not in address else f"{found[0]}…"


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
