"""The warm parent: a process that has loaded what Ray's workers here need, and forks one for each order.

usage: python -m longboat.cluster.workers.warm_parent SOCKET STARTER_PID [LISTENER_FD]

It has one thread, holds no connection, and loads nothing before a worker asks. Then it runs itself again in the
environment of that worker, loads, and forks. It ends with the process that runs ``ray start``. Workers do not depend on
it: where it is gone, those that run stay, and new ones start plainly.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from longboat.cluster.workers.fork_request import ForkRequest, Verdict, judge
from longboat.cluster.workers.forked_worker import become_worker, take_place
from longboat.cluster.workers.start_worker import GO, fingerprint
from longboat_vllm.process import forked, keeper
from longboat_vllm.process.zygote import check_forkable, close_all_but
from longboat_vllm.process.zygote_socket import RefusedError, check_user, listen, receive, send

__all__ = ("Loaded", "WarmParent", "command", "main")

_MODULE = "longboat.cluster.workers.warm_parent"
_SCRIPT = "ray._private.workers.default_worker"
_LOADED = (
    _SCRIPT,
    "ray._common.pydantic_compat",
    "ray._private.arrow_serialization",
    "ray._private.authentication.grpc_authentication_client_interceptor",
    "ray._private.authentication.grpc_authentication_server_interceptor",
    "ray.serve._private.controller",
    "ray.serve._private.replica",
    "ray.autoscaler.sdk",
    "numpy.random",
    "anyio._backends._asyncio",
    "encodings.ascii",
    "httpcore",
    "pydantic.v1",
    "longboat.builtin.models",
    "longboat.cluster.host.facts",
    "longboat.cluster.node.node_daemon",
    "longboat.cluster.preflight.checks",
    "longboat.cluster.ray.calm_imports",
    "longboat.cluster.ray.serve_app",
    "longboat.gateway.admin.control_client",
    "longboat.gateway.upstreams.table_document",
    "longboat.engines.environments.environment",
    "longboat.engines.fake",
    "longboat.engines.llamacpp",
    "longboat.engines.sglang",
    "longboat.engines.vllm",
)
"""What Ray, Serve, supervisors, controllers and daemons import sooner or later."""

UNABLE = 3
"""Exit status of a parent that cannot be forked."""

_TALK_S = 3.0
_GO_S = 30.0
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_TITLE_SPACE = "-" * 256
"""Last argument: Ray writes a worker's title over the arguments that its process was started with."""


def command(socket_path: str, starter_pid: int, listener_fd: int | None = None) -> list[str]:
    """Return the command line of a warm parent."""
    words = [sys.executable, "-m", _MODULE, socket_path, str(starter_pid)]
    return [*words, *([str(listener_fd)] if listener_fd is not None else []), _TITLE_SPACE]


@dataclass(slots=True)
class Loaded:
    """What forks share."""

    env: Mapping[str, str]
    script: str  # that Ray runs as a worker
    code: types.CodeType


def load() -> Loaded:
    """Load what workers need, without threads, and so that forks write little to it."""
    env = dict(os.environ)
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))  # numpy's library starts threads while it is loaded
    with _no_id_drawn():
        for module in _LOADED:
            importlib.import_module(module)
    os.environ.clear()
    os.environ.update(env)
    script = str(sys.modules[_SCRIPT].__file__)
    code = compile(Path(script).read_bytes(), script, "exec")
    gc.collect()
    sys._clear_type_cache()  # of names of attributes: forks would write to a page for each that they replace
    gc.freeze()
    check_forkable()
    return Loaded(env, script, code)


@contextlib.contextmanager
def _no_id_drawn() -> Iterator[None]:
    """Keep Ray's generator of ids unused: it is not made again in a fork, so all forks would draw the same ids.

    A class that is defined as an actor draws one; here the kernel does. (``FillRandom`` in Ray's ``id.h``)
    """
    from ray import actor

    own = actor.ActorClassID
    actor.ActorClassID = types.SimpleNamespace(from_random=lambda: own(os.urandom(own.size())))
    try:
        yield
    finally:
        actor.ActorClassID = own


