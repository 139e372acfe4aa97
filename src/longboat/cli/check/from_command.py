"""The fleet file that does what an engine's command does, with the reason for each part that it leaves out. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import yaml

from longboat.cli.check.compose_file import words_of_compose
from longboat.cli.check.server_flags import Server, server_of
from longboat.cli.plan.inputs.running_command import (
    ASSIGNMENT,
    CONTAINERS,
    IMAGES,
    TGI,
    arguments_at,
    program_of,
    request_of,
)
from longboat.cli.plan.plan_options import PlanRequest
from longboat.core.errors import UserInputError
from longboat.engines.vllm.flags import ARGUMENTS, is_on
from longboat.spec.types.engine_env import OURS, SET_BY_LONGBOAT
from longboat.spec.types.fleet import MODEL_NAME
from longboat.spec.types.section import is_loopback
from longboat.spec.types.source import BARE_HUB, name_from_source

__all__ = ("fleet_of_command",)

HINT = 'write it as in a shell: "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2", or name a compose file'
SECRET_WORDS = frozenset(("token", "key", "secret", "password", "credentials"))
"""Words of a flag whose value is not copied."""
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
SHELL_WORD = re.compile(r"\d?[<>].*|[|&;].*")
VARIABLE = re.compile(r"\$[A-Za-z_{(]")
SECRET_FLAGS = ("--api-key", "--api_key", "--hf-token", "--hf_token")
SGLANG_IMAGE = re.compile(r"(^|/)sglang(:|@|$)")
DOCKER_VALUES = {"-e": "env", "--env": "env", "-p": "port", "--publish": "port"}
TASKS = {"embed": "embed", "classify": "classify", "reward": "reward", "score": "rerank"}
METHODS = {"": "draft", "draft_model": "draft", "ngram": "ngram", "eagle": "eagle", "eagle3": "eagle3", "mtp": "mtp"}
SPECULATIVE = {"method": "method", "num_speculative_tokens": "tokens", "model": "model", "prompt_lookup_max": "lookup"}
READ_ELSEWHERE = frozenset(
    [
        "--model",
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--enable-expert-parallel",
    ]
)
"""Flags of the model and the split, which ``request_of`` reads."""
ADAPTERS = {"--max-loras": "slots", "--max-cpu-loras": "held", "--max-lora-rank": "rank"}


@dataclass
class _Fleet:
    """The parts of the file, filled flag by flag."""

    model: dict[str, Any] = field(default_factory=dict)
    gateway: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # that clients send
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # what the file does not do, and why
    told: dict[str, str] = field(default_factory=dict)  # what flags say of the model and its size (``Server.parts``)

    def leave_out(self, what: str, why: str) -> None:
        """Note a part of the command that the file does not have."""
        self.left_out.append(f"{what}: {why}")


def fleet_of_command(command: str, *, env: Mapping[str, str], folder: str, host: str = "", port: int = 0) -> str:
    """Return the text of the fleet file. Raises UserInputError for a command that starts no engine, or cannot be read.

    command: of vLLM, SGLang, llama.cpp or TGI; or the text of a compose file with one of them

    env: the shell's variables, of which the file names secrets; folder: where relative paths start
    host, port: to listen on, in place of the command's
    """
    words = _words(command)
    server = server_of(program_of(words))
    if server is None:
        raise UserInputError("--from holds no command that starts the server of a known engine", hint=HINT)
    start = arguments_at(words)
    fleet = _Fleet()
    args = [*_given_by_variables(server, words[:start]), *words[start:]]
    for flag, group in _groups(server, args):
        _read(fleet, server, flag, group, env)
    _read_start(fleet, server, words[:start], env)  # an address outside its container counts
    fleet.gateway |= {name: value for name, value in (("host", host), ("port", port)) if value}
    whole = shlex.join([*words[:start], *args])
    source, request = _of_tgi(fleet) if server.kind == "tgi" else request_of(whole, PlanRequest())
    if "repository" in fleet.told:
        source = _hub_file(fleet)
    sizes = {"tensor": request.tensor, "pipeline": request.pipeline, "data": request.data}
    split: dict[str, Any] = {name: size for name, size in sizes.items() if size > 1}
    if is_on("--enable-expert-parallel", args) or fleet.told.get("expert", "1") != "1":
        split["expert"] = True
    if split:
        fleet.model["split"] = split
    if request.context:
        fleet.model["context"] = request.context
    return _text(fleet, server, source, folder)


def _of_tgi(fleet: _Fleet) -> tuple[str, PlanRequest]:
    """Return the model and its size, as TGI's flags give them."""
    numbers = {"tensor": fleet.told.get("tensor", ""), "context": fleet.told.get("context", "")}
    for name, text in numbers.items():
        if text and not text.isdigit():
            raise UserInputError(f"{name} {text!r} is not a whole number", hint="write it in digits")
    if not fleet.told.get("model"):
        raise UserInputError(f"{TGI} names no model", hint=f"write it as you start it: {TGI} --model-id Qwen/Qwen3-8B")
    return fleet.told["model"], PlanRequest(tensor=int(numbers["tensor"] or 0), context=int(numbers["context"] or 0))


