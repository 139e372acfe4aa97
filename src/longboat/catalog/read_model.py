"""Where a model's facts are read: a folder, a file, an address, the catalog, or a name on the hub.

The edge of this room: it reads local files, and asks ``fetch`` for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from longboat.catalog.from_tensors import shape_from_tensors, with_exact_weights
from longboat.catalog.gguf import GgufHeader, MoreBytesError, parse_gguf
from longboat.catalog.gguf_shape import shape_from_gguf
from longboat.catalog.hf_shape import parse_config, shape_from_config
from longboat.catalog.library import Library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.model_shape import ModelShape
from longboat.catalog.safetensors import LENGTH_BYTES, header_length, read_header, read_index
from longboat.catalog.tensors import Tensor
from longboat.core.errors import TransferError, UserInputError

__all__ = ("Fetch", "read_folder", "read_gguf", "read_model")

# (address, first byte, bytes) → the bytes, fewer where the file ends. Raises TransferError; LookupError: no such file.
Fetch = Callable[[str, int, int], bytes]
# (offset, bytes) → the bytes of one file.
ReadAt = Callable[[int, int], bytes]

HUB = "https://huggingface.co"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
SPLIT_GGUF = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
FIRST_PIECE_BYTES = 1 << 20
MAX_GGUF_HEADER_BYTES = 1 << 28
MAX_TEXT_BYTES = 1 << 27
WITHOUT_NETWORK = "give a folder, a GGUF file or a config.json, or the name of a model of the catalog"


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
    if source in library.models or "/" not in source:
        return shape_of_entry(library.models.find(source))
    if HUB_NAME.fullmatch(source) is None:
        raise UserInputError(f"there is no file or folder {source}", hint=WITHOUT_NETWORK)
    return _read_hub_or_catalog(source, library, fetch)


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
    return _with_or_without(told, beside, folder.name, tensors)


def _with_or_without(
    config: dict[str, object], quantization: dict[str, object] | None, name: str, tensors: Iterable[Tensor]
) -> ModelShape:
    """From config and tensors together, or from either alone."""
    tensors = list(tensors)
    try:
        shape = shape_from_config(config, name=name, quantization=quantization)
    except UserInputError as error:
        if not tensors:
            raise
        guessed = shape_from_tensors(tensors, name=name)
        return replace(guessed, estimate=(*guessed.estimate, error.message))
    return with_exact_weights(shape, tensors) if tensors else shape


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
        return _gguf_header(lambda offset, length: _fetched(fetch, url, offset, length), url)

    found = SPLIT_GGUF.search(address)
    total = int(found[2]) if found else 1
    urls = [address] if found is None else [_part_address(address, found, n, total) for n in range(1, total + 1)]
    return shape_from_gguf([part(url) for url in urls], name=address.rsplit("/", 1)[-1], origin=address)


def _part_address(address: str, found: re.Match[str], number: int, total: int) -> str:
    return f"{address[: found.start()]}-{number:05d}-of-{total:05d}.gguf"


def _fetched(fetch: Fetch, url: str, offset: int, length: int) -> bytes:
    try:
        return fetch(url, offset, length)
    except LookupError:
        raise UserInputError(f"there is no {url}", hint="check the address in a browser") from None


def _read_hub_or_catalog(source: str, library: Library, fetch: Fetch | None) -> ModelShape:
    """From the hub; without a network from the catalog, where an entry has exactly this hub name."""
    entry = next((entry for entry in library.models.values() if entry.hub.lower() == source.lower()), None)
    if fetch is None and entry is None:
        raise UserInputError(
            f"{source} is not in the catalog, and there is no network to ask {HUB}", hint=WITHOUT_NETWORK
        )
    try:
        return _read_hub(source, _needed(fetch, source))
    except (UserInputError, TransferError):
        if entry is None:
            raise
        return shape_of_entry(entry)


def _read_hub(name: str, fetch: Fetch) -> ModelShape:
    base = f"{HUB}/{name}/resolve/main"
    config = parse_config(_text(fetch, f"{base}/config.json"), f"config.json of {name}")
    try:
        quantization = parse_config(_text(fetch, f"{base}/hf_quant_config.json"), f"hf_quant_config.json of {name}")
    except UserInputError:
        quantization = None
    return _with_or_without(config, quantization, name, _hub_tensors(base, fetch))


def _hub_tensors(base: str, fetch: Fetch) -> list[Tensor]:
    """Headers of all files of weights, 8 bytes and a JSON text each; none where the hub has no safetensors."""
    try:
        names, _ = read_index(_text(fetch, f"{base}/model.safetensors.index.json"), base)
    except UserInputError:
        names = ("model.safetensors",)
    try:
        return [tensor for name in names for tensor in _remote_header(f"{base}/{name}", fetch)]
    except UserInputError:
        return []


def _remote_header(url: str, fetch: Fetch) -> tuple[Tensor, ...]:
    length = header_length(_fetched(fetch, url, 0, LENGTH_BYTES), url)
    return read_header(_fetched(fetch, url, LENGTH_BYTES, length), url)


def _text(fetch: Fetch, url: str) -> str:
    return _fetched(fetch, url, 0, MAX_TEXT_BYTES).decode("utf-8", "replace")
