"""The example package that adds MLX: installed into a folder of its own, as pip would do it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import uv

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "longboat-mlx"


def install_package(folder: Path) -> None:
    """Build the package and install it into ``folder``; nothing is fetched."""
    words = ("pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation", "--python", sys.executable)
    subprocess.run([uv.find_uv_bin(), *words, "--target", str(folder), str(EXAMPLE)], check=True, timeout=120)
