"""What an engine's parsers of tool calls said, as the probe of their tests prints it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

__all__ = ("steady_ends",)

SRC = Path(__file__).parents[2] / "src"


def steady_ends(python: object, probe: Path, *words: str, **environment: str) -> dict[str, dict[str, list[str]]]:
    """Run a probe, and return parser → index of a call → its name and arguments, at the end of the text.

    Each parser must have said the same words at each point, and the first call must be whole.
    """
    env = {**os.environ, "PYTHONPATH": str(SRC), **environment}
    command = [str(python), str(probe), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    ends = {}
    for name, one in found.items():
        assert one["unsteady"] == 0, (name, one)
        (end,) = one["end"]
        ends[name] = json.loads(end)
        assert ends[name]["0"][0] == "row"
        assert json.loads(ends[name]["0"][1])["o"] == {"k": True, "m": None}
    return ends
