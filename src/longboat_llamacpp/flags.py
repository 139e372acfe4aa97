"""The command line of the launcher, and what its flags mean for the server inside the wheel ``xllamacpp``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

__all__ = ("SERVER_FLAGS", "apply_flags", "server_parser")

Setter = Callable[[Any, Any], None]


def _field(name: str) -> Setter:
    return lambda params, value: setattr(params, name, value)


def _off(name: str) -> Setter:
    return lambda params, _: setattr(params, name, False)


def _threads(field: str) -> Setter:
    return lambda params, value: setattr(getattr(params, field), "n_threads", value)


def _one_of(field: str, kind: str, prefix: str) -> Setter:
    def choose(params: Any, value: str) -> None:
        import xllamacpp

        values = getattr(xllamacpp, kind)
        found = getattr(values, f"{prefix}{value.upper().replace('-', '_')}", None)
        if found is None:
            raise ValueError(f"{value!r} is not a value of {kind}")
        setattr(params, field, found)

    return choose


def _attention(params: Any, value: str) -> None:
    names = {**dict.fromkeys(("on", "1", "true"), "enabled"), **dict.fromkeys(("off", "0", "false"), "disabled")}
    names["-1"] = "auto"
    _one_of("flash_attn_type", "llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_")(params, names.get(value, value))


def _template_values(params: Any, value: str) -> None:
    params.default_template_kwargs = {name: json.dumps(told) for name, told in json.loads(value).items()}


def _projector(params: Any, value: str) -> None:
    params.mmproj.path = value


SERVER_FLAGS: dict[tuple[str, ...], tuple[type | None, Setter]] = {
    ("--parallel", "-np"): (int, _field("n_parallel")),
    ("--ctx-size", "-c"): (int, _field("n_ctx")),
    ("--kv-unified", "-kvu"): (None, _field("kv_unified")),
    ("--threads", "-t"): (int, _threads("cpuparams")),
    ("--threads-batch", "-tb"): (int, _threads("cpuparams_batch")),
    ("--threads-http",): (int, _field("n_threads_http")),
    ("--batch-size", "-b"): (int, _field("n_batch")),
    ("--ubatch-size", "-ub"): (int, _field("n_ubatch")),
    ("--n-gpu-layers", "-ngl"): (int, _field("n_gpu_layers")),
    ("--main-gpu", "-mg"): (int, _field("main_gpu")),
    ("--cache-type-k", "-ctk"): (str, _one_of("cache_type_k", "ggml_type", "GGML_TYPE_")),
    ("--cache-type-v", "-ctv"): (str, _one_of("cache_type_v", "ggml_type", "GGML_TYPE_")),
    ("--flash-attn", "-fa"): (str, _attention),
    ("--cache-ram", "-cram"): (int, _field("cache_ram_mib")),
    ("--cache-reuse",): (int, _field("n_cache_reuse")),
    ("--no-cache-prompt",): (None, _off("cache_prompt")),
    ("--chat-template",): (str, _field("chat_template")),
    ("--chat-template-kwargs",): (str, _template_values),
    ("--no-jinja",): (None, _off("use_jinja")),
    ("--reasoning-format",): (str, _one_of("reasoning_format", "common_reasoning_format", "COMMON_REASONING_FORMAT_")),
    ("--rope-freq-base",): (float, _field("rope_freq_base")),
    ("--rope-freq-scale",): (float, _field("rope_freq_scale")),
    ("--swa-full",): (None, _field("swa_full")),
    ("--no-warmup",): (None, _off("warmup")),
    ("--embeddings",): (None, _field("embedding")),
    ("--mmproj",): (str, _projector),
}
"""Spellings of a flag → type of its value (None: a switch), and what it sets. The built ``llama-server`` has the same
flags, and more."""


def server_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags that go to the server, whichever it is."""
    parser = argparse.ArgumentParser(prog="llama.cpp", allow_abbrev=False)
    for names, (kind, _) in SERVER_FLAGS.items():
        if kind is None:
            parser.add_argument(*names, action="store_true", default=None)
        else:
            parser.add_argument(*names, type=kind)
    return parser


def apply_flags(params: Any, args: argparse.Namespace) -> None:
    """Set what the flags say in the wheel's parameters. Raises ValueError for an impossible value."""
    for names, (_, setter) in SERVER_FLAGS.items():
        value = getattr(args, names[0].removeprefix("--").replace("-", "_"))
        if value is not None:
            setter(params, value)
