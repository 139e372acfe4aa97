"""Finds or starts the zygote of an engine environment on this node, and makes it fork engine servers.

Everything lives in ``<run>/zygotes``: ``<key>.sock``, ``.token`` (the secret of callers), ``.lock`` (one starter at a
time), ``.json`` (how it was started) and ``.log``. The key distinguishes environments, overlays, variables read at
import, and hosts that share a file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longboat.core.errors import EngineError
from longboat.engines.contract import EngineEnvironment, RankCommand
from longboat.engines.launch.keeper_command import keeper_argv
from longboat.engines.launch.process import rank_environment
from longboat.engines.launch.zygote_files import (
    is_running,
    locked,
    namespaces,
    read_record,
    tail,
    zygote_key,
    zygotes_folder,
)
from longboat.engines.launch.zygote_wire import connected, receive, send
from longboat.engines.registry import adapter_for
from longboat.processes import born_ticks

__all__ = ("ZygoteClient", "ZygoteState", "ensure_zygote", "stop_all")

PING_DEADLINE_S = 2.0
FORK_DEADLINE_S = 10.0
STOP_DEADLINE_S = 5.0
IMPORT_DEADLINE_S = 300.0
_SPAWN_DEADLINE_S = 30.0
_POLL_S = 0.05
_MARK_SPACE = "LONGBOAT_MARK_SPACE"
_MARK_SPACE_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteState:
    """A zygote's report about itself."""

    pid: int
    fingerprint: str
    vllm_version: str
    modules: tuple[str, ...]
    missing: Mapping[str, str]
    started_at: float  # seconds since the epoch
    import_s: float  # seconds that the imports took
    num_forks: int
    num_engines: int
    threads: int
    lifeline_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteClient:
    """A zygote, reached through its socket. Each call opens a new connection."""

    socket_path: Path
    token: str

    async def ping(self) -> ZygoteState:
        """Return the zygote's state. Raises EngineError where it does not answer within 2 s."""
        answer = await asyncio.to_thread(self._talk, {"op": "ping"}, (), PING_DEADLINE_S)
        return _state(answer)

    async def fork(
        self, command: RankCommand, *, env_tags: Mapping[str, str], lifeline_fd: int, status_fd: int, log_fd: int
    ) -> tuple[int, int]:
        """Fork one rank; return the pids of its keeper and of its main process.

        Raises EngineError where the zygote refuses or does not answer: then nothing was started, or what was started
        ends when the other end of ``lifeline_fd`` is closed.
        """
        if command.zygote is None:
            raise EngineError("this engine cannot be forked from a zygote", hint="start it plainly")
        request = {
            "op": "fork",
            "argv": list(command.zygote.argv),
            "env": rank_environment(command, env_tags),
            "marks": dict(env_tags),
            "cwd": os.getcwd(),
        }
        # Copies, because the thread continues when this call is cancelled and the caller closes its descriptors.
        copies = _Copies((lifeline_fd, status_fd, log_fd))
        try:
            answer = await asyncio.to_thread(self._hand_over, request, copies)
        finally:
            copies.close()  # where the thread has not begun
        return int(answer["keeper_pid"]), int(answer["pid"])

    async def stop(self) -> None:
        """End the zygote; its engines stay. Has no effect where it is already gone."""
        await asyncio.to_thread(self.stop_now)

    def stop_now(self) -> None:
        """End the zygote as ``stop`` does, for callers without a loop."""
        with contextlib.suppress(EngineError):
            pid = int(self._talk({"op": "ping"}, (), PING_DEADLINE_S)["pid"])
            self._talk({"op": "stop"}, (), PING_DEADLINE_S)
            _wait_gone(pid)

    def _hand_over(self, request: Mapping[str, Any], copies: _Copies) -> dict[str, Any]:
        fds = copies.take()
        try:
            return self._talk(request, tuple(fds), FORK_DEADLINE_S)
        finally:
            for fd in fds:
                os.close(fd)

    def _talk(self, request: Mapping[str, Any], fds: tuple[int, ...], deadline_s: float) -> dict[str, Any]:
        data = json.dumps({**request, "token": self.token}).encode()
        try:
            with connected(self.socket_path, deadline_s) as connection:
                send(connection, len(data).to_bytes(4, "big") + data, fds)
                answer: dict[str, Any] = json.loads(receive(connection))
        except (OSError, ValueError) as error:
            raise EngineError(f"the zygote at {self.socket_path} does not answer: {error}") from error
        if "error" in answer:
            raise EngineError(f"the zygote at {self.socket_path} refused: {answer['error']}")
        return answer


class _Copies:
    """Copies of descriptors, for the first of two threads that takes them."""

    def __init__(self, fds: tuple[int, ...]) -> None:
        self._fds = list[int]()
        self._lock = threading.Lock()
        try:
            for fd in fds:
                self._fds.append(os.dup(fd))
        except OSError:
            self.close()
            raise

    def take(self) -> list[int]:
        """Return the descriptors, which the caller closes; none where they are taken or closed."""
        with self._lock:
            fds, self._fds = self._fds, []
        return fds

    def close(self) -> None:
        """Close the descriptors, unless they are taken."""
        for fd in self.take():
            os.close(fd)


