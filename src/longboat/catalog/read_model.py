"""Reads a model's shape from a folder, a file, an address, the catalog, or a name on the hub.

The edge of this room: it reads local files, and calls ``fetch`` for the rest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from longboat.catalog.formats.gguf import GgufHeader, MoreBytesError, parse_gguf
from longboat.catalog.formats.hf_config import parse_config
from longboat.catalog.formats.safetensors import LENGTH_BYTES, header_length, read_header, read_index
from longboat.catalog.library import Library
from longboat.catalog.quantized_names import named_model, quantized_name
from longboat.catalog.read_hub import HUB, MAX_TEXT_BYTES, WITHOUT_NETWORK, Fetch, fetched, read_hub_or_catalog
from longboat.catalog.readers.config_and_tensors import shape_from_both
from longboat.catalog.readers.gguf_shape import shape_from_gguf
from longboat.catalog.shape.from_tensors import shape_from_tensors
from longboat.catalog.shape.model_shape import ModelShape
from longboat.catalog.shape.tensors import Tensor
from longboat.core.errors import TransferError, UserInputError

__all__ = ("Fetch", "gguf_parts", "read_folder", "read_gguf", "read_model")

# (offset, bytes) → the bytes of one file.
ReadAt = Callable[[int, int], bytes]

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# A model with a quantization tag, as llama.cpp and Ollama write it.
HUB_TAG = re.compile(r"[\w.-]+/[\w.-]+:[\w.-]+")
SPLIT_GGUF = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
# One GGUF file of a repository, as a fleet file names it.
HUB_FILE = re.compile(r"([\w.-]+/[\w.-]+):((?:[\w.-]+/)*[\w.-]+\.gguf)")
FILE_ENDINGS = (".gguf", ".safetensors", ".json")
FIRST_PIECE_BYTES = 1 << 20
MAX_GGUF_HEADER_BYTES = 1 << 28


def read_model(source: str, library: Library, fetch: Fetch | None = None) -> ModelShape:
    """Return the shape of the model that ``source`` names.

    fetch: reads ranges of files by HTTP; None where there is no network
    Raises UserInputError where there is no such model, TransferError where the network fails.
    """
    if not source.strip():
        raise UserInputError("no model is named", hint=f"{WITHOUT_NETWORK}; longboat plan list models shows them")
    if os.path.exists(source):  # unlike pathlib, it takes a name that is too long for one that is not there
        return _read_path(Path(source))
    if source.startswith(("http://", "https://")):
        return _read_address(source, _needed(fetch, source))
    if found := HUB_FILE.fullmatch(source):
        return _read_hub_file(found[1], found[2], library, fetch)
    if "/" not in source or HUB_TAG.fullmatch(source):
        return _named(source, library)
    if HUB_NAME.fullmatch(source) is None:
        raise UserInputError(f"there is no file or folder {source}", hint=WITHOUT_NETWORK)
    if source.lower().endswith("-gguf"):
        hint = f"name one of its formats or files: {source}:Q4_K_M, or {source}:FILE.gguf"
        raise UserInputError(f"{source} holds GGUF files in several formats", hint=hint)
    return read_hub_or_catalog(source, library, fetch)


def _read_hub_file(repository: str, file: str, library: Library, fetch: Fetch | None) -> ModelShape:
    """Read a file's header; where the hub cannot be reached, the file's name has to do."""
    if fetch is not None:
        try:
            return _read_address(f"{HUB}/{repository}/resolve/main/{file}", fetch)
        except TransferError:
            if quantized_name(file) is None:
                raise
    return _named(file.rpartition("/")[2], library)


def _named(source: str, library: Library) -> ModelShape:
    try:
        return named_model(source, library)
    except UserInputError:
        if not source.endswith(FILE_ENDINGS):
            raise
        raise UserInputError(f"there is no file {source}, and no model of that name", hint=WITHOUT_NETWORK) from None


def _read_path(path: Path) -> ModelShape:
    if path.is_dir():
        return read_folder(path)
    if path.suffix.lower() == ".gguf":
        return read_gguf(path)
    if path.suffix == ".safetensors":
        return shape_from_tensors(_header_of(path), name=path.stem)
    return shape_from_both(parse_config(_text_of(path), str(path)), None, path.parent.name, ())


def _text_of(path: Path) -> str:
    """Return a file's text. Raises UserInputError for a file that is too large for text, such as weights."""
    if (size := path.stat().st_size) > MAX_TEXT_BYTES:
        raise UserInputError(
            f"{path} has {size} bytes, the limit of a JSON file is {MAX_TEXT_BYTES}",
            hint="name a .gguf or .safetensors file, a config.json, or the model's folder",
        )
    return path.read_text(errors="replace")


