"""Writes the folder of a random model once: under a lock, beside its final name, then renamed."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longboat.builtin.safetensors_file import DEVIATION, Tensor, data_bytes, write_random_weights
from longboat.builtin.shapes import Shape
from longboat.core.errors import ClusterError
from longboat.disk_sync import sync
from longboat.file_lock import FileLock

__all__ = ("ensure_folder", "ensure_random")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
LOCK_TIMEOUT_S = 900.0
"""Longer than the largest model takes to write on a slow disk."""
_SPARE_BYTES = 64 << 20


def ensure_random(
    folder: Path, name: str, shape: Shape, config: Mapping[str, Any], seed: int, *, tokenizer_from: Path
) -> Path:
    """Return ``folder/name`` with a complete model in it; an existing folder is left as it is."""
    tensors = list(shape.tensors(config["vocab_size"]))
    return ensure_folder(
        folder / name, tensors, config, seed, {}, tokenizer_from=tokenizer_from, deviation=shape.deviation
    )


def ensure_folder(
    target: Path,
    tensors: Sequence[Tensor],
    config: Mapping[str, Any],
    seed: int,
    files: Mapping[str, str],
    *,
    tokenizer_from: Path,
    deviation: float = DEVIATION,
) -> Path:
    """Return ``target``, written where it is missing; an existing folder is left as it is.

    files: further files, by name; they win over those of the tokenizer. deviation: of the random weights
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / f".{target.name}.lock", LOCK_TIMEOUT_S):
        if not target.is_dir():
            _check_room(target.parent, data_bytes(tensors))
            with _begun(target) as unfinished:
                write_random_weights(unfinished / "model.safetensors", tensors, seed, deviation=deviation)
                (unfinished / "config.json").write_text(json.dumps(dict(config), indent=2) + "\n", encoding="utf-8")
                for file in TOKENIZER_FILES:
                    shutil.copyfile(tokenizer_from / file, unfinished / file)
                for file, text in files.items():
                    (unfinished / file).write_text(text, encoding="utf-8")
    return target


@contextlib.contextmanager
def _begun(target: Path) -> Iterator[Path]:
    """Make a folder that gets the name of ``target`` once all of it is on the disk."""
    unfinished = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # a writer that died left it; this process holds the lock
    unfinished.mkdir()
    try:
        yield unfinished
        for written in (*unfinished.iterdir(), unfinished):
            sync(written)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _check_room(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + _SPARE_BYTES:
        raise ClusterError(
            f"a random model of {needed_bytes / 1e9:.1f} GB does not fit: {folder} has {free_bytes / 1e9:.1f} GB free",
            hint="Choose a smaller size, free some disk, or set LONGBOAT_HOME to a folder on a larger disk.",
        )


def _locked(path: Path, timeout_s: float) -> FileLock:
    if (lock := FileLock.awaited(path, timeout_s)) is None:
        raise ClusterError(
            f"another process has held {path} for more than {timeout_s:.0f} s",
            hint="Find the process that hangs while it writes the model, and end it.",
        )
    return lock
