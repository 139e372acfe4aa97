"""Makes locks of engine environments, and runs uv, which resolves and installs them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from longboat.core.errors import TransferError, UserInputError
from longboat.engines.contract import InstallRecipe
from longboat.engines.environments.package_sources import PackageSources
from longboat.engines.registry import adapter_for, installable

__all__ = (
    "ENGINE_PYTHON",
    "TORCH_CPU_VARIABLE",
    "Uv",
    "check_torch_cpu",
    "lock_path",
    "num_packages",
    "recipe_of",
    "resolve",
    "shipped_lock",
    "with_torch_cpu",
)

ENGINE_PYTHON = "3.11"
"""Python version of the engine environments; the locks hold wheels for it."""

TORCH_CPU_VARIABLE = "LONGBOAT_TORCH_CPU"

_RESOLVE_DEADLINE_S = 600.0
_TAIL_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Uv:
    """The uv program and how it is called."""

    program: str
    arguments: tuple[str, ...]  # package sources
    variables: Mapping[str, str] = field(default_factory=dict)  # added to the process's environment

    @classmethod
    def found(cls, sources: PackageSources, torch_cpu: str = "") -> Uv:
        """Return the uv that was installed with Longboat. torch_cpu: one more folder or index address to look in."""
        import uv

        found = with_torch_cpu(sources, torch_cpu)
        return cls(program=uv.find_uv_bin(), arguments=tuple(found.uv_arguments()), variables=found.uv_variables())

    def run(self, *words: str, deadline_s: float, stdin: str = "") -> str:
        """Run ``uv WORDS`` and return its output; ``uv pip`` commands get the package sources.

        Raises TransferError with uv's last lines where it fails or takes longer than ``deadline_s``.
        """
        sources = self.arguments if words[0] == "pip" else ()
        env = {**os.environ, **self.variables}
        env.pop("VIRTUAL_ENV", None)
        try:
            done = subprocess.run(
                [self.program, *words[:2], *sources, *words[2:]],
                input=stdin, capture_output=True, text=True, timeout=deadline_s, check=False, env=env,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            what = f"uv {' '.join(words[:2])} took longer than {deadline_s:.0f} s"
            raise TransferError(
                what, hint="check this machine's connection to the package index, and try again"
            ) from error
        if done.returncode != 0:
            tail = "\n".join(done.stderr.strip().splitlines()[-_TAIL_LINES:])
            raise TransferError(
                f"uv {' '.join(words[:2])} failed:\n{tail}", hint="fix the cause that uv reports, and try again"
            )
        return done.stdout


def lock_path(kind: str, version: str, platform: str) -> Path:
    """Return where the engine's package keeps its lock for a version. Raises UserInputError without a recipe."""
    return recipe_of(kind).locks / f"{kind}-{version}-{platform}.txt"


def shipped_lock(kind: str, version: str, platform: str) -> Path | None:
    """Return the lock that the engine's package has for a version, if there is one."""
    path = lock_path(kind, version, platform)
    return path if path.exists() else None


def recipe_of(kind: str) -> InstallRecipe:
    """Return how an engine is installed. Raises UserInputError where it is not, or there is no such engine."""
    if recipe := adapter_for(kind).recipe:
        return recipe
    raise UserInputError(f"engine {kind!r} is not installed", hint=f"installed are: {', '.join(installable())}")


def num_packages(lock: Path) -> int:
    """Return how many packages a lock pins."""
    return len(re.findall(r"^[a-z0-9._-]+==", lock.read_text(), flags=re.MULTILINE))


