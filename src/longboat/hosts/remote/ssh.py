"""One host over the system's ssh: commands, scripts and files. Nothing secret stands in an argument."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from longboat.core.errors import ClusterError
from longboat.hosts.remote.ssh_errors import ssh_error
from longboat.spec.files.hosts_file import HostSection, HostsFile

__all__ = ("Done", "SshHost", "connections", "script_of")

CONNECT_S = 10
ALIVE_S, ALIVE_COUNT = 5, 4
"""A host that says nothing for 20 s counts as dead."""
SSH_FAILED = 255
MOST_AT_ONCE = 128
"""Commands on all hosts together that run at a time: each takes up to five descriptors, and a process may have 1024."""
PIECE_BYTES = 1 << 20
MOST_FOLDER_BYTES = 37
"""Longest path of a folder in which ssh can make its sockets: 70 bytes follow, and 107 are allowed."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended on a host."""

    code: int
    out: str
    err: str
    # This machine's clock when the command began, Unix seconds.
    began_s: float = 0.0

    @property
    def last_words(self) -> str:
        """The end of what it complained about."""
        lines = [line for line in (self.err or self.out).strip().splitlines() if line.strip()]
        return "\n".join(lines[-8:])


class SshHost:
    """A host. All of its commands share one connection, which ``connections`` closes."""

    def __init__(self, file: HostsFile, host: HostSection, folder: Path, turns: asyncio.Semaphore) -> None:
        """folder: where the socket of the shared connection lies; turns: one for each command that runs at a time"""
        self.name = host.host
        self._turns = turns
        self._words = ["ssh", *_options(file, host, folder)]

    async def run(
        self, command: str, data: bytes | Path = b"", *, pipe: int | None = None, limit_s: float = 60.0
    ) -> Done:
        """Run a command of the host's shell; ``data`` is its input, or the file with it.

        pipe: a descriptor that is read instead
        Raises ClusterError where the host cannot be reached, or the connection broke.
        """
        async with self._turns:
            return await self._run(command, data, pipe, limit_s)

    async def _run(self, command: str, data: bytes | Path, pipe: int | None, limit_s: float) -> Done:
        began_s = time.time()
        process = await asyncio.create_subprocess_exec(
            *self._words,
            self.name,
            command,
            stdin=asyncio.subprocess.PIPE if pipe is None else pipe,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(limit_s):
                _, out, err = await asyncio.gather(_feed(process, data), _read(process.stdout), _read(process.stderr))
                code = await process.wait()
        except TimeoutError:
            what = f"{self.name} did not finish within {limit_s:.0f} s"
            raise ClusterError(what, hint="look at the host, and run the same command again") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if code == SSH_FAILED:
            raise ssh_error(self.name, err)
        return Done(code, out, err, began_s)

    async def script(
        self, *names: str, variables: Mapping[str, str], sudo: bool = False, limit_s: float = 60.0
    ) -> Done:
        """Run Longboat's scripts of these names there as one; they travel by stdin with their variables."""
        text = script_of(*names, variables=variables)
        return await self.run("sudo -n sh -s" if sudo else "sh -s", text.encode(), limit_s=limit_s)

    async def put(self, path: str, data: bytes | Path, *, mode: int = 0o600, limit_s: float = 1800.0) -> None:
        """Write a file there, whole or not at all."""
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        command = f"sh -c {shlex.quote(_writing(path, mode, size))}"
        self.require(await self.run(command, data, limit_s=limit_s), f"cannot write {path}")

    async def put_folder(self, folder: Path, path: str, *, limit_s: float = 3600.0) -> None:
        """Copy a folder's files there, through tar."""
        async with self._turns:
            done, packed = await self._unpack(folder, shlex.quote(path), limit_s)
        self.require(done, f"cannot copy {folder}")
        if packed:
            raise ClusterError(f"{folder} cannot be packed", hint="check that you may read all of its files")

    async def _unpack(self, folder: Path, target: str, limit_s: float) -> tuple[Done, int]:
        """Return how tar ended there, and the exit status of tar here."""
        command = f"umask 022 && mkdir -p {target} && tar -C {target} -xf -"
        read, write = os.pipe()
        try:
            packing = await asyncio.create_subprocess_exec("tar", "-C", str(folder), "-cf", "-", ".", stdout=write)
        finally:
            os.close(write)
        try:
            done = await self._run(command, b"", read, limit_s)
        finally:
            os.close(read)  # tar ends with its reader
            packed = await packing.wait()
        return done, packed

    def require(self, done: Done, what: str) -> Done:
        """Return ``done``. Raises ClusterError with the host's own words where it failed."""
        if done.code:
            raise ClusterError(
                f"{what} (exit status {done.code}): {done.last_words}",
                hint="correct it on the host, and run the same command again",
            )
        return done

    async def close(self) -> None:
        """End the shared connection."""
        silent = asyncio.subprocess.DEVNULL
        async with self._turns:
            ended = await asyncio.create_subprocess_exec(
                *self._words, "-O", "exit", self.name, stdout=silent, stderr=silent
            )
            await ended.wait()


@contextlib.asynccontextmanager
async def connections(file: HostsFile, hosts: Sequence[HostSection]) -> AsyncIterator[dict[str, SshHost]]:
    """Give a connection to each host, which is made when it is first used."""
    with tempfile.TemporaryDirectory(prefix="lb-", dir=_socket_folder(), ignore_cleanup_errors=True) as folder:
        turns = asyncio.Semaphore(MOST_AT_ONCE)
        opened = {host.host: SshHost(file, host, Path(folder), turns) for host in hosts}
        try:
            yield opened
        finally:
            await asyncio.gather(*(host.close() for host in opened.values()), return_exceptions=True)


def _socket_folder() -> str:
    """Return where the sockets of shared connections lie: a batch job's TMPDIR may be too long for them."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= MOST_FOLDER_BYTES else "/tmp"  # noqa: S108


def _options(file: HostsFile, host: HostSection, folder: Path) -> list[str]:
    """Leave everything else to the user's own configuration: keys, agents, jump hosts, known hosts."""
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": str(CONNECT_S),
        "ServerAliveInterval": str(ALIVE_S),
        "ServerAliveCountMax": str(ALIVE_COUNT),
        "ControlMaster": "auto",
        "ControlPath": f"{folder}/%C",
        "ControlPersist": "60",
        "RequestTTY": "no",
        "LogLevel": "ERROR",
    }
    words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    words += ["-F", os.path.expanduser(file.ssh_config)] if file.ssh_config else []
    words += ["-p", str(host.port)] if host.port else []
    user = host.user or file.user
    return [*words, *(["-l", user] if user else [])]


