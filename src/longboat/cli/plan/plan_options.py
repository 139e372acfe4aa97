"""Options that ``plan``, ``fit`` and ``cost`` share, and a group whose first word may be a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

__all__ = (
    "Add",
    "Catalog",
    "Context",
    "Expert",
    "Json",
    "KvBits",
    "ModelGroup",
    "ModelName",
    "Net",
    "Offline",
    "On",
    "Os",
    "Output",
    "Pipeline",
    "Prompt",
    "Quantization",
    "Remove",
    "Runtime",
    "SloText",
    "Swap",
    "Tensor",
    "Users",
)

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name of the catalog or the hub, a folder, config.json or GGUF file.")
]
On = Annotated[
    str, typer.Option("--on", help='Machines: "4x(2xRTX4090), net=10GbE", a cluster file, or live.', show_default=False)
]
Add = Annotated[list[str] | None, typer.Option("--add", help='More nodes: "1x(2xRTX4090)". May be repeated.')]
Remove = Annotated[
    list[str] | None, typer.Option("--remove", help='A node\'s number, "1x(2xRTX4090)" or A4000. May be repeated.')
]
Swap = Annotated[
    list[str] | None, typer.Option("--swap", help="1:A4000 for all of node 1, or A5000:A4000. May be repeated.")
]
Net = Annotated[str, typer.Option("--net", help="Another network between nodes.", show_default=False)]
Os = Annotated[str, typer.Option("--os", help="Another system: linux, wsl2, windows or macos.", show_default=False)]
Runtime = Annotated[
    str, typer.Option("--runtime", help="Another engine: vllm, sglang or llamacpp.", show_default=False)
]
Context = Annotated[
    int,
    typer.Option("--context", help="Longest request in tokens; else prompt and output.", show_default=False),
]
Users = Annotated[int, typer.Option("--users", help="Requests under way at once.")]
Prompt = Annotated[int, typer.Option("--prompt", help="Tokens of a prompt.")]
Output = Annotated[int, typer.Option("--output", help="Tokens of an answer.")]
SloText = Annotated[str, typer.Option("--slo", help="Limits: ttft=500ms,itl=50ms.", show_default=False)]
Quantization = Annotated[
    str,
    typer.Option(
        "--quantization",
        "-q",
        help="Formats to choose from: q4, fp8, awq; else as stored.",
        show_default=False,
    ),
]
KvBits = Annotated[int, typer.Option("--kv-bits", help="Bits of a number in the cache: 16 or 8.")]
Tensor = Annotated[int, typer.Option("--tensor", help="Ranks of each stage; else the best.", show_default=False)]
Pipeline = Annotated[int, typer.Option("--pipeline", help="Stages of a replica; else the best.", show_default=False)]
Expert = Annotated[bool, typer.Option("--expert-parallel", help="Divide experts by copies, not cut.")]
Catalog = Annotated[list[Path] | None, typer.Option("--catalog", help="A catalog file of your own; may be repeated.")]
Offline = Annotated[bool, typer.Option("--offline", help="Ask no hub.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


class ModelGroup(TyperGroup):
    """``longboat plan Qwen3-32B`` is ``longboat plan model Qwen3-32B``."""

    default_command = "model"

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A first word that is no command is the model."""
        known = args and (args[0] in self.commands)
        return super().resolve_command(ctx, args if known else [self.default_command, *args])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options before the model are the command's, but for --help."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)