def _hub_file(fleet: _Fleet) -> str:
    """Return the source of the file that llama.cpp fetches from the hub."""
    repository, _, mix = fleet.told["repository"].partition(":")
    if file := fleet.told.get("file"):
        return f"hf:{repository}:{file}"
    what = f"llama-server chooses a file of {repository} for {mix or 'Q4_K_M'}, and a fleet file names it"
    raise UserInputError(what, hint="add its name as the hub shows it: --hf-file FILE.gguf")


def _given_by_variables(server: Server, words: Sequence[str]) -> list[str]:
    """Return the flags for which environment variables stand."""
    pairs = (_docker_word(word).removeprefix("-e=").removeprefix("--env=").partition("=") for word in words)
    known = ((server.variables[name], value) for name, equals, value in pairs if equals and name in server.variables)
    return [word for pair in known for word in pair]


def _words(command: str) -> list[str]:
    """Return the words of one command: without comments, and up to what its shell would do with its output."""
    words = words_of_compose(command)
    if words is None:
        lines = (line for line in command.splitlines() if not line.lstrip().startswith("#"))
        joined = re.sub(r"\\[ \t]*(\n|$)", " ", "\n".join(lines))
        try:
            words = shlex.split(joined)
        except ValueError as error:
            raise UserInputError(f"the command cannot be read: {error}", hint="write it as in a shell") from None
    start = arguments_at(words) if program_of(words) else 0
    end = next((at for at in range(start, len(words)) if SHELL_WORD.fullmatch(words[at])), len(words))
    for before, word in zip(["", *words[start:end]], words[start:end], strict=False):
        if VARIABLE.search(word) and not word.startswith(SECRET_FLAGS) and before not in SECRET_FLAGS:
            raise UserInputError(f"the command holds a variable of a shell: {word}", hint="write its value")
    return words[:end]


def _read_start(fleet: _Fleet, server: Server, words: Sequence[str], env: Mapping[str, str]) -> None:
    """Read what comes before the arguments: variables, and what docker or podman was given."""
    is_container = any(word.rpartition("/")[2] in CONTAINERS for word in words[:3])
    if is_container:
        words = words[: _image_at(words) + 1]
    at, others = 0, []
    while at < len(words):
        name, equals, value = _docker_word(words[at]).partition("=")
        kind = DOCKER_VALUES.get(name) if is_container else None
        if kind and not equals:
            at += 1
            value = words[at] if at < len(words) else ""
        if kind == "port":
            _publish(fleet, value)
        elif kind == "env" or (not is_container and ASSIGNMENT.match(words[at])):
            _variable(fleet, server, value if kind else words[at], env)
        else:
            others.append(words[at])
        at += 1
    if is_container:
        options = shlex.join(others[2:-1])
        if options:
            fleet.leave_out(options, "engines are processes of the nodes; paths are the nodes' own")
        why = f"longboat engines install {server.kind} makes the environment; engine.version chooses one"
        fleet.leave_out(others[-1], why if server.kind != "tgi" else "engine.environment names a folder that has TGI")


