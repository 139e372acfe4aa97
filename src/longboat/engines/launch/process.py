"""Runs one node rank as processes: started plainly or forked from a zygote, watched and ended through its keeper.

The keeper holds the reading end of a lifeline pipe; only this process holds the writing end. When that end is closed,
by ``close`` or because this process died, the keeper SIGKILLs the rank and everything that the rank started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from longboat.core.errors import EngineError
from longboat.engines.contract import RankCommand
from longboat.engines.launch.keeper_command import keeper_argv

__all__ = ("Forker", "RankExit", "RankProcess", "rank_environment", "reap", "start_rank")

START_DEADLINE_S = 30.0
_REAP_DEADLINE_S = 30.0
_FIXED_ENV = {"SPT_NOENV": "1", "PYTHONUNBUFFERED": "1"}
"""Keeps process titles from overwriting the environment in /proc, where orphans are found; logs are not buffered."""
_REQUESTS = (signal.SIGTERM, signal.SIGINT)
_CAUSES = {
    "SIGBUS": "shared memory, /dev/shm, or a disk with a mapped file may be full",
    "SIGILL": "the engine was built for another processor",
}


class Forker(Protocol):
    """Something that forks ranks: a zygote."""

    async def fork(
        self, command: RankCommand, *, env_tags: Mapping[str, str], lifeline_fd: int, status_fd: int, log_fd: int
    ) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """The end of a rank's main process. Both fields are None when its keeper was lost."""

    returncode: int | None = None
    signal: int | None = None

    @property
    def on_request(self) -> bool:
        """Whether it ended as processes do that were asked to: without an error, or by SIGTERM or SIGINT."""
        return self.signal in _REQUESTS if self.signal is not None else self.returncode == 0

    def __str__(self) -> str:
        if self.signal is not None:
            return f"exited with signal {self.signal} ({_meaning(self.signal)})"
        return "its keeper was lost" if self.returncode is None else f"exited with code {self.returncode}"


def _meaning(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        return "which Python has no name for"
    return f"{name}: {_CAUSES[name]}" if name in _CAUSES else name


class RankProcess:
    """A running rank. Nothing of it is left once ``wait`` has returned."""

    def __init__(
        self, *, pid: int, keeper_pid: int, started_by: str, lifeline_fd: int, ended: asyncio.Future[RankExit]
    ) -> None:
        self.pid = pid
        self.keeper_pid = keeper_pid
        self.started_by = started_by
        self._lifeline_fd: int | None = lifeline_fd
        self._ended = ended

    async def __aenter__(self) -> RankProcess:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.wait()

    @property
    def ended(self) -> bool:
        """Whether nothing of the rank is left."""
        return self._ended.done()

    @property
    def ended_on_request(self) -> bool:
        """Whether it ended because it was asked to; False while it runs."""
        ended = self._ended
        return ended.done() and not ended.cancelled() and ended.exception() is None and ended.result().on_request

    async def wait(self) -> RankExit:
        """Return when the main process ended and everything that it started is gone."""
        return await asyncio.shield(self._ended)

    def terminate(self, grace_s: float) -> None:
        """Ask the rank to end; its keeper kills what is left after ``grace_s`` seconds. Returns at once."""
        self._command(f"T {grace_s:.3f} ".encode())

    def kill(self) -> None:
        """SIGKILL the rank and everything that it started. Returns at once."""
        self._command(b"K")

    def renew(self, lease_s: float) -> None:
        """Make the rank end unless this is called again within ``lease_s`` seconds. Returns at once."""
        self._command(f"L {lease_s:.3f} ".encode())

    def close(self) -> None:
        """Release the rank: its keeper kills it. Returns at once; may be called again."""
        fd, self._lifeline_fd = self._lifeline_fd, None
        if fd is not None:
            os.close(fd)

    def _command(self, word: bytes) -> None:
        if self._lifeline_fd is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):  # the keeper ended, or does not read
                os.write(self._lifeline_fd, word)


