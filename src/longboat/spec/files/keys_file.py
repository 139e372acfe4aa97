"""The file of key hashes: what ``longboat keys`` writes, and what fleets and gateways of their own read."""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longboat.core.errors import UserInputError
from longboat.core.policy import KeyRecord
from longboat.disk_sync import write_whole

__all__ = ("KeyBook", "key_book_from", "key_book_values", "load_keys", "new_salt", "save_keys")


DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_TIME_S = 253_402_300_799  # the end of the year 9999, the last that tools can show


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBook:
    """Keys as they are stored, and the secret from which tenants' cache salts are made."""

    salt: str = field(default="", repr=False)
    keys: tuple[KeyRecord, ...] = ()


def new_salt() -> str:
    """Make a fresh secret for cache salts."""
    return secrets.token_hex(16)


def load_keys(path: Path) -> KeyBook | None:
    """Read the file; None where there is no such file. Raises UserInputError when it cannot be read."""
    try:
        return key_book_from(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        is_other = isinstance(error, KeyError | TypeError | AttributeError)
        why = "longboat keys did not write it" if is_other else error
        raise UserInputError(
            f"the key file {path} cannot be read: {why}", hint="restore it, or move it away and make new keys"
        ) from None


def save_keys(path: Path, book: KeyBook) -> None:
    """Write the file, mode 0600, by rename: a reader finds the whole file or the old one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, json.dumps(key_book_values(book), indent=1) + "\n", mode=0o600, synced=True)


def key_book_values(book: KeyBook) -> dict[str, Any]:
    """Plain values, for JSON."""
    return {"salt": book.salt, "keys": [dataclasses.asdict(key) for key in book.keys]}


def key_book_from(values: Mapping[str, Any]) -> KeyBook:
    """Return the book of what ``key_book_values`` gave. Raises KeyError, TypeError, ValueError for anything else."""
    salt, keys = values["salt"], tuple(KeyRecord(**key) for key in values["keys"])
    for what in _mistakes(salt, keys):
        raise ValueError(what)
    return KeyBook(salt=salt, keys=keys)


def _mistakes(salt: object, keys: Sequence[KeyRecord]) -> Iterator[str]:
    if not isinstance(salt, str):
        yield f"salt: {salt!r} is not text"
    for index, key in enumerate(keys):
        for name in ("key_id", "tenant", "sha256", "note"):
            if not isinstance(value := getattr(key, name), str):
                yield f"keys[{index}].{name}: {value!r} is not text"
        for name in ("created_s", "expires_s"):
            value = getattr(key, name)
            if not (_is_time(value) or (value is None and name == "expires_s")):
                yield f"keys[{index}].{name}: {value!r} is not a time in Unix seconds"
        if not DIGEST.fullmatch(key.sha256):
            yield f"keys[{index}].sha256: this is not the SHA-256 of a key, 64 digits of 0-9 and a-f"


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TIME_S