def _image_at(words: Sequence[str]) -> int:
    """Return the place of the image among the words before the arguments of its program."""
    known = (*IMAGES.values(), SGLANG_IMAGE)
    found = (at for at, word in enumerate(words) if any(image.search(word) for image in known))
    return next(found, len(words) - 1)


def _docker_word(word: str) -> str:
    """Return ``-e=NAME=VALUE`` for docker's ``-eNAME=VALUE``, whose value may be a secret, and likewise for ``-p``."""
    return f"{word[:2]}={word[2:]}" if word[:2] in DOCKER_VALUES and word[2:3] not in ("", "=") else word


def _publish(fleet: _Fleet, value: str) -> None:
    *host, port, _ = ("", *value.split(":")) if ":" in value else ("", value, "")
    if port.isdigit():
        fleet.gateway["port"] = int(port)
    if host and host[-1]:
        fleet.gateway["host"] = host[-1]


def _variable(fleet: _Fleet, server: Server, word: str, env: Mapping[str, str]) -> None:
    name, _, value = word.partition("=")
    if name in server.variables:
        return
    if name in SET_BY_LONGBOAT or name.startswith(OURS):
        fleet.leave_out(name, "Longboat sets it itself; split, placement and resources decide it")
    elif "=" in word and not SECRET.search(name) and "$" not in value:
        fleet.env[name] = value
    elif name in env:
        fleet.env[name] = f"${{{name}}}"
    else:
        fleet.leave_out(name, f"export it, then write engine.env: {{{name}: ${{{name}}}}}")


