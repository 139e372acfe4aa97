"""Options that ``plan``, ``fit`` and ``cost`` share, and a group whose first word may be a model."""

from __future__ import annotations

import gc
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from longboat.cli.plan.inputs.numbers import count, rate, share, tokens
from longboat.cli.shared.command_list import CommandList
from longboat.core.errors import UserInputError
from longboat.core.plan import EngineMemory

if TYPE_CHECKING:
    from longboat.planner.machines.cluster_edits import Edits
    from longboat.planner.memory.split_shape import AskedSplit

__all__ = ("Json", "ModelGroup", "ModelName", "PlanRequest", "check_numbers", "takes_request", "version_of")

VERSION = re.compile(r"v?(\d+(?:\.\d+){1,3})(?:[.+-].*)?")
MAX_DEGREE = 64
MAX_BURSTINESS = 1000.0
MAX_RATE = 1e6

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name of the catalog or the hub, a folder, config.json or GGUF file; or the command that serves it: "
        '"vllm serve …".',
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _option(name: str, text: str, *more: str, shown: bool = False, read: Callable[[str], float] | None = None) -> Any:
    """Return an option. read: from what is written to the number, where that is more than digits."""
    metavar = read.__name__.upper() if read else None
    return typer.Option(name, *more, help=text, show_default=shown, parser=read, metavar=metavar)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The machines, the load and the split that a command plans for, as they were given."""

    on: Annotated[
        str,
        _option(
            "--on",
            'Machines: "4x(2xRTX4090), net=10GbE", a cluster file, here or live; also "any of: 8xH100, 4xL40S".',
        ),
    ] = ""
    add: Annotated[list[str] | None, _option("--add", 'More nodes: "1x(2xRTX4090)". May be repeated.')] = None
    remove: Annotated[
        list[str] | None, _option("--remove", 'A node\'s number, "1x(2xRTX4090)" or A4000. May be repeated.')
    ] = None
    swap: Annotated[
        list[str] | None, _option("--swap", "1:A4000 for all of node 1, or A5000:A4000. May be repeated.")
    ] = None
    net: Annotated[str, _option("--net", "Another network between nodes.")] = ""
    os: Annotated[str, _option("--os", "Another system: linux, wsl2, windows or macos.")] = ""
    engine: Annotated[str, _option("--engine", "Another engine: vllm, sglang or llamacpp.")] = ""
    engine_version: Annotated[str, _option("--engine-version", "Another version of the engine: 0.11.2.")] = ""
    context: Annotated[int, _option("--context", "Longest request in tokens; else prompt and output.", read=tokens)] = 0
    concurrency: Annotated[
        int, _option("--concurrency", "Concurrent requests: 64 or 1k.", "--users", shown=True, read=count)
    ] = 8
    rate: Annotated[
        float, _option("--rate", "Requests a second, instead of --concurrency: 5 or 300/min.", read=rate)
    ] = 0.0
    burstiness: Annotated[
        float,
        _option("--burstiness", "How uneven arrivals are: 0 even, 1 independent, more: bursts.", shown=True),
    ] = 1.0
    prompt_tokens: Annotated[int, _option("--prompt-tokens", "Tokens of a prompt.", shown=True, read=tokens)] = 1024
    output_tokens: Annotated[int, _option("--output-tokens", "Tokens of a response.", shown=True, read=tokens)] = 256
    prefix_share: Annotated[
        float, _option("--prefix-share", "Share of the prompts' tokens that the prefix cache has: 0.6.", read=share)
    ] = 0.0
    slo: Annotated[str, _option("--slo", "Limits: ttft=500ms,itl=50ms.")] = ""
    quantization: Annotated[
        str, _option("--quantization", "Formats to choose from: q4, fp8, awq; else as stored.", "-q")
    ] = ""
    kv_bits: Annotated[int, _option("--kv-bits", "Bits of a number in the cache: 16 or 8.", shown=True)] = 16
    tensor: Annotated[int, _option("--tensor", "Ranks of each stage; else the best.")] = 0
    pipeline: Annotated[int, _option("--pipeline", "Stages of a replica; else the best.")] = 0
    data: Annotated[int, _option("--data", "Data-parallel parts of a stage; else the best.")] = 0
    expert_parallel: Annotated[
        bool, _option("--expert-parallel", "Assign whole experts to ranks instead of sharding each.")
    ] = False
    catalog: Annotated[list[Path] | None, _option("--catalog", "A catalog file of your own. May be repeated.")] = None
    offline: Annotated[bool, _option("--offline", "Never ask the hub.")] = False

    @property
    def edits(self) -> Edits:
        """Changes to the machines of ``--on``."""
        from longboat.planner.machines.cluster_edits import Edits

        return Edits(
            add=tuple(self.add or ()),
            remove=tuple(self.remove or ()),
            swap=tuple(self.swap or ()),
            network=self.net,
            os=self.os,
            engine=self.engine,
        )

    @property
    def settings(self) -> EngineMemory:
        """The engine's settings, as far as options give them."""
        return EngineMemory(kv_bits=self.kv_bits, version=version_of(self.engine_version))

    @property
    def split(self) -> AskedSplit:
        """The split that is asked for."""
        from longboat.planner.memory.split_shape import AskedSplit

        return AskedSplit(
            tensor=self.tensor,
            pipeline=self.pipeline,
            data=self.data,
            expert_parallel=self.expert_parallel or None,
        )


