"""Built-in models as GGUF files: what the catalog's reader and a plain reading of the numbers find in them."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from longboat.builtin import describe, ensure, ensure_as_gguf
from longboat.catalog.read_model import read_gguf
from longboat.catalog.readers.hf_shape import shape_from_config


def test_the_file_has_the_shape_of_the_folder(tmp_path: Path) -> None:
    found = read_gguf(ensure_as_gguf("builtin:tiny", tmp_path))
    told = shape_from_config(describe("builtin:tiny").config, name="tiny")
    assert len(found.layers) == len(told.layers)
    assert (found.hidden_size, found.vocab_size) == (told.hidden_size, told.vocab_size)
    assert found.max_context_tokens == told.max_context_tokens
    assert found.layers[0].cache == told.layers[0].cache
    assert found.quantization == "f32"
    assert not found.estimate


def test_every_weight_is_the_same_number_in_more_bits(tmp_path: Path) -> None:
    data = ensure_as_gguf("builtin:tiny", tmp_path).read_bytes()
    weights = (ensure("builtin:tiny", tmp_path) / "model.safetensors").read_bytes()
    header_bytes = struct.unpack_from("<Q", weights)[0]
    header = json.loads(weights[8 : 8 + header_bytes])
    stored = weights[8 + header_bytes :]
    for name in ("model.embed_tokens.weight", "model.layers.3.mlp.down_proj.weight"):
        start, end = header[name]["data_offsets"]
        wide = b"".join(b"\0\0" + stored[at : at + 2] for at in range(start, min(end, start + 4096), 2))
        assert data.find(wide) % 32 == 0


def test_parallel_callers_get_the_same_finished_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: ensure_as_gguf("builtin:tiny", tmp_path), range(4)))
    (path,) = paths
    assert read_gguf(path).layers
    assert [p.suffix for p in path.parent.iterdir() if not p.name.startswith(".")] == [".gguf"]
