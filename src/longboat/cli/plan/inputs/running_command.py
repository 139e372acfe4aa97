"""A command that already runs an engine, as the question of a plan: its model, its split and its settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import dropwhile
from typing import TYPE_CHECKING

from longboat.catalog.quantized_names import quantized_name
from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_options import PlanRequest, version_of
from longboat.cli.plan.planning import Planner
from longboat.core.errors import UserInputError
from longboat.core.plan import AdapterRoom, EngineMemory
from longboat.planner.search.reasons import memory_settings
from longboat.planner.search.search import SearchResult

if TYPE_CHECKING:
    from longboat.engines.extra_arguments import ExtraArguments

__all__ = (
    "ASSIGNMENT",
    "CONTAINERS",
    "IMAGES",
    "RunningRequest",
    "arguments_at",
    "as_run",
    "is_command",
    "program_of",
    "request_notes",
    "request_of",
)

STORED = "stored"
TGI = "text-generation-launcher"
# Ollama's files without a word for their format.
OLLAMA_FORMAT = "q4_k_m"
# The format that llama-server takes of a repository without a word for it.
USUAL_FORMAT = "Q4_K_M"
STARTS = {
    "vllm": "vllm serve Qwen/Qwen3-32B",
    "sglang": "sglang serve --model-path Qwen/Qwen3-32B",
    "llamacpp": "llama-server -m model.gguf",
}
# Images whose entry point is the server.
IMAGES = {
    "vllm serve": re.compile(r"(^|/)vllm-openai(:|@|$)"),
    "llama-server": re.compile(r"(^|/)llama\.cpp:server"),
    TGI: re.compile(r"(^|/)text-generation-inference(:|@|$)"),
}
CONTAINERS = ("docker", "podman", "nerdctl")
MODULES = ("vllm.entrypoints", "sglang.launch_server")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
BEFORE = ("env", "exec", "export", "nohup", "run", "sudo", "uv")
IN_HOST = "--kv-offloading-size"
GIB = 1024**3
EXAMPLES = {"--max-model-len": 8192, "--context-length": 8192, "--ctx-size": 8192}
# vLLM's words for the longest request that its memory has room for.
FITTING = ("-1", "auto")
SHARES = {"-kvu": True, "--kv-unified": True, "-no-kvu": False, "--no-kv-unified": False}
NUMBERS = ("tensor", "pipeline", "data", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRequest(PlanRequest):
    """A request whose split and settings are those of a command."""

    given: EngineMemory  # settings of the command
    program: str  # as messages name it
    fills: bool = False  # whether requests may be as long as fits (vLLM's ``--max-model-len auto``)
    host_gib: int = 0  # of RAM that keep what leaves the cache (vLLM's kv-offloading-size), for all ranks of a stage

    @property
    def settings(self) -> EngineMemory:
        return replace(self.given, version=version_of(self.engine_version), fixed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """What the arguments of one engine's server are called."""

    engine: str
    flags: Mapping[str, str]  # field of ``PlanRequest`` → flag; "model" too
    text: Callable[[str, Sequence[str]], str]
    number_in: Callable[[str], int | None]  # text → the whole number that the engine reads in it
    memory: Callable[[Sequence[str], EngineMemory], EngineMemory]


def is_command(model: str) -> bool:
    """Return whether the word in the place of the model is a command of a server."""
    return " " in model.strip() and bool(program_of(words := model.split()) or _of_ollama(words))