def takes_request(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of ``PlanRequest``, but for those that are left out, as its argument ``request``."""
    hints = get_type_hints(PlanRequest, include_extras=True)
    given = [field for field in fields(PlanRequest) if field.name not in left_out]
    own = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in given
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        told = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "request"]
        first = [one for one in told if one.default is one.empty]
        rest = [one.replace(kind=one.KEYWORD_ONLY) for one in told if one.default is not one.empty]

        @wraps(command)
        def run(**values: Any) -> None:
            request = PlanRequest(**{field.name: values.pop(field.name) for field in given})
            with _uncollected():
                command(request=request, **values)

        parameters = [*first, *own, *rest]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leave cycles of objects uncollected: a plan lasts a second and makes few, and looking for them takes a tenth."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class ModelGroup(CommandList):
    """``longboat plan Qwen3-32B`` is ``longboat plan model Qwen3-32B``."""

    default_command = "model"

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the way the group is used most: a model in place of a command."""
        return ["MODEL --on MACHINES [OPTIONS]"]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Treat a first word that is not a command as the model."""
        known = args and (args[0] in self.commands)
        return super().resolve_command(ctx, args if known else [self.default_command, *args])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give options before the model to the command, but for --help."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)


def version_of(text: str) -> tuple[int, ...]:
    """Read ``0.11.2`` or ``v0.11``. Raises UserInputError."""
    found = VERSION.fullmatch(text.strip())
    if text and found is None:
        raise UserInputError(f"--engine-version {text!r} is not a version", hint="--engine-version 0.11.2")
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def check_numbers(request: PlanRequest) -> None:
    """Raise UserInputError for the first number that cannot be planned, with its limit."""
    for name in ("concurrency", "prompt_tokens", "output_tokens"):
        option, value = f"--{name.replace('_', '-')}", getattr(request, name)
        if value < 1:
            raise UserInputError(f"{option} {value} is less than 1", hint=f"{option} 1 is the least")
    if not 0 <= request.rate < MAX_RATE:
        raise UserInputError(f"--rate {request.rate:g} is not between 0 and {MAX_RATE:g}", hint="--rate 5")
    if not 0 <= request.burstiness <= MAX_BURSTINESS:
        raise UserInputError(
            f"--burstiness {request.burstiness:g} is not between 0 and {MAX_BURSTINESS:g}", hint="--burstiness 4"
        )
    if not 0 <= request.prefix_share < 1:
        raise UserInputError(
            f"--prefix-share {request.prefix_share:g} is not a share between 0 and 1", hint="--prefix-share 0.6"
        )
    tokens = request.prompt_tokens + request.output_tokens
    if request.context and request.context < tokens:
        raise UserInputError(
            f"--context {request.context} is shorter than a request of --prompt-tokens {request.prompt_tokens} and "
            f"--output-tokens {request.output_tokens}",
            hint=f"--context {tokens}, or fewer --prompt-tokens",
        )
    for name, degree in (("tensor", request.tensor), ("pipeline", request.pipeline), ("data", request.data)):
        if not 0 <= degree <= MAX_DEGREE:
            raise UserInputError(
                f"--{name} {degree} is not between 1 and {MAX_DEGREE}", hint=f"--{name} 2, or leave it out"
            )
    if request.kv_bits not in (8, 16):
        raise UserInputError(f"--kv-bits {request.kv_bits} cannot be planned", hint="--kv-bits 16 or 8")