def read_folder(folder: Path) -> ModelShape:
    """Read a model's folder: exact weights where it has safetensors or GGUF files, else those of its config."""
    config, quantization = folder / "config.json", folder / "hf_quant_config.json"
    ggufs = sorted(folder.glob("*.gguf"))
    if not config.exists() and ggufs:
        return read_gguf(ggufs[0])
    tensors = [tensor for file in _weight_files(folder) for tensor in _header_of(file)]
    if not config.exists():
        if not tensors:
            raise UserInputError(
                f"{folder} has no config.json, safetensors or GGUF file", hint="name the folder that holds config.json"
            )
        return shape_from_tensors(tensors, name=folder.name)
    beside = parse_config(_text_of(quantization), str(quantization)) if quantization.exists() else None
    told = parse_config(_text_of(config), str(config))
    return shape_from_both(told, beside, folder.name, tensors)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    names = read_index(_text_of(index), str(index))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise UserInputError(
            f"{folder} lacks {len(missing)} of {len(names)} files of weights, such as {missing[0]}",
            hint="finish the download, or plan from config.json alone: give the path of that file",
        )
    return [folder / name for name in names]


def _header_of(path: Path) -> tuple[Tensor, ...]:
    with path.open("rb") as file:
        length = header_length(file.read(LENGTH_BYTES), str(path))
        return read_header(file.read(length), str(path))


def read_gguf(path: Path) -> ModelShape:
    """Read a GGUF file, with the other parts of the same model beside it."""
    headers = [_gguf_header(_reader(part), str(part)) for part in gguf_parts(path)]
    return shape_from_gguf(headers, name=path.stem, origin=str(path))


def gguf_parts(path: Path) -> list[Path]:
    parts = [path.with_name(name) for name in _part_names(path.name)]
    if missing := [part for part in parts if not part.exists()]:
        what = f"{missing[0]} is missing, one of {len(parts)} parts"
        raise UserInputError(what, hint="download it beside the others")
    return parts


def _part_names(name: str) -> list[str]:
    """Return the names of all parts of a GGUF model, from the name of one."""
    found = SPLIT_GGUF.search(name)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        return [name]
    stem, total = name[: found.start()], int(found[2])
    return [f"{stem}-{number:05d}-of-{total:05d}.gguf" for number in range(1, total + 1)]


def _reader(path: Path) -> ReadAt:
    def read_at(offset: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    return read_at


def _gguf_header(read_at: ReadAt, origin: str) -> GgufHeader:
    """Read as much as the header needs: a first piece, then twice as much each time."""
    data, wanted = b"", FIRST_PIECE_BYTES
    while True:
        piece = read_at(len(data), wanted - len(data))
        data += piece
        try:
            return parse_gguf(data, origin)
        except MoreBytesError as error:
            if not piece or error.at_least > MAX_GGUF_HEADER_BYTES:
                raise UserInputError(f"{origin} ends within its header", hint="download it again") from None
            wanted = max(2 * len(data), error.at_least)


def _needed(fetch: Fetch | None, source: str) -> Fetch:
    if fetch is None:
        raise UserInputError(f"{source} can only be read over the network", hint=WITHOUT_NETWORK)
    return fetch


def _read_address(address: str, fetch: Fetch) -> ModelShape:
    if not address.split("?")[0].endswith(".gguf"):
        raise UserInputError(f"{address} is not a GGUF file", hint="give a .gguf file, or a model as owner/name")

    def header(url: str) -> GgufHeader:
        return _gguf_header(lambda offset, length: fetched(fetch, url, offset, length), url)

    place, mark, query = address.partition("?")
    headers = [header(f"{part}{mark}{query}") for part in _part_names(place)]
    return shape_from_gguf(headers, name=place.rsplit("/", 1)[-1], origin=address)
