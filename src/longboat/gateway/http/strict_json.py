"""Decodes a request body as JSON that every parser reads alike: UTF-8, no duplicate keys, bounded depth and size."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

__all__ = ("MAX_DEPTH", "BodyError", "decode_object")

MAX_DEPTH = 128
"""Limit of objects and arrays inside one another; engines' parsers give up at about a thousand."""

_LARGE_BYTES = 4 * 1024 * 1024
_MAX_MARKS = 2_000_000
"""Commas, colons and opening brackets in a large body. Each may become an object of some 100 bytes in memory."""

_LONG_LIST = 1000
_MEMBER = re.compile(rb'"[ \t\r\n]*:')  # the leading literal lets `re` jump from quote to quote


class BodyError(Exception):
    """A body that gets 400."""

    def __init__(self, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code  # a short word that programs can compare
        self.param = param  # the field at fault


def decode_object(body: bytes) -> dict[str, Any]:
    """Decode one JSON object.

    Raises BodyError: not one JSON object in UTF-8, too deep, too many members, a duplicate key at any depth.
    """
    if len(body) > _LARGE_BYTES:
        _refuse_too_many_marks(body)
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        detail = str(error)[:200]
        message = f"The request body is not valid JSON: {detail}. Send one JSON object in UTF-8."
        raise BodyError(message, "invalid_json") from None
    if type(document) is not dict:
        message = f"The request body is JSON of type {type(document).__name__}. Send one JSON object."
        raise BodyError(message, "invalid_json")
    # Every member of the text has a quote before its colon, so there are at most as many members as such places. The
    # decoded objects hold as many keys as that only if none came twice.
    num_keys = _num_keys(document, body)
    num_places = len(_MEMBER.findall(body))
    if num_places != num_keys and num_places - _num_escaped(body) != num_keys:
        _refuse_duplicates(body)
    return document


def _num_keys(document: dict[str, Any], body: bytes) -> int:
    """Count the keys of all objects together. Raises BodyError where they are nested too deep."""
    num_keys = len(document)
    num_found, num_brackets = 1, 0
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for container in level:
            values = container.values() if type(container) is dict else container
            if len(container) >= _LONG_LIST:
                num_brackets = num_brackets or body.count(b"{") + body.count(b"[")
                if num_found == num_brackets:
                    continue  # only numbers and strings are left, here and in the other containers
            for value in values:
                kind = type(value)
                if kind is str:
                    continue
                if kind is dict:
                    num_keys += len(value)
                elif kind is not list:
                    continue
                num_found += 1
                below.append(value)
        if not below:
            return num_keys
        level = below
    message = f"The request body nests objects and arrays more than {MAX_DEPTH} deep. Send a flatter one."
    raise BodyError(message, "json_too_deep")


def _num_escaped(body: bytes) -> int:
    """Count the quotes before a colon that are surely inside a string: those after exactly one backslash."""
    return body.count(b'\\":') - body.count(b'\\\\":')


def _refuse_duplicates(body: bytes) -> None:
    _DUPLICATE_FINDER.decode(body.decode())


def _unique(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            message = f"The key {key[:100]!r} appears twice in one object of the request body. Send it once."
            raise BodyError(message, "duplicate_key", key[:100])
        seen.add(key)


# float also reads integers of thousands of digits, which int refuses
_DUPLICATE_FINDER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=float)


def _refuse_too_many_marks(body: bytes) -> None:
    num_marks = sum(body.count(mark) for mark in (b",", b":", b"{", b"["))
    if num_marks > _MAX_MARKS:
        message = (
            f"The request body may hold more than {_MAX_MARKS:,} values. Split the request into several smaller ones."
        )
        raise BodyError(message, "body_too_complex")
