"""Knows vLLM's command-line flags: which ones Longboat sets itself, and which ones the user has set."""

from __future__ import annotations

from collections.abc import Sequence

from longboat.engines.extra_arguments import EVERY_RANK, OWN_ADDRESS, OWN_KEY, PLAIN_HTTP, ExtraArguments, is_number

__all__ = ("ARGUMENTS", "HARMLESS_FLAGS", "HUB_FLAGS", "OWNED_FLAGS", "is_on")

_SPLIT = "set the model's split (tensor, pipeline) instead"
_DATA = "set the model's split.data instead, or the number of replicas"
_SPECULATIVE = "set the model's speculative instead"
_TASK = "set the model's task instead: task: embed, rerank, classify or reward"
_ADAPTERS = "set the model's adapters instead: adapters: {slots: 8, entries: [/adapters/support]}"

OWNED_FLAGS: dict[str, str] = {
    "--model": "set the model's source instead",
    "--served-model-name": "set the model's name instead",
    "--config": "write each setting as a separate argument",
    "--allowed-media-domains": "set the model's media instead: media: {domains: [images.example.com]}",
    "--allowed-local-media-path": "leave it out: clients could read the node's files; they send data URLs instead",
    "--runner": _TASK,
    "--convert": _TASK,
    "--host": OWN_ADDRESS,
    "--port": OWN_ADDRESS,
    "--uds": OWN_ADDRESS,
    "--grpc": OWN_ADDRESS,
    "--grpc-port": OWN_ADDRESS,
    "--root-path": OWN_ADDRESS,
    "--api-key": OWN_KEY,
    "--hf-token": "set HF_TOKEN in engine.env instead: every user of a node can read command lines",
    "--api-server-count": "set the number of replicas instead: each engine has one API server",
    "--ssl-keyfile": PLAIN_HTTP,
    "--ssl-certfile": PLAIN_HTTP,
    "--ssl-ca-certs": PLAIN_HTTP,
    "--ssl-cert-reqs": PLAIN_HTTP,
    "--tensor-parallel-size": _SPLIT,
    "--pipeline-parallel-size": _SPLIT,
    "--distributed-executor-backend": EVERY_RANK,
    "--nnodes": EVERY_RANK,
    "--node-rank": EVERY_RANK,
    "--master-addr": EVERY_RANK,
    "--master-port": EVERY_RANK,
    "--headless": EVERY_RANK,
    "--data-parallel-size": _DATA,
    "--speculative-config": _SPECULATIVE,
    "--spec-method": _SPECULATIVE,
    "--spec-model": _SPECULATIVE,
    "--spec-tokens": _SPECULATIVE,
    "--enable-expert-parallel": "set the model's split.expert instead",
    "--enable-lora": _ADAPTERS,
    "--lora-modules": _ADAPTERS,
    "--max-loras": _ADAPTERS,
    "--max-cpu-loras": _ADAPTERS,
    "--max-lora-rank": _ADAPTERS,
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

HUB_FLAGS = ("--tokenizer", "--hf-config-path")
"""They name a folder, or something that vLLM fetches from a hub."""

_SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-n": "--nnodes",
    "-sc": "--speculative-config",
    "-r": "--node-rank",
    "-q": "--quantization",
    "-ep": "--enable-expert-parallel",
    "-asc": "--api-server-count",
    "-dcp": "--decode-context-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
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
_OTHER_NAMES = {"--device-memory-utilization": "--gpu-memory-utilization"}
_UNITS = {letter: 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {letter: 1024**power for power, letter in enumerate("KMGT", 1)}
_SHORTEST_ABBREVIATION = len("--ho")


def is_on(flag: str, args: Sequence[str]) -> bool:
    """Return whether ``args`` turn a switch on: the last of ``--flag`` and ``--no-flag`` counts."""
    found = [word for word in args if _spelling(word) == flag]
    return bool(found) and not found[-1].startswith(("--no-", "--no_"))


def _spelling(word: str) -> str | None:
    """Return the flag with dashes, without ``--no-`` and without ``=value``; None for a value."""
    if not word.startswith("-") or is_number(word):
        return None
    name = word.partition("=")[0].partition(".")[0]
    if not name.startswith("--"):
        return _SHORT.get(name, name)
    name = name.replace("_", "-")
    name = f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else name
    return _OTHER_NAMES.get(name, name)


def _owned_by(flag: str) -> str | None:
    """Return the owned flag that vLLM's parser would take ``flag`` for: it accepts unique abbreviations."""
    if flag in OWNED_FLAGS:
        return flag
    if flag.startswith("--data-parallel"):
        return "--data-parallel-size"
    if len(flag) < _SHORTEST_ABBREVIATION or not flag.startswith("--"):
        return None
    return next((owned for owned in OWNED_FLAGS if owned.startswith(flag)), None)


ARGUMENTS = ExtraArguments(_spelling, _owned_by, OWNED_FLAGS, _UNITS)
