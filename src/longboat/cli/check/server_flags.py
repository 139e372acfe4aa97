"""What the command lines of engines' servers are called in a fleet file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from longboat.engines.llamacpp import flags as llamacpp
from longboat.engines.sglang.flags import ARGUMENTS as SGLANG
from longboat.engines.tgi.adapter import ARGUMENTS as TGI
from longboat.engines.vllm.flags import ARGUMENTS as VLLM

__all__ = ("Server", "server_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One engine's server."""

    kind: str  # as a fleet file names the engine
    title: str  # as people do
    spelling: Callable[[str], str | None]  # word → the flag's first name; None: not a flag
    owner: Callable[[str], str | None]  # flag → the flag that the server takes it for, where the file cannot have that
    owned: Mapping[str, str]  # flag that Longboat sets → what to do instead
    parts: Mapping[str, str] = field(default_factory=dict)  # flag → the part of the file that it becomes
    port: int = 8000  # where it listens without a flag
    host: str = "0.0.0.0"  # likewise
    variables: Mapping[str, str] = field(default_factory=dict)  # environment variable → the flag that it stands for

    def why_not(self, flag: str) -> str:
        """Return why the file does not have a flag; empty for one that the engine takes as an argument."""
        no_such = f"engine.args of {self.title} take no such flag here"
        return self.owned.get(owner, no_such) if (owner := self.owner(flag)) else ""


def _of_llama(flag: str) -> str | None:
    return flag if flag in llamacpp.OWNED_FLAGS or flag not in llamacpp.TAKEN_FLAGS else None


_PARTS_OF_ALL = {"--port": "port", "--api-key": "key"}
_SERVERS = (
    Server(
        kind="vllm",
        title="vLLM",
        spelling=VLLM.spelling,
        owner=VLLM.owner,
        owned=VLLM.owned,
        parts={
            **_PARTS_OF_ALL,
            "--served-model-name": "name",
            "--host": "host",
            "--hf-token": "token",
        },
    ),
    Server(
        kind="sglang",
        title="SGLang",
        spelling=SGLANG.spelling,
        owner=SGLANG.owner,
        owned=SGLANG.owned,
        parts={
            **_PARTS_OF_ALL,
            "--model-path": "model",
            "--served-model-name": "name",
            "--tp-size": "tensor",
            "--pp-size": "pipeline",
            "--dp-size": "data",
            "--ep-size": "expert",
            "--context-length": "context",
            "--host": "host",
            "--is-embedding": "embed",
        },
        port=30000,
        host="127.0.0.1",
    ),
    Server(
        kind="llama.cpp",
        title="llama.cpp",
        spelling=llamacpp.spelling,
        owner=_of_llama,
        owned=llamacpp.OWNED_FLAGS,
        parts={
            **_PARTS_OF_ALL,
            "--model": "model",
            "--model-url": "model",
            "--hf-repo": "repository",
            "--hf-file": "file",
            "--hf-token": "token",
            "--alias": "name",
            "--ctx-size": "context",
            "--host": "host",
        },
        port=8080,
        host="127.0.0.1",
        variables={
            "LLAMA_ARG_MODEL": "--model",
            "LLAMA_ARG_HF_REPO": "--hf-repo",
            "LLAMA_ARG_HF_FILE": "--hf-file",
            "LLAMA_ARG_ALIAS": "--alias",
            "LLAMA_ARG_CTX_SIZE": "--ctx-size",
            "LLAMA_ARG_N_PARALLEL": "--parallel",
            "LLAMA_ARG_N_GPU_LAYERS": "--n-gpu-layers",
            "LLAMA_ARG_THREADS": "--threads",
            "LLAMA_ARG_HOST": "--host",
            "LLAMA_ARG_PORT": "--port",
            "LLAMA_API_KEY": "--api-key",
        },
    ),
    Server(
        kind="tgi",
        title="TGI",
        spelling=TGI.spelling,
        owner=TGI.owner,
        owned=TGI.owned,
        parts={
            **_PARTS_OF_ALL,
            "--model-id": "model",
            "--num-shard": "tensor",
            "--max-total-tokens": "context",
            "--hostname": "host",
            "-p": "port",
        },
        port=3000,
        variables={
            "MODEL_ID": "--model-id",
            "NUM_SHARD": "--num-shard",
            "MAX_TOTAL_TOKENS": "--max-total-tokens",
            "MAX_INPUT_TOKENS": "--max-input-tokens",
            "MAX_CONCURRENT_REQUESTS": "--max-concurrent-requests",
            "QUANTIZE": "--quantize",
            "PORT": "--port",
            "API_KEY": "--api-key",
        },
    ),
)
_PROGRAMS = {"vllm": "vllm", "sglang": "sglang", "llama-server": "llama.cpp", "text-generation-launcher": "tgi"}


def server_of(program: str) -> Server | None:
    """Return the server that a program is; None for another one. program: as ``program_of`` names it"""
    kind = next((kind for start, kind in _PROGRAMS.items() if program.startswith(start)), "")
    return next((server for server in _SERVERS if server.kind == kind), None)
