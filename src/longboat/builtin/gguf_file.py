"""Writes a built-in model's folder as one GGUF file in float32, for llama.cpp, with the standard library alone.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3. The names of tensors and metadata are
those of llama.cpp's architecture ``qwen3``.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longboat.file_lock import FileLock

__all__ = ("ensure_gguf",)

_ALIGNMENT = 32
_F32 = 0
_CODES = {4: "I", 5: "i", 6: "f", 7: "?"}
_TEXT, _LIST, _UNSIGNED, _WHOLE, _REAL, _TRUTH = 8, 9, 4, 5, 6, 7
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_PRE_TOKENIZER = "dbrx"
"""llama.cpp's name for the pattern by which the tokenizer of the built-in models splits a text."""
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def ensure_gguf(folder: Path, target: Path) -> Path:
    """Return ``target``, written from the model in ``folder`` where it is missing.

    Several processes may call this at the same time; one writes and the others wait for it.
    """
    if target.exists():
        return target
    with FileLock.held(target.with_name(f".{target.name}.lock")):
        if not target.exists():
            partial = target.with_name(f".{target.name}.{os.getpid()}")
            try:
                _write(folder, partial)
                partial.rename(target)
            finally:
                partial.unlink(missing_ok=True)
    return target


def _write(folder: Path, target: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with (folder / "model.safetensors").open("rb") as weights, target.open("wb") as file:
        header_bytes = int.from_bytes(weights.read(8), "little")
        tensors = json.loads(weights.read(header_bytes))
        tensors.pop("__metadata__", None)
        metadata = list(_metadata(folder, config))
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
        for entry in metadata:
            file.write(entry)
        file.write(b"".join(_tensor_entries(tensors)))
        for entry in tensors.values():
            file.write(b"\0" * (-file.tell() % _ALIGNMENT))
            start, end = entry["data_offsets"]
            weights.seek(8 + header_bytes + start)
            file.write(_widened(weights.read(end - start)))


def _tensor_entries(tensors: dict[str, Any]) -> Iterator[bytes]:
    """Yield the header's entry of each tensor; GGUF names the innermost dimension first."""
    offset = 0
    for name, entry in tensors.items():
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}, not BF16")
        shape = entry["shape"][::-1]
        yield _text(_tensor_name(name)) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _F32, offset)
        start, end = entry["data_offsets"]
        offset += 2 * (end - start)
        offset += -offset % _ALIGNMENT


def _tensor_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def _widened(numbers: bytes) -> bytes:
    """Return bfloat16 numbers as float32: the same bits, and two zero bytes below them."""
    wide = bytearray(2 * len(numbers))
    wide[2::4], wide[3::4] = numbers[0::2], numbers[1::2]
    return bytes(wide)


def _metadata(folder: Path, config: dict[str, Any]) -> Iterator[bytes]:
    def number(name: str, value: int) -> bytes:
        return _entry(f"qwen3.{name}", _UNSIGNED, value)

    yield _entry("general.architecture", _TEXT, "qwen3")
    yield _entry("general.name", _TEXT, folder.name)
    yield _entry("general.file_type", _UNSIGNED, 0)
    yield number("context_length", config["max_position_embeddings"])
    yield number("embedding_length", config["hidden_size"])
    yield number("block_count", config["num_hidden_layers"])
    yield number("feed_forward_length", config["intermediate_size"])
    yield number("attention.head_count", config["num_attention_heads"])
    yield number("attention.head_count_kv", config["num_key_value_heads"])
    yield number("attention.key_length", config["head_dim"])
    yield number("attention.value_length", config["head_dim"])
    yield _entry("qwen3.attention.layer_norm_rms_epsilon", _REAL, config["rms_norm_eps"])
    yield _entry("qwen3.rope.freq_base", _REAL, config["rope_parameters"]["rope_theta"])
    yield from _defaults(folder)
    yield from _tokenizer(folder, config)


def _defaults(folder: Path) -> Iterator[bytes]:
    """Yield how the model is sampled where a request does not say it."""
    told = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    yield _entry("general.sampling.temp", _REAL, told["temperature"])
    yield _entry("general.sampling.top_k", _WHOLE, told["top_k"])
    yield _entry("general.sampling.top_p", _REAL, told["top_p"])
    yield _entry("general.sampling.min_p", _REAL, 0.0)


def _tokenizer(folder: Path, config: dict[str, Any]) -> Iterator[bytes]:
    told = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = [f"<unused{index}>" for index in range(config["vocab_size"])]
    kinds = [_UNUSED] * len(tokens)
    for text, index in told["model"]["vocab"].items():
        tokens[index], kinds[index] = text, _NORMAL
    for added in told["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in told["model"]["merges"]]
    yield _entry("tokenizer.ggml.model", _TEXT, "gpt2")
    yield _entry("tokenizer.ggml.pre", _TEXT, _PRE_TOKENIZER)
    yield _texts("tokenizer.ggml.tokens", tokens)
    yield _text("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", _LIST, _WHOLE, len(kinds), *kinds)
    yield _texts("tokenizer.ggml.merges", merges)
    yield _entry("tokenizer.ggml.eos_token_id", _UNSIGNED, config["eos_token_id"])
    yield _entry("tokenizer.ggml.padding_token_id", _UNSIGNED, config["pad_token_id"])
    yield _entry("tokenizer.ggml.add_bos_token", _TRUTH, False)
    yield _entry("tokenizer.chat_template", _TEXT, (folder / "chat_template.jinja").read_text(encoding="utf-8"))


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _texts(key: str, texts: list[str]) -> bytes:
    return _text(key) + struct.pack("<IIQ", _LIST, _TEXT, len(texts)) + b"".join(map(_text, texts))


def _entry(key: str, kind: int, value: Any) -> bytes:
    packed = _text(value) if kind == _TEXT else struct.pack(f"<{_CODES[kind]}", value)
    return _text(key) + struct.pack("<I", kind) + packed
