"""Knows SGLang's command-line flags: which ones Longboat sets itself, and which ones the user has set."""

from __future__ import annotations

from longboat.engines.extra_arguments import EVERY_RANK, OWN_ADDRESS, OWN_KEY, PLAIN_HTTP, ExtraArguments

__all__ = ("ARGUMENTS", "HARMLESS_FLAGS", "HUB_FLAGS", "OWNED_FLAGS")

_SPLIT = "set the model's split (tensor, pipeline) instead"
_DATA = "set the model's split.data instead, or the number of replicas"
_CODE = "leave it out: with it, each client could run its own code in the engine"
_ROLES = "leave it out: each replica computes prompts and responses"
_ADAPTERS = "write adapters: in the model's entry instead"
_NO_CUSTOM = "leave it out: Longboat's plugin does its work in SGLang's own Python server"

OWNED_FLAGS: dict[str, str] = {
    "--model-path": "set the model's source instead",
    "--served-model-name": "set the model's name instead",
    "--config": "write each setting as a separate argument",
    "--host": OWN_ADDRESS,
    "--port": OWN_ADDRESS,
    "--fastapi-root-path": OWN_ADDRESS,
    "--grpc-mode": OWN_ADDRESS,
    "--smg-grpc-mode": OWN_ADDRESS,
    "--grpc-port": OWN_ADDRESS,
    "--enable-http2": _NO_CUSTOM,
    "--use-ray": _NO_CUSTOM,
    "--tokenizer-worker-num": "set the number of replicas instead: each engine has one API server",
    "--api-key": OWN_KEY,
    "--admin-api-key": OWN_KEY,
    "--ssl-keyfile": PLAIN_HTTP,
    "--ssl-certfile": PLAIN_HTTP,
    "--ssl-ca-certs": PLAIN_HTTP,
    "--ssl-keyfile-password": PLAIN_HTTP,
    "--tp-size": _SPLIT,
    "--pp-size": _SPLIT,
    "--nnodes": EVERY_RANK,
    "--node-rank": EVERY_RANK,
    "--dist-init-addr": EVERY_RANK,
    "--nccl-port": EVERY_RANK,
    "--dp-size": _DATA,
    "--attn-dp-size": _DATA,
    "--enable-dp-attention": _DATA,
    "--ep-size": "set the model's split.expert instead",
    "--disaggregation-mode": _ROLES,
    "--enable-custom-logit-processor": _CODE,
    "--incremental-streaming-output": "leave it out: the gateway reads SGLang's usual output",
    "--enable-lora": _ADAPTERS,
    "--lora-paths": _ADAPTERS,
    "--max-loras-per-batch": _ADAPTERS,
    "--max-loaded-loras": _ADAPTERS,
    "--max-lora-rank": _ADAPTERS,
    "--lora-target-modules": _ADAPTERS,
    "--is-embedding": "set the model's task instead: task: embed",
    "--skip-tokenizer-init": "leave it out: the gateway's requests are text",
}
"""Flag → what to do instead of setting it."""

HARMLESS_FLAGS = frozenset(
    {
        "--max-running-requests",
        "--mem-fraction-static",
        "--max-total-tokens",
        "--log-level",
        "--log-level-http",
        "--log-requests",
        "--enable-metrics",
        "--decode-log-interval",
        "--kv-events-config",
        "--watchdog-timeout",
    }
)
"""They change an engine's concurrency or its logs, and not its responses."""

HUB_FLAGS = ("--tokenizer-path", "--speculative-draft-model-path")
"""They name a folder, or something that SGLang fetches from a hub."""

_OTHER_NAMES = {
    "--model": "--model-path",
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--pp": "--pp-size",
    "--pipeline-parallel-size": "--pp-size",
    "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size",
    "--ep": "--ep-size",
    "--expert-parallel-size": "--ep-size",
    "--nccl-init-addr": "--dist-init-addr",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--enable-hicache": "--enable-hierarchical-cache",
    "--speculative-draft-model": "--speculative-draft-model-path",
}
_UNITS = {letter: 1000**power for power, letter in enumerate("kMGT", 1)}
_UNITS |= {f"{letter}i": 1024**power for power, letter in enumerate("KMGT", 1)}
_SHORTEST_ABBREVIATION = len("--ho")


def _spelling(word: str) -> str | None:
    """Return SGLang's first name of the flag; None for a value."""
    name = word.partition("=")[0]
    return _OTHER_NAMES.get(name, name) if word.startswith("--") else None


def _owned_by(flag: str) -> str | None:
    """Return the owned flag that SGLang's parser would take ``flag`` for: it accepts unique abbreviations."""
    if flag in OWNED_FLAGS:
        return flag
    if len(flag) < _SHORTEST_ABBREVIATION:
        return None
    names = {**{name: name for name in OWNED_FLAGS}, **_OTHER_NAMES}
    return next((owned for name, owned in names.items() if name.startswith(flag)), None)


ARGUMENTS = ExtraArguments(_spelling, _owned_by, OWNED_FLAGS, _UNITS)