def _groups(server: Server, args: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag in its first spelling, with its word and those that follow it up to the next flag."""
    group: list[str] = []
    for word in args:
        if _flag(server, word):
            if group:
                yield _flag(server, group[0]), group
            group = [word]
        elif group:
            group.append(word)
    if group:
        yield _flag(server, group[0]), group


def _flag(server: Server, word: str) -> str:
    return (server.spelling(word.partition("=")[0]) if word.startswith("-") else None) or ""


def _read(fleet: _Fleet, server: Server, flag: str, group: list[str], env: Mapping[str, str]) -> None:
    word, equals, first = group[0].partition("=")
    values = [*([first] if equals else []), *group[1:]]
    value = values[0] if values else ""
    match server.parts.get(flag):
        case "name":
            fleet.names.extend(values)
        case "host":
            fleet.gateway["host"] = value
        case "port" if value.isdigit():
            fleet.gateway["port"] = int(value)
        case "key":
            _key(fleet, word)
        case "token":
            _variable(fleet, server, "HF_TOKEN", env)
        case "embed":
            fleet.model["task"] = "embed"
        case str(part) if part != "port":
            fleet.told[part] = value
        case None if server.kind == "vllm":
            _read_vllm(fleet, server, flag, group, values)
        case _:
            _other(fleet, server, flag, group)


def _key(fleet: _Fleet, word: str) -> None:
    fleet.gateway["auth"] = "keys"
    fleet.leave_out(word, "longboat keys create --tenant default makes keys for clients")


def _other(fleet: _Fleet, server: Server, flag: str, group: list[str]) -> None:
    """Read a flag that has no field: it stays a flag of the engine, or is left out."""
    word, equals, first = group[0].partition("=")
    if why := server.why_not(flag):
        fleet.leave_out(word, why)
    elif SECRET_WORDS & set(flag.strip("-").split("-")):
        fleet.leave_out(word, "a secret is not copied: give it to the engine by a variable of engine.env")
    else:
        fleet.args += [word, first, *group[1:]] if equals and server.kind == "llama.cpp" else group


def _read_vllm(fleet: _Fleet, server: Server, flag: str, group: list[str], values: list[str]) -> None:
    """Read a flag that is vLLM's alone, or that only a vLLM model has a field for."""
    word, value = group[0].partition("=")[0], values[0] if values else ""
    if flag in READ_ELSEWHERE and (flag != "--data-parallel-size" or word in ("-dp", flag, flag.replace("-", "_"))):
        return
    match flag:
        case "--max-model-len" if value and value.lower() not in ("-1", "auto"):
            return
        case "--enable-lora" | "--max-loras" | "--max-cpu-loras" | "--max-lora-rank" | "--lora-modules":
            _adapters(fleet, flag, word, values)
        case "--speculative-config":
            _speculative(fleet, word, value)
        case "--convert" | "--task" if value in TASKS:
            fleet.model["task"] = TASKS[value]
        case "--runner" | "--task" if value in ("generate", "auto"):
            return
        case "--allowed-media-domains":
            fleet.model["media"] = {"domains": values}
        case _:
            _other(fleet, server, flag, group)


def _adapters(fleet: _Fleet, flag: str, word: str, values: Sequence[str]) -> None:
    if word.startswith("--no"):
        return
    adapters = fleet.model.setdefault("adapters", {"slots": 1})
    if flag in ADAPTERS and values:
        adapters[ADAPTERS[flag]] = ARGUMENTS.number_in(values[0]) or values[0]
    for value in values if flag == "--lora-modules" else ():
        given = _object(value) or dict(zip(("name", "path"), value.split("=", 1), strict=False))
        name, path = str(given.get("name", "")), str(given.get("path", ""))
        if path.startswith("/"):
            adapters.setdefault("entries", []).append({"name": name, "source": path})
        else:
            fleet.leave_out(f"{word} {value}", "an adapter is a folder: copy it to the nodes, and write its path")


def _speculative(fleet: _Fleet, word: str, value: str) -> None:
    given = _object(value)
    method = METHODS.get(str(given.get("method", "")))
    if not given or method is None:
        fleet.leave_out(f"{word} {value}", "the methods are ngram, draft, eagle, eagle3 and mtp")
        return
    found = {SPECULATIVE[key]: item for key, item in given.items() if key in SPECULATIVE}
    if "model" in found:
        found["model"] = _source(str(found["model"]), "/")
    fleet.model["speculative"] = {**found, "method": method}
    if others := [key for key in given if key not in SPECULATIVE]:
        fleet.leave_out(f"{word}: {', '.join(others)}", "speculative has no such field")


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _source(model: str, folder: str) -> str:
    if model.startswith(("/", "hf:", "builtin:")) or "://" in model:
        return model
    return f"hf:{model}" if BARE_HUB.fullmatch(model) else str(PurePosixPath(folder, model))


def _text(fleet: _Fleet, server: Server, model: str, folder: str) -> str:
    source = _source(model, folder)
    names = fleet.names or ([] if server.kind == "llama.cpp" else [model])
    name = next((name for name in names if MODEL_NAME.fullmatch(name)), name_from_source(source))
    engine: dict[str, Any] = {"kind": server.kind} if server.kind != "vllm" else {}
    engine |= {"args": fleet.args} if fleet.args else {}
    engine |= {"env": fleet.env} if fleet.env else {}
    gateway = {"host": "127.0.0.1", "port": server.port, **fleet.gateway}
    if "host" not in fleet.gateway and not is_loopback(server.host):
        fleet.leave_out("every address of the machine", "host: 0.0.0.0 with auth: keys listens there")
    elif not is_loopback(gateway["host"]) and "auth" not in gateway:
        gateway["auth"] = "keys"
        fleet.leave_out(f"host {gateway['host']} without keys", "write auth: none to let everyone in")
    others = [other for other in dict.fromkeys(names) if other != name and not other.startswith((".", "/"))]
    others += ["tgi"] if server.kind == "tgi" else []  # the name that its guides give clients
    if others:
        gateway["aliases"] = [{"name": other, "model": name} for other in others]
    entry = {"name": name, "source": source, **fleet.model, **({"engine": engine} if engine else {})}
    document = {"apiVersion": "longboat/v1", "name": "longboat", "models": [entry], "gateway": gateway}
    lines = [f"# left out: {line}" for line in fleet.left_out]
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
    return "\n".join([f"# longboat init --from wrote this file from a command of {server.title}.", *lines, body])
