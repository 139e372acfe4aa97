"""The zygote: a parent with vLLM imported and one thread, which forks complete engine servers on request.

    python -m longboat_vllm.process.zygote --socket PATH --token-file PATH --fingerprint F --lifeline-pid PID

Each connection on its Unix socket carries one request: four bytes of length (big endian), a JSON object, and for
``fork`` three file descriptors (lifeline, status, log). The answer has the same form. Requests:

    {"op": "ping"}   → what this zygote is (fingerprint, vllm_version, modules, started_at, num_forks, threads, pid …)
    {"op": "stop"}   → {"stopping": true}; running engines are not touched
    {"op": "fork", "argv", "env", "cwd", "marks"} → {"keeper_pid", "pid"}

All carry ``token``, and the caller must be the same user. A refusal is ``{"error": text}``. An engine depends on its
keeper's lifeline, never on the zygote: when the zygote ends, for whatever reason, its engines stay.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hmac
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from longboat_vllm.process import forked, keeper, preload
from longboat_vllm.process.zygote_socket import RefusedError, check_user, listen, receive, send

__all__ = ("Zygote", "main")

_NUM_FORK_FDS = 3
_TALK_S = 3.0
_STRAY_FD = 3  # the first descriptor that is not standard input, output or error


@dataclass
class Zygote:
    """One zygote's state and its loop."""

    socket_path: str
    token: str
    fingerprint: str
    lifeline_pid: int
    lifeline_fd: int  # pidfd of this process; the zygote ends when it does
    entry: str  # what a forked server runs, as ``module:function``
    loaded: preload.Loaded
    started_at: float = field(default_factory=time.time)
    num_forks: int = 0
    keepers: set[int] = field(default_factory=set)
    stopping: bool = False

    def serve(self) -> None:
        """Answer requests until a stop request, or until the lifeline process ends."""
        listener = listen(self.socket_path)
        own_file = os.stat(self.socket_path).st_ino
        wake_fd = _wake_on_signals()
        poll = select.poll()
        for fd in (listener.fileno(), wake_fd, self.lifeline_fd):
            poll.register(fd, select.POLLIN)
        while not self.stopping:
            ready = {fd for fd, _ in poll.poll()}
            if wake_fd in ready:
                self.stopping = signal.SIGTERM in os.read(wake_fd, 4096)
            self._reap_keepers()
            if self.lifeline_fd in ready:
                break
            if listener.fileno() in ready:
                self._accept(listener)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self.socket_path).st_ino == own_file:  # it does not belong to a successor
                os.unlink(self.socket_path)

    def _reap_keepers(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self.keepers.discard(pid)

    def _accept(self, listener: socket.socket) -> None:
        connection = listener.accept()[0]
        connection.settimeout(_TALK_S)
        fds: list[int] = []
        with connection:
            try:
                answer = self._answer(connection, receive(connection, fds), fds)
                if answer is not None:
                    send(connection, answer)
            except (RefusedError, ValueError, KeyError, TypeError) as error:
                with contextlib.suppress(OSError):
                    send(connection, {"error": str(error) or repr(error)})
            except OSError as error:  # the caller left or is too slow
                print(f"longboat zygote: request dropped: {error}", file=sys.stderr, flush=True)
            finally:
                for fd in fds:
                    os.close(fd)

    def _answer(self, connection: socket.socket, request: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
        self._check_caller(connection, request)
        if request["op"] == "ping":
            return self._describe()
        if request["op"] == "stop":
            self.stopping = True
            return {"stopping": True}
        if request["op"] == "fork":
            self._fork(connection, forked.ForkRequest.read(request), fds)
            return None  # the keeper answers
        raise RefusedError(f"unknown request {request['op']!r}")

    def _check_caller(self, connection: socket.socket, request: dict[str, Any]) -> None:
        check_user(connection)
        if not hmac.compare_digest(str(request.get("token", "")).encode(), self.token.encode()):
            raise RefusedError("wrong token")

    def _describe(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "vllm_version": self.loaded.vllm_version,
            "modules": self.loaded.modules,
            "missing": self.loaded.missing,
            "import_s": self.loaded.import_s,
            "started_at": self.started_at,
            "num_forks": self.num_forks,
            "num_engines": len(self.keepers),
            "threads": num_threads(),
            "pid": os.getpid(),
            "lifeline_pid": self.lifeline_pid,
        }

    def _fork(self, connection: socket.socket, request: forked.ForkRequest, fds: list[int]) -> None:
        if len(fds) != _NUM_FORK_FDS:
            raise RefusedError(f"fork needs {_NUM_FORK_FDS} file descriptors (lifeline, status, log), got {len(fds)}")
        check_forkable()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            forked.run_to_end(lambda: self._become_keeper(connection, request, *fds))
        self.keepers.add(pid)
        self.num_forks += 1

    def _become_keeper(
        self, connection: socket.socket, request: forked.ForkRequest, lifeline_fd: int, status_fd: int, log_fd: int
    ) -> None:
        def answer(main_pid: int) -> None:
            with contextlib.suppress(OSError):
                send(connection, {"keeper_pid": os.getpid(), "pid": main_pid})
            connection.close()

        signal.set_wakeup_fd(-1)
        os.setsid()
        forked.redirect_output(log_fd)
        close_all_but({lifeline_fd, status_fd, connection.fileno()})
        keeper.show_env_tags(request.env_tags)
        keeper.keep(
            lambda: self._become_server(connection, request),
            lifeline_fd=lifeline_fd,
            status_fd=status_fd,
            grace_s=request.grace_s,
            run=request.env_tags.get("LONGBOAT_RUN"),
            on_started=answer,
        )

    def _become_server(self, connection: socket.socket, request: forked.ForkRequest) -> None:
        connection.close()
        forked.run_to_end(lambda: forked.become_server(request, self.entry))


def num_threads() -> int:
    """Return the number of threads of this process, as the kernel counts them."""
    return len(os.listdir("/proc/self/task"))


def _thread_names() -> list[str]:
    """Return the names of this process's threads, as the kernel has them: libraries name those that they start."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            names.append(file.read().strip())
    return sorted(names)


def check_forkable() -> None:
    """Raise RefusedError where a fork would copy a broken process: several threads, or a device in use."""
    if num_threads() != 1 or threading.active_count() != 1:
        names = ", ".join(_thread_names())
        raise RefusedError(f"{num_threads()} threads run in the zygote; a fork would lose all but one: {names}")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RefusedError("a device is in use in the zygote; a fork cannot share it")


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor but the standard ones and ``kept``: a forked server inherits none of the zygote's."""
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        if fd >= _STRAY_FD:
            with contextlib.suppress(OSError):
                os.close(fd)


def _wake_on_signals() -> int:
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    return read_fd


# --- script ----------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="longboat_vllm.process.zygote", description="Import vLLM once, fork many servers."
    )
    parser.add_argument("--socket", required=True, metavar="PATH")
    parser.add_argument("--token-file", required=True, metavar="PATH")
    parser.add_argument("--fingerprint", required=True)
    parser.add_argument("--lifeline-pid", required=True, type=int, metavar="PID")
    parser.add_argument(
        "--preload", nargs="*", default=None, metavar="MODULE", help="default: the modules of vLLM's server"
    )
    parser.add_argument("--entry", default=preload.VLLM_ENTRY, metavar="MODULE:FUNCTION", help="what a server runs")
    return parser


def main(words: Sequence[str] | None = None, before_import: Callable[[], None] = preload.prepare) -> int:
    """Run the zygote's command line; return when it was stopped or its lifeline process ended."""
    options = _parser().parse_args(words)
    try:
        lifeline_fd = os.pidfd_open(options.lifeline_pid)  # now: after the import, another process may have its number
    except ProcessLookupError:
        return 0
    with open(options.token_file, encoding="ascii") as file:
        token = file.read().strip()
    before_import()
    loaded = preload.load(preload.VLLM_MODULES if options.preload is None else options.preload)
    gc.collect()
    gc.freeze()
    check_forkable()
    keeper.set_name("longboat-zygote")
    lifeline = (options.lifeline_pid, lifeline_fd)
    zygote = Zygote(options.socket, token, options.fingerprint, *lifeline, options.entry, loaded)
    zygote.serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # there is nothing to clean up, and the imported libraries are slow and noisy at it


if __name__ == "__main__":
    main()
