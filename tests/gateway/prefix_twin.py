"""What ``_prefixes.c`` does, in plain Python: the oracle of its tests."""

from __future__ import annotations

import json
from typing import Any

SECRET = (0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3)
ALL = (1 << 64) - 1
BLOCK_BYTES, FIRST_BYTES, MAX_SHIFT, CUTS_OF_ANY_SIZE = 512, 1024 * 1024, 7, 1024
MEDIA_BYTES, MEDIA_WEIGHT = 1024, 4000


def mix(a: int, b: int) -> int:
    product = a * b
    return product & ALL ^ product >> 64


def word(data: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(data[at : at + size], "little")


def hash_bytes(data: bytes, parent: int) -> int:
    """wyhash, with the parent in the last step."""
    seed, a, b, at, left = parent ^ mix(parent ^ SECRET[0], SECRET[1]), 0, 0, 0, len(data)
    if left > 16:
        if left >= 48:
            second = third = seed
            while left >= 48:
                seed = mix(word(data, at) ^ SECRET[1], word(data, at + 8) ^ seed)
                second = mix(word(data, at + 16) ^ SECRET[2], word(data, at + 24) ^ second)
                third = mix(word(data, at + 32) ^ SECRET[3], word(data, at + 40) ^ third)
                at, left = at + 48, left - 48
            seed ^= second ^ third
        while left > 16:
            seed = mix(word(data, at) ^ SECRET[1], word(data, at + 8) ^ seed)
            at, left = at + 16, left - 16
        a, b = word(data, at + left - 16), word(data, at + left - 8)
    elif left >= 4:
        middle = (left >> 3) << 2
        a = word(data, 0, 4) << 32 | word(data, middle, 4)
        b = word(data, left - 4, 4) << 32 | word(data, left - 4 - middle, 4)
    elif left:
        a = data[0] << 16 | data[left >> 1] << 8 | data[-1]
    name = mix(mix(a ^ SECRET[1], b ^ seed) ^ SECRET[0] ^ len(data), parent ^ SECRET[2])
    return name if name > 1 else name + 2


class Sink:
    def __init__(self, seed: bytes) -> None:
        self.parent = hash_bytes(seed, 0)
        self.block = b""
        self.bytes = self.weight = 0
        self.size = BLOCK_BYTES
        self.names: list[int] = []
        self.ends: list[int] = []

    def put(self, data: bytes) -> None:
        while data:
            part = data[: self.size - len(self.block)]
            data = data[len(part) :]
            self.block += part
            self.bytes += len(part)
            self.weight += len(part)
            if len(self.block) == self.size:
                self.end_block()

    def end_block(self) -> None:
        self.parent = hash_bytes(self.block, self.parent)
        self.names.append(self.parent)
        self.ends.append(self.weight)
        self.block = b""
        self.size = BLOCK_BYTES << next((n for n in range(MAX_SHIFT) if self.bytes < FIRST_BYTES << n), MAX_SHIFT)

    def cut(self) -> None:
        if self.block and (len(self.names) < CUTS_OF_ANY_SIZE or len(self.block) >= self.size // 2):
            self.end_block()

    def put_value(self, value: Any, is_data: bool = False) -> None:
        if isinstance(value, dict):
            self.put(b"{")
            for at, (key, inner) in enumerate(value.items()):
                self.put((b"," if at else b"") + json.dumps(key).encode() + b":")
                self.put_value(inner, key == "data")
            self.put(b"}")
        elif isinstance(value, list):
            self.put(b"[")
            for at, inner in enumerate(value):
                self.put(b"," if at else b"")
                self.put_value(inner)
            self.put(b"]")
        else:
            text = json.dumps(value).encode()
            if isinstance(value, str) and len(text) - 2 >= MEDIA_BYTES and (is_data or value.startswith("data:")):
                self.weight += MEDIA_WEIGHT - 8
                self.put(hash_bytes(text[1:-1], 0).to_bytes(8, "little"))
            else:
                self.put(text)


def names_of(document: dict[str, Any], fields: tuple[bytes, ...], seed: bytes) -> tuple[list[int], list[int]] | None:
    """Return the names and ends for a document that ``json.dumps`` writes."""
    sink = Sink(seed)
    for field in fields:
        value = document.get(field.decode())
        if value is None or value == []:
            continue
        sink.put(field)
        if isinstance(value, list) and isinstance(value[0], dict | str | list):
            if len(value) > 1 and not isinstance(value[0], dict):
                return None
            for element in value:
                sink.put_value(element)
                sink.cut()
        else:
            sink.put_value(value)
            sink.cut()
    if sink.block:
        sink.end_block()
    return sink.names, sink.ends
