"""The forked side of a zygote: turns a copy of the zygote into an engine server."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import random
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from longboat_vllm.process import keeper, lineage

__all__ = ("FORKED", "ForkRequest", "become_server", "redirect_output", "run_to_end")

FORKED = "LONGBOAT_FORKED"
"""Variable that is 1 in a server that a zygote forked: its own children are then forked too."""

_READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "TORCH", "MKL_", "OPENBLAS_", "KMP_", "LD_PRELOAD", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class ForkRequest:
    """A description of the server to fork."""

    argv: list[str]  # its ``sys.argv``
    env: dict[str, str | None] = field(default_factory=dict)  # variables to set, or to remove where None
    cwd: str | None = None  # None: the zygote's folder
    # variables by which its processes are found again; also part of ``env``
    env_tags: dict[str, str] = field(default_factory=dict)
    grace_s: float = keeper.DEFAULT_GRACE_S  # seconds from TERM to KILL when it must end

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> ForkRequest:
        """Read a request. Raises ValueError where it does not say what to run."""
        argv, env, env_tags = request.get("argv"), request.get("env") or {}, request.get("marks") or {}
        if not isinstance(argv, list) or not argv or not all(isinstance(word, str) for word in argv):
            raise ValueError("argv must be a list of strings")
        if not isinstance(env, dict) or not isinstance(env_tags, dict):
            raise ValueError("env and env_tags must be objects")
        grace_s = float(request.get("grace_s", keeper.DEFAULT_GRACE_S))
        return cls(argv, {**env, **env_tags}, request.get("cwd"), env_tags, grace_s)


def run_to_end(work: Callable[[], object]) -> NoReturn:
    """Do ``work`` and end this process as the interpreter would, without returning into the forked stack."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as leave:
        code = _exit_code(leave)
    except BaseException:  # no exception may unwind into the zygote's code
        traceback.print_exc()
    finally:
        _finish()
        os._exit(code)


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return (leave.code or 0) & 0xFF
    print(leave.code, file=sys.stderr)
    return 1


def _finish() -> None:
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def redirect_output(log_fd: int) -> None:
    """Send standard output and error to the log, and empty standard input."""
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(null_fd)


def become_server(request: ForkRequest, entry: str) -> None:
    """Run ``entry`` (``module:function``) as if this process had been started with ``request``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # Python's default
    lineage.end_together()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if request.cwd:
        os.chdir(request.cwd)
    _adopt_environment(request.env)
    _renew_randomness()
    sys.argv = list(request.argv)
    module, _, name = entry.partition(":")
    sys.exit(getattr(importlib.import_module(module), name)())


def _adopt_environment(env: Mapping[str, str | None]) -> None:
    late = [name for name, value in env.items() if name.startswith(_READ_AT_IMPORT) and os.environ.get(name) != value]
    for name, value in env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.environ[FORKED] = "1"
    tempfile.tempdir = None  # the zygote may have cached it; TMPDIR may differ now
    _reflect_offline()
    _reflect_threads()
    late = [name for name in late if name not in ("HF_HUB_OFFLINE",)]
    if late:
        print(f"longboat: set after the import of the libraries that read them: {', '.join(late)}", file=sys.stderr)


def _reflect_offline() -> None:
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None and "HF_HUB_OFFLINE" in os.environ:
        constants.HF_HUB_OFFLINE = os.environ["HF_HUB_OFFLINE"].upper() in ("1", "ON", "YES", "TRUE")  # type: ignore[attr-defined]


def _reflect_threads() -> None:
    """Apply OMP_NUM_THREADS, which OpenMP read when it was loaded."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    torch = sys.modules.get("torch")
    if torch is not None and wanted.isdigit() and int(wanted) != torch.get_num_threads():
        torch.set_num_threads(int(wanted))


def _renew_randomness() -> None:
    """Reseed what was drawn in the zygote, so that identifiers and samples differ between forks."""
    random.seed()
    seed = int.from_bytes(os.urandom(4), "big")
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)
    if multiprocessing := sys.modules.get("multiprocessing"):
        multiprocessing.current_process().authkey = os.urandom(32)
