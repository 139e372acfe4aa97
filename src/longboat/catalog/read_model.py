"""Where a model's facts are read: a folder, a file, an address, the catalog, or a name on the hub.

The edge of this room: it reads local files, and asks ``fetch`` for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from longboat.catalog.formats.gguf import GgufHeader, MoreBytesError, parse_gguf
from longboat.catalog.formats.hf_config import parse_config
from longboat.catalog.formats.safetensors import LENGTH_BYTES, header_length, read_header, read_index
from longboat.catalog.library import Library
from longboat.catalog.quantized_names import named_model
from longboat.catalog.read_hub import WITHOUT_NETWORK, Fetch, fetched, read_hub_or_catalog
from longboat.catalog.readers.config_and_tensors import shape_from_both
from longboat.catalog.readers.gguf_shape import shape_from_gguf
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.from_tensors import shape_from_tensors
from longboat.catalog.shape.model_shape import ModelShape
from longboat.catalog.shape.tensors import Tensor
from longboat.core.errors import UserInputError

__all__ = ("Fetch", "read_folder", "read_gguf", "read_model")

# (offset, bytes) → the bytes of one file.
ReadAt = Callable[[int, int], bytes]

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# A quantization of a GGUF repository, as llama.cpp and Ollama write it.
HUB_TAG = re.compile(r"[\w.-]+/[\w.-]+:[\w.-]+")
SPLIT_GGUF = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
FIRST_PIECE_BYTES = 1 << 20
MAX_GGUF_HEADER_BYTES = 1 << 28


def read_model(source: str, library: Library, fetch: Fetch | None = None) -> ModelShape:
    """The shape of the model that ``source`` names.

    fetch: reads ranges of files by HTTP; None where there is no network

    Raises UserInputError where there is no such model, TransferError where the network fails.
    """
    path = Path(source)
    if path.exists():
        return _read_path(path)
    if source.startswith(("http://", "https://")):
        return _read_address(source, _needed(fetch, source))
    if "/" not in source or HUB_TAG.fullmatch(source):
        return named_model(source, library)
    if HUB_NAME.fullmatch(source) is None:
        raise UserInputError(f"there is no file or folder {source}", hint=WITHOUT_NETWORK)
    return read_hub_or_catalog(source, library, fetch)


def _read_path(path: Path) -> ModelShape:
    if path.is_dir():
        return read_folder(path)
    if path.suffix == ".gguf":
        return read_gguf(path)
    if path.suffix == ".safetensors":
        return shape_from_tensors(_header_of(path), name=path.stem)
    return shape_from_config(parse_config(path.read_text(errors="replace"), str(path)), name=path.parent.name)


def read_folder(folder: Path) -> ModelShape:
    """A model's folder: exact weights where it holds safetensors or GGUF files, else those that its config tells."""
    config, quantization = folder / "config.json", folder / "hf_quant_config.json"
    ggufs = sorted(folder.glob("*.gguf"))
    if not config.exists() and ggufs:
        return read_gguf(ggufs[0])
    tensors = [tensor for file in _weight_files(folder) for tensor in _header_of(file)]
    if not config.exists():
        if not tensors:
            raise UserInputError(
                f"{folder} holds no config.json, safetensors or GGUF file", hint="is it the folder of a model?"
            )
        return shape_from_tensors(tensors, name=folder.name)
    beside = (
        parse_config(quantization.read_text(errors="replace"), str(quantization)) if quantization.exists() else None
    )
    told = parse_config(config.read_text(errors="replace"), str(config))
    return shape_from_both(told, beside, folder.name, tensors)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    names, _ = read_index(index.read_text(errors="replace"), str(index))
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise UserInputError(
            f"{folder} lacks {len(missing)} of {len(names)} files of weights, {missing[0]} first",
            hint="finish the download, or plan from config.json alone: name the file",
        )
    return [folder / name for name in names]


def _header_of(path: Path) -> tuple[Tensor, ...]:
    with path.open("rb") as file:
        length = header_length(file.read(LENGTH_BYTES), str(path))
        return read_header(file.read(length), str(path))


def read_gguf(path: Path) -> ModelShape:
    """A GGUF file, with the other parts of the same model beside it."""
    headers = [_gguf_header(_reader(part), str(part)) for part in _gguf_parts(path)]
    return shape_from_gguf(headers, name=path.stem, origin=str(path))


def _gguf_parts(path: Path) -> list[Path]:
    found = SPLIT_GGUF.search(path.name)
    if found is None:
        return [path]
    stem, total = path.name[: found.start()], int(found[2])
    parts = [path.with_name(f"{stem}-{number:05d}-of-{total:05d}.gguf") for number in range(1, total + 1)]
    if missing := [part for part in parts if not part.exists()]:
        raise UserInputError(f"{missing[0]} is missing, one of {total} parts", hint="finish the download")
    return parts


def _reader(path: Path) -> ReadAt:
    def read_at(offset: int, length: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)

    return read_at


def _gguf_header(read_at: ReadAt, origin: str) -> GgufHeader:
    """Reads as much as the header needs: a first piece, then twice as much each time."""
    data, wanted = b"", FIRST_PIECE_BYTES
    while True:
        piece = read_at(len(data), wanted - len(data))
        data += piece
        try:
            return parse_gguf(data, origin)
        except MoreBytesError as error:
            if not piece or error.at_least > MAX_GGUF_HEADER_BYTES:
                raise UserInputError(f"{origin} ends within its header", hint="is the download complete?") from None
            wanted = max(2 * len(data), error.at_least)


def _needed(fetch: Fetch | None, source: str) -> Fetch:
    if fetch is None:
        raise UserInputError(f"{source} can only be read over the network", hint=WITHOUT_NETWORK)
    return fetch


def _read_address(address: str, fetch: Fetch) -> ModelShape:
    if not address.split("?")[0].endswith(".gguf"):
        raise UserInputError(f"{address} is no GGUF file", hint="name a .gguf file, or a model as owner/name")

    def part(url: str) -> GgufHeader:
        return _gguf_header(lambda offset, length: fetched(fetch, url, offset, length), url)

    found = SPLIT_GGUF.search(address)
    total = int(found[2]) if found else 1
    urls = [address] if found is None else [_part_address(address, found, n, total) for n in range(1, total + 1)]
    return shape_from_gguf([part(url) for url in urls], name=address.rsplit("/", 1)[-1], origin=address)


def _part_address(address: str, found: re.Match[str], number: int, total: int) -> str:
    return f"{address[: found.start()]}-{number:05d}-of-{total:05d}.gguf"
