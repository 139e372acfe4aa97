"""Knows vLLM's command-line flags: which ones Longboat sets itself, and which ones the user has set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from longboat.core.errors import Problem

__all__ = (
    "HARMLESS_FLAGS",
    "OWNED_FLAGS",
    "check_extra_args",
    "flags_of",
    "number_given",
    "text_given",
    "without_given",
)

_SPLIT = "set the model's split (tensor, pipeline) instead"
_NODES = "leave it out: Longboat sets it for every rank of the gang"
_ADDRESS = "leave it out: the engine listens where the gateway expects it; set the gateway's host and port instead"
_KEY = "leave it out: each engine gets its own secret, which only the gateway knows"
_REPLICAS = "set the number of replicas instead: each replica is one engine"
_TLS = "leave it out: the gateway speaks plain HTTP to engines"

OWNED_FLAGS: dict[str, str] = {
    "--model": "set the model's source instead",
    "--served-model-name": "set the model's name instead",
    "--config": "write each setting as a separate argument",
    "--host": _ADDRESS,
    "--port": _ADDRESS,
    "--uds": _ADDRESS,
    "--grpc": _ADDRESS,
    "--grpc-port": _ADDRESS,
    "--root-path": _ADDRESS,
    "--api-key": _KEY,
    "--api-server-count": "set the number of replicas instead: each engine has one API server",
    "--ssl-keyfile": _TLS,
    "--ssl-certfile": _TLS,
    "--ssl-ca-certs": _TLS,
    "--ssl-cert-reqs": _TLS,
    "--tensor-parallel-size": _SPLIT,
    "--pipeline-parallel-size": _SPLIT,
    "--distributed-executor-backend": _NODES,
    "--nnodes": _NODES,
    "--node-rank": _NODES,
    "--master-addr": _NODES,
    "--master-port": _NODES,
    "--headless": _NODES,
    "--data-parallel-size": _REPLICAS,
}
"""Flag → what to do instead of setting it. Every ``--data-parallel-…`` flag counts as the last one."""

HARMLESS_FLAGS = frozenset(
    {
        "--max-num-seqs",
        "--gpu-memory-utilization",
        "--kv-events-config",
        "--uvicorn-log-level",
        "--disable-log-stats",
        "--enable-log-requests",
        "--no-enable-log-requests",
        "--disable-uvicorn-access-log",
    }
)
"""They change an engine's concurrency or its logs, and not its responses."""

_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-dp": "--data-parallel-size",
    "-dpn": "--data-parallel-size",
    "-dpr": "--data-parallel-size",
    "-dpl": "--data-parallel-size",
    "-dpa": "--data-parallel-size",
    "-dpp": "--data-parallel-size",
    "-dpb": "--data-parallel-size",
    "-dph": "--data-parallel-size",
    "-dpe": "--data-parallel-size",
    "-dpm": "--data-parallel-size",
}
_SHORTEST_ABBREVIATION = len("--ho")


def check_extra_args(args: Sequence[str]) -> tuple[Problem, ...]:
    """Return the mistakes in the user's extra arguments for vLLM.

    Only flags that Longboat itself sets are refused. vLLM decides whether it knows the others.
    """
    problems = []
    if args and not args[0].startswith("-"):
        what = f"{args[0]!r} is not a flag"
        problems.append(Problem(where="[0]", what=what, hint="write flags as --name value or --name=value"))
    for index, flag in _positions(args):
        if owner := _owned_by(flag):
            name = args[index].partition("=")[0]
            what = f"{name} is set by Longboat and cannot be given as an extra argument"
            problems.append(Problem(where=f"[{index}]", what=what, hint=OWNED_FLAGS[owner]))
    return tuple(problems)


def flags_of(args: Sequence[str]) -> frozenset[str]:
    """Return the flags in ``args``, in one spelling: dashes, without ``--no-`` and without ``=value``."""
    return frozenset(flag for _, flag in _positions(args))


def without_given(defaults: Sequence[tuple[str, ...]], extra_args: Sequence[str]) -> list[str]:
    """Flatten ``defaults`` (flag, value …) without the flags that the user gave: the user always wins."""
    given = flags_of(extra_args)
    return [word for words in defaults if words[0] not in given for word in words]


def number_given(flag: str, args: Sequence[str]) -> int | None:
    """Return the whole number that ``args`` last give for ``flag``; None where there is none."""
    number = None
    for text in _values(flag, args):
        number = int(text) if text.isascii() and text.isdecimal() else number
    return number or None


def text_given(flag: str, args: Sequence[str]) -> str:
    """Return the text that ``args`` last give for ``flag``; empty where there is none."""
    return next(reversed(list(_values(flag, args))), "")


def _values(flag: str, args: Sequence[str]) -> Iterator[str]:
    for index, found in _positions(args):
        if found == flag:
            _, equals, value = args[index].partition("=")
            yield value if equals else args[index + 1] if index + 1 < len(args) else ""


def _positions(args: Sequence[str]) -> Iterator[tuple[int, str]]:
    for index, word in enumerate(args):
        if word.startswith("-") and not _is_number(word):
            yield index, _spelling(word)


def _spelling(word: str) -> str:
    name = word.partition("=")[0].partition(".")[0]
    if not name.startswith("--"):
        return _SHORT.get(name, name)
    name = name.replace("_", "-")
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name


def _owned_by(flag: str) -> str | None:
    """Return the owned flag that vLLM's parser would take ``flag`` for: it accepts unique abbreviations."""
    if flag in OWNED_FLAGS:
        return flag
    if flag.startswith("--data-parallel"):
        return "--data-parallel-size"
    if len(flag) < _SHORTEST_ABBREVIATION or not flag.startswith("--"):
        return None
    return next((owned for owned in OWNED_FLAGS if owned.startswith(flag)), None)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