def request_of(command: str, request: PlanRequest) -> tuple[str, PlanRequest]:
    """Return the model of a command, and the request with its split, context, format and settings.

    Raises UserInputError for a command without a model, or with a number that is not one.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserInputError(f"the command cannot be read: {error}", hint="write it as in a shell") from None
    if model := _of_ollama(words):
        own = "" if quantized_name(model) else OLLAMA_FORMAT
        return model, replace(request, engine=request.engine or "llamacpp", quantization=request.quantization or own)
    program = program_of(words)
    reader, args = _reader(program), words[arguments_at(words) :]
    model = _model(reader, args, program)
    told = {name: _number(reader, name, args) for name in NUMBERS}
    given = replace(reader.memory(args, EngineMemory(kv_bits=request.kv_bits)), adapters=_adapters(reader, args))
    if reader.engine == "llamacpp" and not request.context:
        told["context"], given = _of_slots(reader, args, told["context"], given)
    changed = {field.name: getattr(request, field.name) for field in fields(request)} | {
        "engine": request.engine or reader.engine,
        "quantization": request.quantization or _format(reader, args),
        "expert_parallel": request.expert_parallel or _is_on(reader, "--enable-expert-parallel", args),
        "kv_bits": given.kv_bits,
        **{name: getattr(request, name) or told[name] for name in NUMBERS},
    }
    if reader.engine != "llamacpp":
        changed |= {name: changed[name] or 1 for name in ("tensor", "pipeline", "data")}
    host_gib = _whole(reader, IN_HOST, args) if reader.engine == "vllm" else 0
    fills = _fills(reader, args)
    return model, RunningRequest(**changed, given=given, program=program, fills=fills, host_gib=host_gib)


def as_run(planner: Planner, request: PlanRequest, shape: ModelShape) -> Planner:
    """Return the planner for requests as long as the engine lets them be, where its command sets no length."""
    if not isinstance(request, RunningRequest):
        return planner
    planner = replace(planner, base=None)
    if planner.demand.context_tokens or request.fills or request.engine == "llamacpp":
        return planner
    longest = max(shape.max_context_tokens, request.prompt_tokens + request.output_tokens)
    return replace(planner, demand=replace(planner.demand, context_tokens=longest))


def request_notes(request: PlanRequest, found: SearchResult) -> Iterator[str]:
    """Yield what a reader of a command's plan must know: settings that do not start, and that are not counted."""
    if not isinstance(request, RunningRequest):
        return
    group = found.plans[0].groups[0]
    asked, started = request.settings, group.fit.load
    if (asked.batched_tokens, asked.memory_ratio) != (started.batched_tokens, started.memory_ratio):
        needed = " ".join(memory_settings(group))
        yield f"{request.program} does not start with the given options: the plan adds {needed}"
    if request.host_gib and (each := group.shape.kv_bytes_per_token(asked.kv_bits / 8)):
        kept = int(request.host_gib * GIB / each)
        yield f"{IN_HOST} {request.host_gib} keeps {kept} tokens in RAM after the cache drops them; it adds no room"
    if others := [name for name in asked.unknown if name != IN_HOST or not request.host_gib]:
        yield f"not counted: {', '.join(others)}"


def _of_ollama(words: Sequence[str]) -> str:
    """Return the model that an ``ollama`` command names; empty for other commands."""
    named = [word for word in words[2:] if not word.startswith("-")]
    return named[0] if words[:1] == ["ollama"] and words[1:2] and words[1] in ("run", "pull") and named else ""


def program_of(words: Sequence[str]) -> str:
    """Return the engine's server that a command starts; empty where it starts none that is known."""
    words = list(dropwhile(lambda word: word in BEFORE or ASSIGNMENT.match(word), words))
    names = [word.rpartition("/")[2] for word in words]
    if "vllm" in names[:2] and "serve" in names[:3]:
        return "vllm serve"
    for program, image in IMAGES.items():
        if any(image.search(word) for word in words):
            return program
    in_container = bool(set(names[:2]) & set(CONTAINERS))
    for word in words if in_container else words[:5]:
        if word.startswith(MODULES):
            return word
    if names[:2] == ["sglang", "serve"] or (in_container and " sglang serve " in f" {' '.join(names)} "):
        return "sglang serve"
    return names[0] if names and names[0] in ("llama-server", TGI) else ""


def arguments_at(words: Sequence[str]) -> int:
    """Return where the arguments of the server begin, in a command that starts one."""
    first = next(at for at, word in enumerate(words) if _starts(word) or _is_image(word))
    if not _is_image(words[first]):
        return first + 1
    named = (at for at in range(first + 1, min(first + 4, len(words))) if _starts(words[at]))
    return next(named, first) + 1  # after the image, its program may be named again


def _starts(word: str) -> bool:
    return word.rpartition("/")[2] in ("serve", "llama-server", TGI) or word.startswith(MODULES)


def _is_image(word: str) -> bool:
    return any(image.search(word) for image in IMAGES.values())


