"""Reads a LoRA adapter's folder: header and config for its facts, every byte for its revision."""

from __future__ import annotations

import hashlib
from pathlib import Path

from longboat.catalog.formats.safetensors import LENGTH_BYTES, header_length, read_header
from longboat.catalog.readers.adapter import ADAPTER_FILES, CONFIG, COPY_AGAIN, WEIGHTS, AdapterFacts, read_adapter
from longboat.core.errors import UserInputError

__all__ = ("adapter_revision", "read_adapter_folder")

MAX_CONFIG_BYTES = 1 << 20
PIECE_BYTES = 1 << 20
REVISION_DIGITS = 16


def read_adapter_folder(folder: Path) -> AdapterFacts:
    """Return the facts of the adapter in ``folder``. Raises UserInputError where there is none that can be used."""
    try:
        _check_files(folder)
        if (folder / CONFIG).stat().st_size > MAX_CONFIG_BYTES:
            what = f"{folder}/{CONFIG} is larger than {MAX_CONFIG_BYTES} bytes"
            raise UserInputError(what, hint="name a folder that PEFT saved")
        text = (folder / CONFIG).read_text(encoding="utf-8")
        with (folder / WEIGHTS).open("rb") as file:
            origin = f"{folder}/{WEIGHTS}"
            length = header_length(file.read(LENGTH_BYTES), origin)
            tensors = read_header(file.read(length), origin)
            stored = (folder / WEIGHTS).stat().st_size - LENGTH_BYTES - length
        if stored < (told := sum(tensor.num_bytes for tensor in tensors)):
            raise UserInputError(f"{origin} holds {stored} bytes of {told}", hint=COPY_AGAIN)
        return read_adapter(text, tensors, str(folder), adapter_revision(folder))
    except UnicodeDecodeError as error:
        raise UserInputError(f"{folder}/{CONFIG} is not UTF-8 text: {error}", hint=COPY_AGAIN) from None
    except OSError as error:
        raise UserInputError(f"{error.filename or folder} cannot be read: {error.strerror}") from None


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise UserInputError(f"there is no folder {folder}", hint="copy the adapter's folder to every node")
    if missing := [name for name in ADAPTER_FILES if not (folder / name).is_file()]:
        what = f"{folder} has no {' and no '.join(missing)}"
        raise UserInputError(what, hint=f"an adapter's folder holds {CONFIG} and {WEIGHTS}, as PEFT saves them")


def adapter_revision(folder: Path) -> str:
    """Return 16 hexadecimal digits that change with any byte of the adapter's files. Raises OSError."""
    digest = hashlib.sha256()
    for name in ADAPTER_FILES:
        digest.update(f"{name}\0{(folder / name).stat().st_size}\0".encode())
        with (folder / name).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
    return digest.hexdigest()[:REVISION_DIGITS]
