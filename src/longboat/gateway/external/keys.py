"""The API keys of external models, read where they are used: in the gateway's own process."""

from __future__ import annotations

import os
from pathlib import Path

from longboat.core.external import ExternalModel

__all__ = ("KeyProblemError", "key_stamp", "read_key")

_MAX_KEY_BYTES = 4096


class KeyProblemError(Exception):
    """Why a key cannot be used; never with the key."""


def read_key(model: ExternalModel) -> str:
    """Return the model's key; empty where it has none. Raise KeyProblemError where it is not there."""
    if model.api_key_file is not None:
        place, key = model.api_key_file, _file(model.api_key_file)
    elif model.api_key_env is not None:
        place, key = f"the environment variable {model.api_key_env}", os.environ.get(model.api_key_env, "")
    else:
        return ""
    key = key.strip()
    if not key:
        raise KeyProblemError(f"{place} is empty or not set on this node")
    if not key.isascii() or not key.isprintable():
        raise KeyProblemError(f"{place} has characters that an HTTP header cannot carry")
    return key


def key_stamp(model: ExternalModel) -> tuple[int, ...]:
    """Return what changes when the key's file does."""
    if model.api_key_file is None:
        return ()
    try:
        stat = Path(model.api_key_file).stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _file(path: str) -> str:
    try:
        with Path(path).open("rb") as handle:
            return handle.read(_MAX_KEY_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise KeyProblemError(f"{path} cannot be read: {reason}") from None