def _reader(program: str) -> _Reader:
    if program == TGI:
        raise UserInputError(
            "how much memory TGI takes beside weights is not known here",
            hint="plan its model: longboat plan MODEL --on …",
        )
    if program.startswith("vllm"):
        from longboat.engines.vllm.flags import ARGUMENTS
        from longboat.engines.vllm.memory import memory_of

        names = {"tensor": "--tensor-parallel-size", "pipeline": "--pipeline-parallel-size"}
        names |= {"data": "--data-parallel-size", "context": "--max-model-len", "model": "--model"}
        return _of_arguments("vllm", ARGUMENTS, names, memory_of)
    if program.startswith("sglang"):
        from longboat.engines.sglang.flags import ARGUMENTS as SGLANG
        from longboat.engines.sglang.memory import memory_of as sglang_memory_of

        names = {"tensor": "--tp-size", "pipeline": "--pp-size", "data": "--dp-size"}
        names |= {"context": "--context-length", "model": "--model-path"}
        return _of_arguments("sglang", SGLANG, names, sglang_memory_of)
    from longboat.engines.extra_arguments import whole_number
    from longboat.engines.llamacpp.adapter import LlamaCppAdapter
    from longboat.engines.llamacpp.flags import text_given

    names = {"context": "--ctx-size", "model": "--model"}
    return _Reader(
        engine="llamacpp",
        flags=names,
        text=text_given,
        number_in=whole_number,
        memory=lambda args, _: LlamaCppAdapter().memory(args, "cuda"),
    )


def _of_arguments(
    engine: str,
    arguments: ExtraArguments,
    flags: Mapping[str, str],
    memory: Callable[[Sequence[str], EngineMemory], EngineMemory],
) -> _Reader:
    text, number_in = arguments.text, arguments.number_in
    return _Reader(engine=engine, flags=flags, text=text, number_in=number_in, memory=memory)


def _model(reader: _Reader, args: Sequence[str], program: str) -> str:
    first = args[0] if args and not args[0].startswith("-") else ""
    model = first or reader.text(reader.flags["model"], args)
    if reader.engine == "llamacpp":
        model = model or _from_hub(reader, args)
    if not model:
        raise UserInputError(f"{program} names no model", hint=f"write it as you start it: {STARTS[reader.engine]}")
    return model


def _from_hub(reader: _Reader, args: Sequence[str]) -> str:
    """Return the model that llama-server fetches; of a repository, it takes Q4_K_M where no format is named."""
    repository, file = reader.text("--hf-repo", args), reader.text("--hf-file", args)
    if repository and file:
        return f"https://huggingface.co/{repository.partition(':')[0]}/resolve/main/{file}"
    if repository:
        return repository if ":" in repository else f"{repository}:{USUAL_FORMAT}"
    return reader.text("--model-url", args)


def _adapters(reader: _Reader, args: Sequence[str]) -> AdapterRoom | None:
    """Return the room that vLLM makes for LoRA adapters; its defaults are one of rank 16."""
    if not _is_on(reader, "--enable-lora", args):
        return None
    slots = _whole(reader, "--max-loras", args) or 1
    held = _whole(reader, "--max-cpu-loras", args) or slots
    return AdapterRoom(slots=slots, held=held, rank=_whole(reader, "--max-lora-rank", args) or 16)


def _is_on(reader: _Reader, flag: str, args: Sequence[str]) -> bool:
    """Return whether a command of vLLM turns a switch on."""
    from longboat.engines.vllm.flags import is_on

    return reader.engine == "vllm" and is_on(flag, args)


def _number(reader: _Reader, name: str, args: Sequence[str]) -> int:
    if name not in reader.flags:
        return 0
    return 0 if name == "context" and _fills(reader, args) else _whole(reader, reader.flags[name], args)


def _fills(reader: _Reader, args: Sequence[str]) -> bool:
    return reader.engine == "vllm" and reader.text(reader.flags["context"], args).lower() in FITTING


def _of_slots(reader: _Reader, args: Sequence[str], context: int, given: EngineMemory) -> tuple[int, EngineMemory]:
    """Return the context of one slot, and the settings: slots that are numbered divide the cache, others share it."""
    choices = [SHARES[word] for word in args if word in SHARES]
    shared = choices[-1] if choices else reader.text("--parallel", args) in ("", "-1")
    if shared:
        return context, replace(given, cache_tokens=context)
    return context // max(1, given.sequences), given


def _whole(reader: _Reader, flag: str, args: Sequence[str]) -> int:
    text = reader.text(flag, args)
    number = reader.number_in(text) if text else 0
    if number is None or number < 0:
        raise UserInputError(f"{flag} {text!r} is not a whole number", hint=f"{flag} {EXAMPLES.get(flag, 8)}")
    return number


def _format(reader: _Reader, args: Sequence[str]) -> str:
    """Return the format in which the engine computes: as stored, unless it quantizes 16 bits to fp8 while it loads."""
    text = reader.text("--quantization", args) or reader.text("-q", args)
    return text if text == "fp8" else STORED
