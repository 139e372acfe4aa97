"""Writes every lock of the project anew: ``make lock``; ``make lock UPGRADE=1`` also moves to newer versions."""

from __future__ import annotations

import os
import sys
import tempfile
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from longboat.engines.environments.engine_lock import TORCH_CPU_VARIABLE, Uv, lock_path, recipe_of, resolve  # noqa: E402
from longboat.engines.environments.package_sources import package_sources  # noqa: E402
from longboat.engines.registry import installable  # noqa: E402

EXTRAS = ("cluster", "kv-events", "oidc", "redis", "tracing")
REQUIREMENTS = {
    "bootstrap": ("requirements/bootstrap.in",),
    "site": ("requirements/site.in",),
    "peft": ("--no-deps", "requirements/peft.in"),
    "dev": ("pyproject.toml", "requirements/dev.in", *(f"--extra={name}" for name in EXTRAS)),
}
OPTIONS = ("--generate-hashes", "--universal", "--python-version", "3.11", "--no-emit-index-url", "--no-header")


def lock_requirements(uv: Uv, *, upgrade: bool) -> None:
    """The locks of Longboat's own environment, for every Python and system it supports."""
    for name, inputs in REQUIREMENTS.items():
        output = f"requirements/{name}.txt"
        more = ("--upgrade",) if upgrade else ()
        uv.run("pip", "compile", "--quiet", *OPTIONS, *more, *inputs, "--output-file", output, deadline_s=600.0)
        print(output)


def lock_longboat(uv: Uv) -> None:
    """The lock of Longboat with Ray and sign-in, by which hosts of a cluster install; versions are those of ``dev``."""
    output = "src/longboat/hosts/longboat.lock"
    extras = ("--extra=cluster", "--extra=oidc")
    words = ("pyproject.toml", *extras, "--no-annotate", "--constraint", "requirements/dev.txt")
    uv.run("pip", "compile", "--quiet", *OPTIONS, *words, "--output-file", output, deadline_s=600.0)
    print(output)


def lock_engines(uv: Uv, *, upgrade: bool) -> None:
    """The locks of the engine environments that Longboat ships."""
    for kind in installable():
        recipe = recipe_of(kind)
        for version, platform in product((recipe.version, *recipe.older), recipe.distributions):
            output = lock_path(kind, version, platform)
            with tempfile.TemporaryDirectory() as folder:
                fresh = Path(folder) / output.name
                resolve(kind, version, platform, fresh, uv, keep=output if output.exists() and not upgrade else None)
                output.write_text(fresh.read_text())
            print(output.relative_to(ROOT))


def main() -> None:
    """Lock everything."""
    os.chdir(ROOT)
    uv = Uv.found(package_sources(), os.environ.get(TORCH_CPU_VARIABLE, ""))
    upgrade = bool(os.environ.get("UPGRADE"))
    lock_requirements(uv, upgrade=upgrade)
    lock_longboat(uv)
    lock_engines(uv, upgrade=upgrade)


if __name__ == "__main__":
    main()
