"""The revision of a replica: a digest of everything that changes its responses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from longboat.cluster.protocol.model import ServedModel
from longboat.core.tasks import GENERATE
from longboat.engines.extra_arguments import is_number
from longboat.engines.registry import adapter_for

__all__ = ("revision_of",)

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz", ".h5", ".onnx", ".msgpack")
_NO_MATTER = (".md", ".txt.lock", ".gitattributes", ".gitignore", ".png", ".jpg", ".pdf")
_WHOLE_BYTES = 64 * 1024 * 1024
_SAMPLES = 16
_SAMPLE_BYTES = 65536


def revision_of(model: ServedModel, model_path: str, engine: str) -> str:
    """Return 16 hexadecimal digits, equal for replicas that respond alike, on whichever node.

    model_path: folder or GGUF file on this node, or a hub's id; engine: name and version
    Weights are known by size and by samples of their bytes, everything else by its content. The split is left out: it
    changes responses only by rounding. Reads a few MB; call it in a thread.
    """
    digest = hashlib.sha256()
    for part in (
        engine,
        str(model.context),
        *((model.task,) if model.task != GENERATE else ()),
        *([f"adapters up to rank {model.adapters.rank}"] if model.adapters is not None else []),
        *_flags(model.engine.args, adapter_for(model.engine.kind).harmless_flags()),
        *(f"env {name}={value}" for name, value in sorted(model.engine.env.items())),
    ):
        digest.update(part.encode() + b"\0")
    folder = Path(model_path)
    if folder.is_dir():
        for path in _files(folder):
            _add_file(digest, str(path.relative_to(folder)), path)
    elif folder.is_file():
        from longboat.catalog.read_model import gguf_parts  # takes a tenth of a second, which most starts can save

        for path in gguf_parts(folder):
            _add_file(digest, path.name, path)
    else:
        digest.update(model_path.encode())
    return digest.hexdigest()[:16]


def _flags(args: Sequence[str], harmless_flags: frozenset[str]) -> Iterator[str]:
    """Return the arguments that change results; a file among them counts by its content."""
    harmless = False
    for word in args:
        if word.startswith("-") and not is_number(word):  # a short flag too: it ends the values of the one before
            harmless = word.partition("=")[0].replace("_", "-") in harmless_flags
        if not harmless:
            value = word.partition("=")[2] if word.startswith("--") else word
            yield f"{word} {_file_digest(value)}"


def _file_digest(value: str) -> str:
    path = Path(value)
    if not path.is_absolute() or not path.is_file():
        return ""
    digest = hashlib.sha256()
    _add_file(digest, path.name, path)
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    names = (path for path in folder.rglob("*") if not any(p.startswith(".") for p in path.relative_to(folder).parts))
    return sorted(path for path in names if path.is_file() and not path.name.lower().endswith(_NO_MATTER))


def _add_file(digest: Any, name: str, path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"{name}\0{size}\0".encode())
    with path.open("rb") as file:
        if size <= _WHOLE_BYTES and path.suffix not in _WEIGHTS:
            digest.update(file.read())
            return
        for sample in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
