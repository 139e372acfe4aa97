"""Knows llama-server's flags: which ones Longboat sets itself, and which ones a fleet file may set."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Sequence

from longboat.core.errors import Problem
from longboat.engines.extra_arguments import OWN_ADDRESS, OWN_KEY, PLAIN_HTTP, is_number, whole_number

__all__ = (
    "CACHE_BITS",
    "HARMLESS_FLAGS",
    "OWNED_FLAGS",
    "TAKEN_FLAGS",
    "check_args",
    "number_given",
    "spelling",
    "text_given",
)

_MODEL = "set the model's source instead"
_SPLIT = "set the model's split (pipeline, layers) instead"

OWNED_FLAGS: dict[str, str] = {
    "--model": _MODEL,
    "--model-url": _MODEL,
    "--hf-repo": _MODEL,
    "--hf-file": _MODEL,
    "--hf-token": "set HF_TOKEN in the environment of the nodes",
    "--alias": "set the model's name instead",
    "--ctx-size": "set the model's context instead",
    "--host": OWN_ADDRESS,
    "--port": OWN_ADDRESS,
    "--api-prefix": OWN_ADDRESS,
    "--api-key": OWN_KEY,
    "--api-key-file": OWN_KEY,
    "--ssl-key-file": PLAIN_HTTP,
    "--ssl-cert-file": PLAIN_HTTP,
    "--rpc": _SPLIT,
    "--tensor-split": _SPLIT,
    "--split-mode": _SPLIT,
    "--device": _SPLIT,
    "--slot-save-path": "leave it out: clients cannot reach the slots of an engine",
}
"""Flag → what to do instead of setting it."""

TAKEN_FLAGS: dict[str, str] = {
    "--parallel": "number",
    "--kv-unified": "switch",
    "--threads": "number",
    "--threads-batch": "number",
    "--threads-http": "number",
    "--batch-size": "number",
    "--ubatch-size": "number",
    "--n-gpu-layers": "number",
    "--main-gpu": "number",
    "--cache-type-k": "text",
    "--cache-type-v": "text",
    "--flash-attn": "text",
    "--cache-ram": "number",
    "--cache-reuse": "number",
    "--no-cache-prompt": "switch",
    "--chat-template": "text",
    "--chat-template-kwargs": "text",
    "--no-jinja": "switch",
    "--reasoning-format": "text",
    "--rope-freq-base": "fraction",
    "--rope-freq-scale": "fraction",
    "--swa-full": "switch",
    "--no-warmup": "switch",
    "--embeddings": "switch",
    "--mmproj": "text",
}
"""Flag → what follows it. The server in the wheel has no command line of its own: it takes these."""

CACHE_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8, "q5_1": 6, "q5_0": 6, "q4_1": 5, "q4_0": 4, "iq4_nl": 4}
"""Type of the cache's numbers → bits of one."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "--cache-type-k": tuple(CACHE_BITS),
    "--cache-type-v": tuple(CACHE_BITS),
    "--flash-attn": ("on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"),
    "--reasoning-format": ("none", "auto", "deepseek", "deepseek-legacy"),
}
_WITHOUT_ATTENTION = ("off", "0", "false", "disabled")
_PLAIN = ("f32", "f16", "bf16")

_SHORT = {
    "-m": "--model",
    "-mu": "--model-url",
    "-hf": "--hf-repo",
    "-hfr": "--hf-repo",
    "-hff": "--hf-file",
    "-hft": "--hf-token",
    "-a": "--alias",
    "-c": "--ctx-size",
    "-ts": "--tensor-split",
    "-sm": "--split-mode",
    "-dev": "--device",
    "-np": "--parallel",
    "-kvu": "--kv-unified",
    "-t": "--threads",
    "-tb": "--threads-batch",
    "-b": "--batch-size",
    "-ub": "--ubatch-size",
    "-ngl": "--n-gpu-layers",
    "-mg": "--main-gpu",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-fa": "--flash-attn",
    "-cram": "--cache-ram",
}
_HARMLESS = ("--parallel", "--threads", "--threads-batch", "--threads-http", "--no-warmup")
HARMLESS_FLAGS = frozenset((*_HARMLESS, *(short for short, flag in _SHORT.items() if flag in _HARMLESS)))
"""They change an engine's concurrency or its start, and not its responses; in every spelling."""
_MAX_PARALLEL = 256


