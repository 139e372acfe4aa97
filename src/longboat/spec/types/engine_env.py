"""Environment variables of an engine, as the fleet file gives them: a message never holds a value."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from longboat.spec.types.section import mistake, refuse_all

__all__ = ("EngineVariables",)

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
MAX_VALUE = 32_768
OURS = ("LONGBOAT_", "RAY_")
SWITCHES = frozenset(f"LONGBOAT_{engine}_{part}" for engine in ("VLLM", "SGLANG") for part in ("PREFIXES", "RESUME"))
"""Parts of the plugins that a model may do without."""
SET_BY_LONGBOAT = frozenset(
    (
        "API_KEY",
        "CUDA_VISIBLE_DEVICES",
        "GLOO_SOCKET_IFNAME",
        "LLAMA_API_KEY",
        "NCCL_SOCKET_IFNAME",
        "PYTHONHOME",
        "PYTHONPATH",
        "SGLANG_HOST_IP",
        "SGLANG_PLUGINS",
        "SGLANG_PP_LAYER_PARTITION",
        "SPT_NOENV",
        "VIRTUAL_ENV",
        "VLLM_API_KEY",
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "VLLM_HOST_IP",
        "VLLM_PORT",
        "VLLM_PP_LAYER_PARTITION",
    )
)
"""Addresses, cards, keys and import paths: an engine with other ones would not belong to its gang."""


def _checked(value: object) -> object:
    if not isinstance(value, Mapping):
        raise mistake("the variables are not a mapping", "write env: with NAME: value lines below it")
    refuse_all(wrong for name, text in value.items() for wrong in _wrong(str(name), text))
    return value


def _wrong(name: str, text: object) -> Iterator[PydanticCustomError]:
    """Yield what is wrong with one variable."""
    if not NAME.fullmatch(name):
        yield mistake(f"{name!r} is not the name of an environment variable", "write it like HF_TOKEN")
    if (name not in SWITCHES and name.startswith(OURS)) or name in SET_BY_LONGBOAT:
        yield mistake(f"Longboat sets {name} itself", "leave it out; split, placement and resources decide it")
    elif not isinstance(text, str):
        hint = f'put it in quotes: {name}: "1", and a variable too: {name}: "${{NAME}}"'
        yield mistake(f"the value of {name} is not text", hint)
    elif "\0" in text or len(text) > MAX_VALUE or any("\ud800" <= letter <= "\udfff" for letter in text):
        yield mistake(
            f"the value of {name} is longer than {MAX_VALUE} characters, or holds one that no variable can",
            "write a file's path instead, where the engine takes one",
        )


EngineVariables = Annotated[dict[str, str], BeforeValidator(_checked)]
"""Name → value; a value may be ``${NAME}`` of the operator's environment."""
