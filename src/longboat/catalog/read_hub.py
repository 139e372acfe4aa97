"""Reads a model by its name on the hub: config and headers of weights by ranged reads, else the catalog's entry.

What could not be read is not hidden: ``estimate`` of the result says it, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from longboat.catalog.entries import ModelEntry
from longboat.catalog.formats.hf_config import parse_config
from longboat.catalog.formats.safetensors import LENGTH_BYTES, header_length, read_header, read_index
from longboat.catalog.library import Library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantized_names import named_model
from longboat.catalog.readers.config_and_tensors import shape_from_both
from longboat.catalog.shape.model_shape import ModelShape
from longboat.catalog.shape.tensors import Tensor
from longboat.core.errors import TransferError, UserInputError

__all__ = ("HUB", "MAX_TEXT_BYTES", "WITHOUT_NETWORK", "Fetch", "fetched", "read_hub_or_catalog")

# (address, first byte, bytes) → the bytes, fewer where the file ends. Raises TransferError; LookupError: no such file.
Fetch = Callable[[str, int, int], bytes]

HUB = "https://huggingface.co"
MAX_TEXT_BYTES = 1 << 27
WITHOUT_NETWORK = "give a folder, a GGUF file or a config.json, or the name of a model of the catalog"


class AbsentError(UserInputError):
    """The error that there is no such file at that address."""


def fetched(fetch: Fetch, url: str, offset: int, length: int) -> bytes:
    """Return bytes of a file. Raises UserInputError where there is no file, TransferError where the network fails."""
    try:
        return fetch(url, offset, length)
    except LookupError:
        raise AbsentError(f"there is no {url}", hint="check the address in a browser") from None


def read_hub_or_catalog(name: str, library: Library, fetch: Fetch | None) -> ModelShape:
    """Read the shape from the hub or, where the hub cannot be reached or read, from the catalog.

    Raises UserInputError or TransferError where neither helps.
    """
    published = library.published_as(name)
    if fetch is None:
        known = _of_catalog(name, published, library, "there is no network to reach the hub")
        if known is None:
            raise UserInputError(
                f"{name} is not in the catalog, and there is no network to reach {HUB}", hint=WITHOUT_NETWORK
            )
        return known
    try:
        return _read_hub(name, fetch)
    except AbsentError as error:
        if published is None:
            raise
        return _marked(shape_of_entry(published), error.message)
    except (UserInputError, TransferError) as error:
        known = _of_catalog(name, published, library, error.message)
        if known is None:
            raise
        return known


def _of_catalog(name: str, published: ModelEntry | None, library: Library, reason: str) -> ModelShape | None:
    """Return the catalog's model of that name, marked; None where there is none."""
    try:
        return _marked(shape_of_entry(published) if published else named_model(name, library), reason)
    except UserInputError:
        return None


def _marked(shape: ModelShape, reason: str) -> ModelShape:
    return replace(shape, estimate=(*shape.estimate, f"config and weights are the catalog's {shape.name}: {reason}"))


def _read_hub(name: str, fetch: Fetch) -> ModelShape:
    base = f"{HUB}/{name}/resolve/main"
    config = parse_config(_text(fetch, f"{base}/config.json"), f"config.json of {name}")
    beside, doubts = _quantization(base, name, fetch)
    tensors, unread = _tensors(base, fetch)
    shape = shape_from_both(config, beside, name, tensors)
    return replace(shape, estimate=(*shape.estimate, *doubts, *unread))


def _quantization(base: str, name: str, fetch: Fetch) -> tuple[dict[str, object] | None, tuple[str, ...]]:
    """Return the parsed hf_quant_config.json, and why it could not be read; most models have none."""
    try:
        return parse_config(_text(fetch, f"{base}/hf_quant_config.json"), f"hf_quant_config.json of {name}"), ()
    except AbsentError:
        return None, ()
    except (UserInputError, TransferError) as error:
        return None, (f"weights: the quantization's own file was not read: {error.message}",)


def _tensors(base: str, fetch: Fetch) -> tuple[list[Tensor], tuple[str, ...]]:
    """Return the headers of all files of weights, 8 bytes and a JSON text each; else none, and why."""
    try:
        names = _files_of_weights(base, fetch)
        return [tensor for name in names for tensor in _remote_header(f"{base}/{name}", fetch)], ()
    except (UserInputError, TransferError) as error:
        return [], (f"weights: counted from config.json, no headers were read: {error.message}",)


def _files_of_weights(base: str, fetch: Fetch) -> tuple[str, ...]:
    index = f"{base}/model.safetensors.index.json"
    try:
        return read_index(_text(fetch, index), index)
    except AbsentError:
        return ("model.safetensors",)


def _remote_header(url: str, fetch: Fetch) -> tuple[Tensor, ...]:
    length = header_length(fetched(fetch, url, 0, LENGTH_BYTES), url)
    return read_header(fetched(fetch, url, LENGTH_BYTES, length), url)


def _text(fetch: Fetch, url: str) -> str:
    return fetched(fetch, url, 0, MAX_TEXT_BYTES).decode("utf-8", "replace")
