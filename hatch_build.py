"""Compiles the path of a request and the planner's search, when Longboat is installed or by ``python hatch_build.py``.

- the C files of ``SOURCES``, each beside its source: required; needs a C compiler and Python's headers
- the modules of ``COMPILED_FOLDERS``, by mypyc, into ``src/longboat/_compiled`` (see ``longboat/compiled.py``):
  optional; without them Longboat does the same in Python, slower
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "src/longboat"
SOURCES = tuple(
    PACKAGE / f"{name}.c"
    for name in (
        *("gateway/native/_native", "gateway/native/_prefixes", "gateway/native/_spans"),
        "routing/prefixes/_index",
        "simulator/traces/_names",
    )
)
FLAGS = ("-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-DNDEBUG")
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")
_DEADLINE_S = 120

COMPILED_FOLDERS = (
    "catalog/shape", "planner/memory", "planner/predict", "planner/search",
    "gateway/api", "gateway/calls", "gateway/exchange", "gateway/http", "gateway/limits", "gateway/records",
    "gateway/requests", "gateway/resume", "gateway/upstreams",
    "routing", "routing/capacity", "routing/health", "routing/policies", "routing/prefixes", "routing/queue",
    "simulator", "simulator/engine", "simulator/fleet", "simulator/results", "simulator/traces",
)  # fmt: skip
NOT_COMPILED = (
    # these of the planner and the catalog run a few times for a plan
    *(f"planner/search/{name}" for name in ("advice", "measured", "reasons", "forecast_document", "tasks")),
    *(f"planner/memory/{name}" for name in ("draft", "adapter_room", "fit_changes", "processor_part")),
    *(f"catalog/shape/{name}" for name in ("tensors", "from_tensors", "named_size")),
    *("planner/predict/capacity", "planner/predict/number"),
    *("routing/capacity/slots", "routing/health/liveness", "routing/decisions"),  # slots=True
    *(f"gateway/limits/{name}" for name in ("cors", "keys", "lease_document")),  # not for each request
    *(f"gateway/limits/redis_{name}" for name in ("counters", "exchange", "link", "news", "script")),
    # msgspec reads the annotations of these two
    *("gateway/api/usage_shapes", "gateway/resume/reconnect"),
    "gateway/records/metrics_text",  # mixes int and float in one variable
    "gateway/upstreams/health",  # its exception derives from a builtin one
    "gateway/upstreams/response_affinity",  # tests replace it
    *(f"simulator/results/{name}" for name in ("curves", "html_report", "rows")),  # not for each request
    *(f"simulator/traces/{name}" for name in ("azure", "formats", "json_rows", "sessions", "trace_error")),
    "gateway/upstreams/protocol",  # its class derives from a class of the C extension
)
"""Modules of these folders that mypyc cannot compile, or that others read at run time."""
MODULES = tuple(
    name
    for folder in COMPILED_FOLDERS
    for path in sorted((PACKAGE / folder).glob("*.py"))
    if (name := path.relative_to(PACKAGE).with_suffix("").as_posix()) not in NOT_COMPILED and path.stem != "__init__"
)
"""What every request runs through, and what a plan computes thousands of times."""


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before a wheel is packed and before an editable installation."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """version: ``standard``, or ``editable`` where the checkout itself is what gets imported."""
        if self.target_name != "wheel":
            return
        is_later = version == "editable" and bool(os.environ.get("LONGBOAT_MODULES_LATER"))
        built = build(with_modules=not is_later)
        if built and version == "standard":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["artifacts"] += [f"/{path.relative_to(ROOT).as_posix()}" for path in built]


def build(*, with_modules: bool = True) -> list[Path]:
    """Compile what is older than its source, and return the files that exist then.

    with_modules: also mypyc's
    Exits with a message where the C extension cannot be made: the gateway needs it. mypyc's modules are optional.
    """
    why = _missing()
    extensions = [source.with_name(f"{source.stem}{SUFFIX}") for source in SOURCES]
    for source, extension in zip(SOURCES, extensions, strict=True):
        if not _is_fresh(source, extension) and (failure := why or _make_extension(source, extension)):
            extension.unlink(missing_ok=True)  # that of an older source must not stay
            sys.exit(f"longboat: the gateway's C extension {source.stem} cannot be built: {failure}")
    compiled = _compiled_module()
    folder: Path = compiled.FOLDER
    if with_modules and not _are_fresh(compiled) and (failure := why or _make_modules(compiled)):
        shutil.rmtree(folder, ignore_errors=True)
        print(f"longboat: runs without compiled modules, only slower: {failure}", file=sys.stderr, flush=True)
    return [*extensions, *sorted(path for path in folder.rglob("*") if path.is_file())]


def _missing() -> str:
    """Why nothing can be compiled here; else empty."""
    headers = Path(sysconfig.get_path("include"))
    if sys.implementation.name != "cpython":
        return f"it is written for CPython, and this is {sys.implementation.name}"
    if not (headers / "Python.h").exists():
        return f"Python's headers are not in {headers} (on Debian and Ubuntu: install python3-dev)"
    if _linker() is None:
        return "no C compiler was found (on Debian and Ubuntu: install gcc)"
    return ""


def _linker() -> list[str] | None:
    """The words that compile and link a shared object, with a compiler that exists."""
    words = str(sysconfig.get_config_var("LDSHARED") or "cc -shared").split()
    for compiler in (os.environ.get("CC", ""), words[0], "cc", "gcc", "clang"):
        if compiler and shutil.which(compiler):
            return [compiler, *words[1:]]
    return None


def _is_fresh(source: Path, target: Path) -> bool:
    try:
        built_ns = target.stat().st_mtime_ns
    except OSError:
        return False
    return built_ns > max(source.stat().st_mtime_ns, Path(__file__).stat().st_mtime_ns)


def _make_extension(source: Path, target: Path) -> str:
    """Compile the C file; the reason where that fails, else empty."""
    linker = _linker()
    assert linker is not None
    headers = f"-I{sysconfig.get_path('include')}"
    with tempfile.TemporaryDirectory(prefix=".native-", dir=target.parent) as folder:
        fresh = Path(folder) / target.name
        why = _run([*linker, *FLAGS, headers, str(source), "-o", str(fresh)])
        if not why:
            os.replace(fresh, target)  # running processes keep the old file
        return why


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
    return f"{command[0]} failed: {lines[0][:300]}"


def _compiled_module() -> Any:
    """``longboat/compiled.py`` by its path: Longboat may not be installed yet."""
    spec = importlib.util.spec_from_file_location("longboat_compiled", PACKAGE / "compiled.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _manifest(compiled: Any) -> dict[str, Any]:
    digests = {f"{name}.py": compiled.digest_of(PACKAGE / f"{name}.py") for name in MODULES}
    return {"suffix": SUFFIX, "sources": digests}


def _are_fresh(compiled: Any) -> bool:
    manifest = compiled.FOLDER / compiled.MANIFEST
    try:
        if manifest.stat().st_mtime_ns < Path(__file__).stat().st_mtime_ns:
            return False
        return bool(json.loads(manifest.read_bytes()) == _manifest(compiled))
    except (OSError, ValueError):
        return False


def _make_modules(compiled: Any) -> str:
    """Compile the modules; the reason where that fails, else empty. Takes about a minute."""
    try:
        from mypyc.build import mypycify
        from setuptools import Distribution
    except ImportError as error:
        return f"{error.name} is not installed"
    started_s = time.monotonic()
    print("compiling the path of a request (usually 1 to 3 minutes) ...", flush=True)
    folder: Path = compiled.FOLDER
    group_name = compiled.LIBRARY.removesuffix("__mypyc")
    manifest = _manifest(compiled)
    with tempfile.TemporaryDirectory(prefix=".compiled-", dir=PACKAGE) as work:
        said = io.StringIO()
        try:
            with contextlib.chdir(ROOT / "src"), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                group = mypycify(
                    ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", f"{work}/types",
                     *(f"longboat/{name}.py" for name in MODULES)],
                    opt_level="3", debug_level="0", multi_file=True, group_name=group_name, target_dir=f"{work}/c",
                )  # fmt: skip
                for extension in group:
                    extension.extra_compile_args += [
                        "-fvisibility=hidden",
                        "-g0",
                        "-fno-semantic-interposition",
                        "-fno-plt",
                    ]
                    if _compiles_with_gcc():
                        extension.extra_compile_args += ["-flto"]
                        extension.extra_link_args += ["-O3", f"-flto={os.cpu_count() or 1}"]
                command = Distribution({"name": "longboat", "ext_modules": group}).get_command_obj("build_ext")
                command.build_lib, command.build_temp = f"{work}/lib", f"{work}/objects"
                command.ensure_finalized()
                _compile_side_by_side()
                command.run()
        except (Exception, SystemExit) as error:  # a compiler's and mypyc's many ways to fail
            told = [line for line in said.getvalue().splitlines() if "error" in line] or [str(error)]
            return f"mypyc failed: {told[0][:300]}"
        built = Path(work) / "lib"
        (built / compiled.MANIFEST).write_text(json.dumps(manifest))
        for path in (built / "longboat").iterdir():
            path.rename(built / path.name)
        (built / "longboat").rmdir()
        shutil.rmtree(folder, ignore_errors=True)
        built.rename(folder)
    print(f"  done in {time.monotonic() - started_s:.1f} s", flush=True)
    return ""


def _compiles_with_gcc() -> bool:
    """Return whether setuptools takes gcc, which needs nothing more to link all modules as one."""
    words = (os.environ.get("CC") or str(sysconfig.get_config_var("CC"))).split()
    return any(re.fullmatch(r"(.*-)?gcc(-[\d.]+)?", os.path.basename(word)) for word in words)


def _compile_side_by_side() -> None:
    """setuptools compiles the files of an extension one after another."""
    compiler: Any = importlib.import_module("distutils.ccompiler").CCompiler  # setuptools stands behind this name

    def compile_all(self: Any, sources: Any, output_dir: Any = None, macros: Any = None, include_dirs: Any = None,
                    debug: Any = False, extra_preargs: Any = None, extra_postargs: Any = None,
                    depends: Any = None) -> list[str]:  # fmt: skip
        macros, objects, extra, pp_opts, build = self._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        cc_args = self._get_cc_args(pp_opts, debug, extra_preargs)

        def compile_one(item: tuple[str, tuple[str, str]]) -> None:
            target, (source, ext) = item
            self._compile(target, source, ext, cc_args, extra, pp_opts)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, build.items()))
        return list(objects)

    compiler.compile = compile_all


if __name__ == "__main__":
    build()