async def start_rank(
    command: RankCommand, *, env_tags: Mapping[str, str], log_path: Path, zygote: Forker | None
) -> RankProcess:
    """Start one rank; its output is appended to ``log_path``.

    env_tags: put into the environment of every process of the rank, for ``reap``
    zygote: forks the rank if the command allows it; None: the rank is started plainly
    Raises EngineError where no process came up.
    """
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    lifeline_read_fd, lifeline_fd = os.pipe()
    os.set_blocking(lifeline_fd, False)
    status_read_fd, status_fd = os.pipe()
    forker = zygote if command.zygote is not None else None
    fds = {"lifeline_fd": lifeline_read_fd, "status_fd": status_fd, "log_fd": log_fd}
    try:
        with _closing(*fds.values()):
            status = await _reader(status_read_fd)
            if forker is not None:
                await forker.fork(command, env_tags=env_tags, **fds)
            else:
                await _start_keeper(command, env_tags, **fds)
        started = await _started(status, log_path)
    except BaseException:
        os.close(lifeline_fd)
        raise
    return RankProcess(
        pid=int(started["pid"]),
        keeper_pid=int(started["keeper_pid"]),
        started_by="plain" if forker is None else "zygote",
        lifeline_fd=lifeline_fd,
        ended=asyncio.ensure_future(_watch(status, env_tags)),
    )


@contextlib.contextmanager
def _closing(*fds: int) -> Iterator[None]:
    """Close this process's copies of ``fds`` at the end of the block."""
    try:
        yield
    finally:
        for fd in fds:
            os.close(fd)


def rank_environment(command: RankCommand, env_tags: Mapping[str, str]) -> dict[str, str | None]:
    """Return what a rank's environment has beyond the node's own; None removes a variable."""
    return {**_FIXED_ENV, **command.env, **env_tags}


async def reap(env_tags: Mapping[str, str], *, older_than_generation: int | None = None) -> tuple[int, ...]:
    """SIGKILL every process on this node that carries all ``env_tags``, with its descendants; return their pids.

    older_than_generation: only processes whose LONGBOAT_GENERATION is below it
    Raises EngineError where something could not be killed.
    """
    words = ["--reap", *(f"{name}={value}" for name, value in env_tags.items())]
    if older_than_generation is not None:
        words += ["--older-than-generation", str(older_than_generation)]
    process = await asyncio.create_subprocess_exec(
        *keeper_argv(*words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(), _REAP_DEADLINE_S)
    if process.returncode != 0:
        last_line = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise EngineError(
            f"orphaned processes could not be killed: {last_line}", hint="look for them with ps on that node"
        )
    return tuple(int(word) for word in output.split())


async def _start_keeper(
    command: RankCommand, env_tags: Mapping[str, str], lifeline_fd: int, status_fd: int, log_fd: int
) -> None:
    """Start the keeper, which detaches itself from this process at once.

    What ends this process's children must not end the keeper before its rank.
    """
    env = {**os.environ, **rank_environment(command, env_tags)}
    argv = keeper_argv("--lifeline", str(lifeline_fd), "--status", str(status_fd), "--", *command.argv)
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        env={name: value for name, value in env.items() if value is not None},
        pass_fds=(lifeline_fd, status_fd),
    )
    await asyncio.wait_for(process.wait(), START_DEADLINE_S)


async def _reader(fd: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0))
    return reader


async def _started(status: asyncio.StreamReader, log_path: Path) -> dict[str, Any]:
    try:
        line = await asyncio.wait_for(status.readline(), START_DEADLINE_S)
    except TimeoutError:
        line = b""
    if not line:
        raise EngineError("the engine's keeper did not start", hint=f"look into {log_path}")
    started: dict[str, Any] = json.loads(line)
    return started


async def _watch(status: asyncio.StreamReader, env_tags: Mapping[str, str]) -> RankExit:
    """Wait for the end of the rank. If its keeper was killed, reap here: nothing of the rank may stay."""
    while line := await status.readline():
        event = json.loads(line)
        if event["event"] == "exit":
            return RankExit(returncode=event["returncode"], signal=event["signal"])
    if env_tags:
        await reap(env_tags)
    return RankExit()