def script_of(*names: str, variables: Mapping[str, str]) -> str:
    """Return Longboat's scripts of these names as one text for a shell, which takes them one after the other."""
    folder = files("longboat.hosts.remote").joinpath("scripts")
    text = "".join(folder.joinpath(f"{name}.sh").read_text() for name in names)
    given = "".join(f"{key}={_shell_word(value)}\n" for key, value in variables.items())
    # The shell must have read everything before a command of the script can take from its input.
    return f"main() {{\n{given}{text}}}\nmain </dev/null\n"


def _writing(path: str, mode: int, size: int) -> str:
    """Return a script that writes its input to a file. A cut input ends like a whole one, but is shorter.

    Parts that a host left when it died go first: their writers, which their names end with, run no more. A writer may
    be another user's, which no signal reaches.
    """
    return f"""umask 077
is_whole() {{ [ "$(wc -c < "$part")" -eq {size} ] || {{ echo "not all of its {size} bytes came" >&2; false; }}; }}
lives() {{ kill -0 "$1" 2>/dev/null || [ -d "/proc/$1" ]; }}
target={shlex.quote(path)}
for part in "$target".part.*; do lives "${{part##*.}}" || rm -f "$part"; done
part=$target.part.$$
cat > "$part" && is_whole && chmod {mode:o} "$part" && mv -T "$part" "$target" && exit 0
rm -f "$part"
exit 1"""


def _shell_word(value: str) -> str:
    """Quote a value; a leading ``~`` is the user's home folder there."""
    return f'"$HOME"{shlex.quote(value[1:])}' if value.startswith("~/") else shlex.quote(value)


async def _feed(process: asyncio.subprocess.Process, data: bytes | Path) -> None:
    if process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        if isinstance(data, bytes):
            process.stdin.write(data)
        else:
            with data.open("rb") as file:
                while piece := file.read(PIECE_BYTES):
                    process.stdin.write(piece)
                    await process.stdin.drain()
        await process.stdin.drain()
    process.stdin.close()


async def _read(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    return (await stream.read()).decode(errors="replace")