async def ensure_zygote(
    environment: EngineEnvironment,
    overlay: str | Path,
    preload_env: Mapping[str, str],
    run: Path,
    lifeline_pid: int,
    *,
    wait_s: float = 30.0,
    options: tuple[str, ...] = (),
) -> ZygoteClient | None:
    """Return the zygote for ``environment``, started where none fits; None if it is not ready within ``wait_s``.

    preload_env: what the engine reads at import; part of the zygote's identity
    lifeline_pid: the zygote ends when this process does
    options: further words for the zygote's command line
    Raises EngineError where it ended while starting.
    """
    about = adapter_for(environment.kind).overlay
    if about is None or not about.zygote:
        raise EngineError(f"{environment.kind} has no zygote", hint="start it plainly")
    wanted = _Wanted(environment, str(overlay), about.zygote, preload_env, lifeline_pid, options)
    client, pid = await asyncio.to_thread(_begin, wanted, run)
    deadline_s = time.monotonic() + wait_s
    while True:
        with contextlib.suppress(EngineError):
            await client.ping()
            return client
        if pid is not None and not born_ticks(pid):
            log = client.socket_path.with_suffix(".log")
            raise EngineError(f"the zygote ended while starting; see {log}", log_tail=tail(log))
        if time.monotonic() >= deadline_s:
            return None
        await asyncio.sleep(_POLL_S)


def stop_all(run: Path) -> None:
    """End every zygote of ``run``, also those that still import; their engines stay."""
    for path in sorted(zygotes_folder(run).glob("*.json")):
        with locked(path):
            _end(path)


# --- starting and ending ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The zygote to start; fields as the parameters of ``ensure_zygote``."""

    environment: EngineEnvironment
    overlay: str
    module: str  # that is the zygote's program
    preload_env: Mapping[str, str]
    lifeline_pid: int
    options: tuple[str, ...]


def _begin(wanted: _Wanted, run: Path) -> tuple[ZygoteClient, int]:
    """Return a fitting, living zygote (maybe still importing) with its pid. One caller at a time."""
    key = zygote_key(wanted.environment, wanted.overlay, wanted.preload_env, wanted.options)
    path = zygotes_folder(run) / f"{key}.json"
    with locked(path):
        record = read_record(path)
        if record is not None and _fits(record, wanted.environment) and _is_useful(path, record):
            return _client(path), int(record["pid"])
        _end(path)
        token = path.with_suffix(".token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        pid = _spawn(path, wanted)
        record = {
            "pid": pid,
            "born": born_ticks(pid),
            "lifeline_pid": wanted.lifeline_pid,
            "fingerprint": wanted.environment.fingerprint,
            "started_at_s": time.time(),
            "python": wanted.environment.python,
            "overlay": wanted.overlay,
            "namespaces": namespaces(),
        }
        path.write_text(json.dumps(record))
        return _client(path), pid


def _spawn(path: Path, wanted: _Wanted) -> int:
    env = {**os.environ, **wanted.preload_env, "SPT_NOENV": "1", _MARK_SPACE: "." * _MARK_SPACE_BYTES}
    for name in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"):
        env.pop(name, None)
    if wanted.overlay:
        env["PYTHONPATH"] = wanted.overlay
    words = ["--socket", str(path.with_suffix(".sock")), "--token-file", str(path.with_suffix(".token"))]
    words += ["--fingerprint", wanted.environment.fingerprint, "--lifeline-pid", str(wanted.lifeline_pid)]
    argv = keeper_argv("--detach", str(path.with_suffix(".log")), "--")
    argv += [wanted.environment.python, "-m", wanted.module, *words, *wanted.options]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env, timeout=_SPAWN_DEADLINE_S, check=True
        )
        return int(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        hint = "until it can, engines are started without it"
        raise EngineError(f"the zygote cannot be started: {error}", hint=hint) from error


def _fits(record: Mapping[str, Any], environment: EngineEnvironment) -> bool:
    same = record.get("fingerprint") == environment.fingerprint
    return same and is_running(record) and born_ticks(int(record["lifeline_pid"])) > 0


def _is_useful(path: Path, record: Mapping[str, Any]) -> bool:
    """Return whether it answers, or still imports (it has no socket yet) and may still take time for that."""
    if path.with_suffix(".sock").exists():
        return _ping_now(path.with_suffix(".sock")) is not None
    return time.time() - float(record["started_at_s"]) < IMPORT_DEADLINE_S


def _end(path: Path) -> None:
    """End the zygote of this record, gently if it answers, and remove its files. Its engines stay."""
    record = read_record(path)
    if record is not None and record.get("namespaces") != namespaces():
        return  # it runs on another host that shares this folder
    if record is not None and is_running(record):
        _client(path).stop_now()
        if is_running(record):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(record["pid"]), signal.SIGKILL)
            _wait_gone(int(record["pid"]))
    for suffix in (".sock", ".token", ".json"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def _wait_gone(pid: int) -> None:
    deadline_s = time.monotonic() + STOP_DEADLINE_S
    while born_ticks(pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)


def _client(path: Path) -> ZygoteClient:
    try:
        token = path.with_suffix(".token").read_text()
    except FileNotFoundError:
        token = ""
    return ZygoteClient(socket_path=path.with_suffix(".sock"), token=token)


def _ping_now(path: Path) -> ZygoteState | None:
    try:
        return _state(_client(path)._talk({"op": "ping"}, (), PING_DEADLINE_S))
    except EngineError:
        return None


def _state(answer: Mapping[str, Any]) -> ZygoteState:
    try:
        fields = {name: answer[name] for name in ZygoteState.__dataclass_fields__}
    except KeyError as error:
        raise EngineError(f"the zygote does not report its {error}: it is another version") from error
    return ZygoteState(**{**fields, "modules": tuple(answer["modules"])})
