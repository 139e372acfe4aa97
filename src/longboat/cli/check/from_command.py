"""The fleet file that does what a vLLM command does, with the reason for each part that it leaves out. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import yaml

from longboat.cli.plan.inputs.running_command import ASSIGNMENT, arguments_at, program_of, request_of
from longboat.cli.plan.plan_options import PlanRequest
from longboat.core.errors import UserInputError
from longboat.engines.vllm.flags import ARGUMENTS, is_on
from longboat.spec.types.engine_env import OURS, SET_BY_LONGBOAT
from longboat.spec.types.fleet import MODEL_NAME
from longboat.spec.types.section import is_loopback
from longboat.spec.types.source import BARE_HUB, name_from_source

__all__ = ("fleet_of_command",)

HINT = 'write it as in a shell: "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2"'
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD")
SHELL_WORD = re.compile(r"\d?[<>].*|[|&;].*")
VARIABLE = re.compile(r"\$[A-Za-z_{(]")
SECRET_FLAGS = ("--api-key", "--api_key", "--hf-token", "--hf_token")
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

    def leave_out(self, what: str, why: str) -> None:
        """Note a part of the command that the file does not have."""
        self.left_out.append(f"{what}: {why}")


def fleet_of_command(command: str, *, env: Mapping[str, str], folder: str, host: str = "", port: int = 0) -> str:
    """Return the text of the fleet file. Raises UserInputError for a command that starts no vLLM, or cannot be read.

    env: the shell's variables, of which the file names secrets; folder: where relative paths start
    host, port: to listen on, in place of the command's
    """
    words = _words(command)
    if not program_of(words).startswith("vllm"):
        raise UserInputError("--from holds no command that starts vLLM's server", hint=HINT)
    start = arguments_at(words)
    source, request = request_of(shlex.join(words), PlanRequest())
    fleet = _Fleet()
    args = words[start:]
    for flag, group in _groups(args):
        _read(fleet, flag, group, env)
    _read_start(fleet, words[:start], env)  # an address outside its container counts
    fleet.gateway |= {name: value for name, value in (("host", host), ("port", port)) if value}
    sizes = {"tensor": request.tensor, "pipeline": request.pipeline, "data": request.data}
    split: dict[str, Any] = {name: size for name, size in sizes.items() if size > 1}
    if is_on("--enable-expert-parallel", args):
        split["expert"] = True
    if split:
        fleet.model["split"] = split
    if request.context:
        fleet.model["context"] = request.context
    return _text(fleet, source, folder)


def _words(command: str) -> list[str]:
    """Return the words of one command: without comments, and up to what its shell would do with its output."""
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


def _read_start(fleet: _Fleet, words: Sequence[str], env: Mapping[str, str]) -> None:
    """Read what comes before the arguments: variables, and what docker or podman was given."""
    is_container = any(word.rpartition("/")[2] in ("docker", "podman", "nerdctl") for word in words[:3])
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
            _variable(fleet, value if kind else words[at], env)
        else:
            others.append(words[at])
        at += 1
    if is_container:
        options = shlex.join(others[2:-1])
        if options:
            fleet.leave_out(options, "engines are processes of the nodes; paths are the nodes' own")
        fleet.leave_out(others[-1], "longboat engines install vllm makes the environment; engine.version chooses one")


def _docker_word(word: str) -> str:
    """Return ``-e=NAME=VALUE`` for docker's ``-eNAME=VALUE``, whose value may be a secret, and likewise for ``-p``."""
    return f"{word[:2]}={word[2:]}" if word[:2] in DOCKER_VALUES and word[2:3] not in ("", "=") else word


def _publish(fleet: _Fleet, value: str) -> None:
    *host, port, _ = ("", *value.split(":")) if ":" in value else ("", value, "")
    if port.isdigit():
        fleet.gateway["port"] = int(port)
    if host and host[-1]:
        fleet.gateway["host"] = host[-1]


def _variable(fleet: _Fleet, word: str, env: Mapping[str, str]) -> None:
    name, _, value = word.partition("=")
    if name in SET_BY_LONGBOAT or name.startswith(OURS):
        fleet.leave_out(name, "Longboat sets it itself; split, placement and resources decide it")
    elif "=" in word and not SECRET.search(name) and "$" not in value:
        fleet.env[name] = value
    elif name in env:
        fleet.env[name] = f"${{{name}}}"
    else:
        fleet.leave_out(name, f"export it, then write engine.env: {{{name}: ${{{name}}}}}")


def _groups(args: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag in its first spelling, with its word and those that follow it up to the next flag."""
    group: list[str] = []
    for word in args:
        if ARGUMENTS.spelling(word) is not None:
            if group:
                yield ARGUMENTS.spelling(group[0]) or "", group
            group = [word]
        elif group:
            group.append(word)
    if group:
        yield ARGUMENTS.spelling(group[0]) or "", group


def _read(fleet: _Fleet, flag: str, group: list[str], env: Mapping[str, str]) -> None:
    word, equals, first = group[0].partition("=")
    values = [*([first] if equals else []), *group[1:]]
    value = values[0] if values else ""
    if flag in READ_ELSEWHERE and (flag != "--data-parallel-size" or word in ("-dp", flag, flag.replace("-", "_"))):
        return
    match flag:
        case "--served-model-name":
            fleet.names.extend(values)
        case "--max-model-len" if value and value.lower() not in ("-1", "auto"):
            return
        case "--host":
            fleet.gateway["host"] = value
        case "--port" if value.isdigit():
            fleet.gateway["port"] = int(value)
        case "--api-key":
            fleet.gateway["auth"] = "keys"
            fleet.leave_out(word, "longboat keys create --tenant default makes keys for clients")
        case "--hf-token":
            _variable(fleet, "HF_TOKEN", env)
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
            if owner := ARGUMENTS.owner(flag):
                fleet.leave_out(word, ARGUMENTS.owned[owner])
            else:
                fleet.args += [f"{word}={first}", *group[1:]] if equals else group


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


def _text(fleet: _Fleet, model: str, folder: str) -> str:
    source = _source(model, folder)
    names = fleet.names or [model]
    name = next((name for name in names if MODEL_NAME.fullmatch(name)), name_from_source(source))
    engine: dict[str, Any] = {"args": fleet.args} if fleet.args else {}
    engine |= {"env": fleet.env} if fleet.env else {}
    gateway = {"host": "127.0.0.1", "port": 8000, **fleet.gateway}
    if "host" not in fleet.gateway:
        fleet.leave_out("every address of the machine", "host: 0.0.0.0 with auth: keys listens there")
    elif not is_loopback(gateway["host"]) and "auth" not in gateway:
        gateway["auth"] = "keys"
        fleet.leave_out(f"host {gateway['host']} without keys", "write auth: none to let everyone in")
    others = [other for other in dict.fromkeys(names) if other != name and not other.startswith((".", "/"))]
    if others:
        gateway["aliases"] = [{"name": other, "model": name} for other in others]
    entry = {"name": name, "source": source, **fleet.model, **({"engine": engine} if engine else {})}
    document = {"apiVersion": "longboat/v1", "name": "longboat", "models": [entry], "gateway": gateway}
    lines = [f"# left out: {line}" for line in fleet.left_out]
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
    return "\n".join(["# longboat init --from wrote this file from a vLLM command.", *lines, body])