def check_args(args: Sequence[str]) -> tuple[Problem, ...]:
    """Return the mistakes in the user's extra arguments; ``where`` is the place in the list (``[2]``)."""
    problems = [
        Problem(where=f"[{index}]", what=what, hint=hint)
        for index, word, flag, value in _given(args)
        for what, hint in _mistakes(word, flag, value)
    ]
    return tuple(problems) or tuple(_wrong_together(args))


def _wrong_together(args: Sequence[str]) -> Iterator[Problem]:
    """Yield what llama.cpp refuses only beside another flag."""
    values, attention = text_given("--cache-type-v", args), text_given("--flash-attn", args)
    if attention in _WITHOUT_ATTENTION and values not in ("", *_PLAIN):
        what = f"--cache-type-v {values} needs Flash Attention, and --flash-attn is {attention}"
        index = next(index for index, _, flag, _ in _given(args) if flag == "--flash-attn")
        yield Problem(where=f"[{index}]", what=what, hint="leave --flash-attn out, or write --cache-type-v and f16")


def _mistakes(word: str, flag: str, value: str | None) -> Iterator[tuple[str, str]]:
    if flag in OWNED_FLAGS:
        yield f"{word} is set by Longboat and cannot be given as an extra argument", OWNED_FLAGS[flag]
    elif flag not in TAKEN_FLAGS:
        near = difflib.get_close_matches(flag, TAKEN_FLAGS, n=1)
        instead = f"did you mean {near[0]}? " if near else ""
        yield f"{word} is not a flag that llama.cpp takes here", f"{instead}It takes {', '.join(sorted(TAKEN_FLAGS))}"
    elif TAKEN_FLAGS[flag] == "switch":
        if value is not None:
            yield f"{word} takes no value, and {value!r} follows it", f"write {flag} alone"
    elif value is None:
        yield f"{word} has no value", f"write the value as the next item of the list: {flag}, 1"
    elif flag in _CHOICES and value not in _CHOICES[flag]:
        yield f"{word} is {value!r}, which llama.cpp does not know", f"write one of {', '.join(_CHOICES[flag])}"
    elif flag == "--chat-template-kwargs" and not _is_object(value):
        yield f"{word} takes a JSON object, not {value!r}", f"""write {flag} and '{{"enable_thinking": false}}'"""
    elif TAKEN_FLAGS[flag] == "number" and whole_number(value) is None:
        yield f"{word} takes a whole number, not {value!r}", f"write {flag} and a whole number"
    elif TAKEN_FLAGS[flag] == "fraction" and not (is_number(value) and math.isfinite(float(value))):
        yield f"{word} takes a number, not {value!r}", f"write {flag} and a number"
    elif flag == "--parallel" and not 1 <= int(value) <= _MAX_PARALLEL:
        yield f"{word} is {value}, the limits are 1 and {_MAX_PARALLEL}", f"write {flag} and a number between them"


def spelling(word: str) -> str | None:
    """Return the long name of a flag; None for a value."""
    return _SHORT.get(word, word) if word.startswith("-") and not is_number(word) else None


def number_given(flag: str, args: Sequence[str]) -> int | None:
    """Return the whole number that ``args`` last give for ``flag``; None where there is none."""
    return whole_number(text_given(flag, args))


def text_given(flag: str, args: Sequence[str]) -> str:
    """Return the text that ``args`` last give for ``flag``; empty where there is none."""
    found = [value for _, _, name, value in _given(args) if name == flag and value is not None]
    return found[-1] if found else ""


def _given(args: Sequence[str]) -> Iterator[tuple[int, str, str, str | None]]:
    """Yield each flag: its index, as it is written, its long name, and its value."""
    at = 0
    while at < len(args):
        index, word = at, args[at]
        at += 1
        value = None
        if at < len(args) and (not args[at].startswith("-") or is_number(args[at])):
            value = args[at]
            at += 1
        yield index, word, _SHORT.get(word, word), value


def _is_object(word: str) -> bool:
    try:
        return isinstance(json.loads(word), dict)
    except ValueError:
        return False