def check_torch_cpu(lock: Path, python: str, uv: Uv) -> None:
    """Check that the lock's CPU build of torch is available, before gigabytes of other packages are downloaded.

    Raises UserInputError where it is not found.
    """
    match = re.search(r"^torch==\S+(?: \\\n +--hash=\S+)+", lock.read_text(), flags=re.MULTILINE)
    if match is None or "+cpu" not in match[0]:
        raise UserInputError(f"{lock.name} does not pin a CPU build of torch", hint="use --platform cuda")
    words = ("pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--reinstall")
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(match[0] + "\n")
            file.flush()
            uv.run(*words, "--python", python, "-r", file.name, deadline_s=_RESOLVE_DEADLINE_S)
    except TransferError as error:
        version = match[0].split()[0]
        raise UserInputError(f"{version} is in none of this machine's package sources", hint=_torch_hint()) from error


def resolve(
    kind: str,
    version: str,
    platform: str,
    output: Path,
    uv: Uv,
    *,
    python: str = ENGINE_PYTHON,
    keep: Path | None = None,
) -> None:
    """Resolve an engine version to a lock with hashes.

    keep: a lock whose versions stay as they are
    Raises UserInputError where there is no such version for this platform, TransferError where resolving fails.
    """
    recipe = recipe_of(kind)
    if platform not in recipe.distributions:
        there = ", ".join(recipe.distributions)
        raise UserInputError(f"{kind} cannot be installed for {platform}", hint=f"--platform {there}")
    package = "\n".join((f"{recipe.distributions[platform]}=={version}", *recipe.also))
    excluded = (*recipe.excluded, *recipe.excluded_on.get(platform, ()))
    pinned = recipe.of_version if version == recipe.version else ()
    kept_names = {requirement.partition("==")[0] for requirement in pinned}
    overrides = [f"{name}; sys_platform == 'never'" for name in excluded if name not in kept_names]
    overrides += [*pinned, *recipe.replaced_on.get(platform, ())]
    kept = keep.read_text() if keep else ""
    if not recipe.pins_torch:
        output.write_text(_compiled(package, overrides, uv, python, kept))
        return
    torch = _torch_version(_compiled(package, overrides, uv, python, kept), package)
    # A plain "==" would also accept the CPU build where a folder of this machine offers it.
    overrides.append(f"torch=={torch}+cpu" if platform == "cpu" else f"torch=={torch},!={torch}+cpu")
    output.write_text(_compiled(package, overrides, uv, python, kept))


def _torch_version(lock: str, package: str) -> str:
    match = re.search(r"^torch==([0-9.]+)", lock, flags=re.MULTILINE)
    if match is None:
        raise UserInputError(f"{package} does not depend on torch", hint="choose another version")
    return match[1]


def _compiled(package: str, overrides: list[str], uv: Uv, python: str, kept: str) -> str:
    """Return the lock of ``package``. uv keeps what still fits of ``kept``, an earlier lock."""
    options = ("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links")
    with tempfile.TemporaryDirectory() as folder:
        override, output = Path(folder) / "overrides.txt", Path(folder) / "lock.txt"
        override.write_text("\n".join(overrides) + "\n")
        output.write_text(kept)
        words = ("--quiet", *options, "--override", str(override), "--python-version", python)
        stdin = f"{package}\n"
        uv.run("pip", "compile", *words, "--output-file", str(output), "-", stdin=stdin, deadline_s=_RESOLVE_DEADLINE_S)
        return output.read_text()


def with_torch_cpu(sources: PackageSources, torch_cpu: str) -> PackageSources:
    """Return the sources with one more: a folder, or an index's address. Empty: none. Raises UserInputError."""
    if not torch_cpu:
        return sources
    if "://" not in torch_cpu:
        folder = Path(torch_cpu).expanduser()
        if not folder.is_dir():
            raise UserInputError(
                f"{TORCH_CPU_VARIABLE}={torch_cpu} is neither a folder nor an address", hint=_torch_hint()
            )
        return replace(sources, find_links=(*sources.find_links, str(folder)))
    return replace(sources, extra_index_urls=(*sources.extra_index_urls, torch_cpu))


def _torch_hint() -> str:
    return (
        f"set {TORCH_CPU_VARIABLE} to a folder with the wheel, or to the address of an index with PyTorch's CPU builds"
        " (PyTorch's installation page shows it), or add either to pip's configuration"
    )