class WarmParent:
    """One parent's state and its loop."""

    def __init__(self, socket_path: str, starter_pid: int, listener: socket.socket, loaded: Loaded | None) -> None:
        self._socket_path = socket_path
        self._starter_pid = starter_pid
        self._listener = listener
        self._loaded = loaded
        self._fingerprint = fingerprint()
        self._num_strangers = 0

    def serve(self) -> None:
        """Answer workers until a signal ends this process."""
        wake_fd = _wake_on_children()
        self._reap()  # those that ended while this process loaded woke nothing
        while True:
            ready, _, _ = select.select([self._listener.fileno(), wake_fd], [], [])
            if wake_fd in ready:
                os.read(wake_fd, 4096)
            self._reap()
            if self._listener.fileno() in ready:
                self._accept()

    def _reap(self) -> bool:
        """Collect forks that ended; return whether others live."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True

    def _accept(self) -> None:
        connection = self._listener.accept()[0]
        connection.settimeout(_TALK_S)
        fds: list[int] = []
        verdict, env = Verdict.REFUSE, {}
        with connection:
            try:
                check_user(connection)
                request = ForkRequest.read(receive(connection, fds))
                verdict, env = self._judge(request), dict(request.env)
                if verdict is Verdict.FORK:
                    self._fork(connection, request, fds)
                else:
                    send(connection, {"again": verdict is Verdict.CHANGE})
            except (RefusedError, ValueError, KeyError, TypeError, OSError) as error:
                with contextlib.suppress(OSError):  # its reader may be gone
                    print(f"longboat: a worker is not forked: {error!r}", file=sys.stderr, flush=True)
            finally:
                for fd in fds:
                    os.close(fd)
        if verdict is Verdict.CHANGE:
            self._change(env)

    def _judge(self, request: ForkRequest) -> Verdict:
        own = self._loaded.env if self._loaded is not None else None
        self._num_strangers = 0 if request.env == own else self._num_strangers + 1
        return judge(request, own, self._fingerprint, num_strangers=self._num_strangers, has_forks=self._reap())

    def _fork(self, connection: socket.socket, request: ForkRequest, streams: list[int]) -> None:
        loaded = self._loaded
        assert loaded is not None
        check_forkable()
        if os.fork():
            return
        signal.set_wakeup_fd(-1)

        def work() -> None:
            if _is_wanted(connection):
                take_place(request, streams)
                close_all_but(set())
                become_worker(request, loaded.script, loaded.code)

        forked.run_to_end(work)

    def _change(self, env: dict[str, str]) -> None:
        """Run this program again in another environment, with the same number and the same socket."""
        self._listener.set_inheritable(True)
        argv = command(self._socket_path, self._starter_pid, self._listener.fileno())
        os.execve(argv[0], argv, env)  # noqa: S606


def _is_wanted(connection: socket.socket) -> bool:
    """Tell the orderer of this fork its number; return whether it leaves the worker to the fork."""
    connection.settimeout(_GO_S)
    with contextlib.suppress(OSError):
        send(connection, {"pid": os.getpid()})
        return connection.recv(1) == GO
    return False


def _wake_on_children() -> int:
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: Ray ends this process
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    return read_fd


def _load_or_end() -> Loaded:
    """Load; end this process for good where it cannot be forked, since the next parent could not be either."""
    try:
        return load()
    except RefusedError as error:
        print(f"longboat: Ray's workers start plainly on this node: {error}", file=sys.stderr)
        sys.exit(UNABLE)


def main() -> None:
    """Serve at once where nothing is to be loaded, else load first: workers wait at the socket meanwhile."""
    socket_path, starter_pid, *inherited = sys.argv[1:-1]
    keeper.die_with_parent(int(starter_pid))
    keeper.set_name("longboat-warm")
    if inherited:
        listener = socket.socket(fileno=int(inherited[0]))
        listener.set_inheritable(False)
        loaded = _load_or_end()
    else:
        Path(socket_path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        listener, loaded = listen(socket_path), None
    with contextlib.suppress(KeyboardInterrupt):
        WarmParent(socket_path, int(starter_pid), listener, loaded).serve()


if __name__ == "__main__":
    main()
