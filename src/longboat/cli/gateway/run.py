"""Runs a gateway by itself: its process, its configuration, and the end of both together."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from longboat.cli.gateway.feed import GatewayFeed
from longboat.cli.gateway.standalone import (
    AloneOptions,
    Wanted,
    notes_of_keys,
    read_wanted,
    stamp_of,
    with_new_keys,
)
from longboat.cli.gateway.upstream_watch import UpstreamWatch, Watched
from longboat.cli.shared.error_text import print_error, unexpected
from longboat.core.errors import ClusterError, EngineError, LongboatError, UserInputError
from longboat.folders import home_folder, run_folder
from longboat.gateway.admin.control_client import GatewayControl, gateway_command
from longboat.gateway.config import encode_config
from longboat.spec.types.section import is_loopback

__all__ = ("run_alone",)

START_TIMEOUT_S = 30.0
BLOCK_BYTES = 65536
LINE_BYTES = 1 << 20
"""A longer line of the gateway is shown in pieces."""
FILES_EVERY_S = 1.0
PUSH_AGAIN_S = 0.5
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_alone(options: AloneOptions) -> None:
    """Serve until Ctrl-C, SIGTERM or the end of the terminal.

    Raises UserInputError when the options, the files or the port cannot be used; EngineError when the gateway ends.
    """
    salt = secrets.token_hex(16)
    wanted = read_wanted(options, salt=salt)
    folder = Path(tempfile.mkdtemp(prefix="gateway-", dir=run_folder()))
    try:
        asyncio.run(AloneGateway(options, wanted, salt, folder).run())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class GatewayChild:
    """The gateway process. It ends when this process does, however that happens."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._first_words: list[str] = []
        self._begun = b""  # a line whose end did not come yet
        self._is_up = False
        self._listener = asyncio.create_task(self._relay())

    @classmethod
    async def start(cls, document: bytes) -> GatewayChild:
        """Start the process in a session of its own, so that Ctrl-C reaches it through this command only."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *gateway_command(), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(document)
        process.stdin.close()
        return cls(process)

    async def listening_port(self) -> int:
        """Wait until it listens. :raises UserInputError, EngineError: it does not."""
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            raise EngineError(f"the gateway did not start in {START_TIMEOUT_S:g} s", hint="start it again") from None
        if not line:
            raise await self._failure()
        self._is_up = True
        self._show()
        return int(json.loads(line)["port"])

    async def ended(self) -> int:
        """Wait for the end of the process and of its output; return its exit code."""
        code = await self._process.wait()
        await self._listener
        return code

    def kill(self) -> None:
        """Kill the gateway and its workers, which are in its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _failure(self) -> LongboatError:
        code = await self.ended()
        last = self._first_words[-1] if self._first_words else f"it ended with {code}"
        message, _, hint = last.removeprefix("longboat gateway: ").rpartition("; ")
        if code == UserInputError.exit_code and message:
            return UserInputError(message, hint=hint)
        return EngineError(
            f"the gateway did not start: {last}", hint="see its messages", log_tail=tuple(self._first_words[-20:])
        )

    async def _relay(self) -> None:
        """Print the gateway's messages. Until it listens, keep them: they may explain why it did not start."""
        assert self._process.stderr is not None
        while block := await self._process.stderr.read(BLOCK_BYTES):
            *lines, self._begun = (self._begun + block).split(b"\n")
            if len(self._begun) > LINE_BYTES:
                lines, self._begun = [*lines, self._begun], b""
            self._take(lines)
        self._take([self._begun] if self._begun else [])

    def _take(self, lines: list[bytes]) -> None:
        self._first_words += (line.decode(errors="replace").rstrip() for line in lines)
        if self._is_up:
            self._show()

    def _show(self) -> None:
        words, self._first_words = self._first_words, []
        for line in words:
            print(line, file=sys.stderr, flush=True)


class AloneGateway:
    """One gateway that follows its files, and its view of the engines that are there."""

    def __init__(self, options: AloneOptions, wanted: Wanted, salt: str, folder: Path) -> None:
        self._options = options
        self._wanted = wanted
        self._salt = salt
        self._socket = str(folder / "control.sock")
        self._token = secrets.token_urlsafe(24)
        self._control = GatewayControl(self._socket, self._token)
        self._watch = UpstreamWatch(self._changed)
        self._stamps = wanted.files
        self._feed = GatewayFeed(self._control, wanted.policy, wanted.models)
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._child: GatewayChild | None = None

    async def run(self) -> None:
        """Serve until a signal, or until the gateway ends by itself. Raises what run_alone raises."""
        _on_signals(self._stop)
        child = self._child = await GatewayChild.start(self._document())
        try:
            port = await child.listening_port()
            await self._watch.begin(self._wanted.endpoints, self._wanted.health)
            await self._push()
            self._greet(port)
            await self._serve(child)
        finally:
            self._watch.close()
            child.kill()
            await child.ended()

    def _document(self) -> bytes:
        name = f"gateway-{self._wanted.port}"
        logs, state = run_folder() / "logs" / name, home_folder() / name
        logs.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        return encode_config(self._wanted.config(socket=self._socket, token=self._token, logs=logs, state=state))

    async def _serve(self, child: GatewayChild) -> None:
        ended = asyncio.create_task(child.ended())
        stopping = asyncio.create_task(self._stopping.wait())
        work = [asyncio.create_task(self._push_forever()), asyncio.create_task(self._read_forever())]
        await asyncio.wait([ended, stopping, *work], return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            task.cancel()
        for task in work:
            with suppress(asyncio.CancelledError):
                await task  # raises the error of a task that failed
        if not self._stopping.is_set():
            raise EngineError(
                f"the gateway ended by itself (exit code {ended.result()})",
                hint="see its messages above; start it again",
            )
        await self._end(ended)

    async def _end(self, ended: asyncio.Task[int]) -> None:
        with suppress(ClusterError):
            state = await self._control.state()
            if num := state["in_flight"]:
                _say(f"ending after {num} running requests; Ctrl-C again ends now")
        with suppress(ClusterError):
            await self._control.stop()
        await ended

    def _stop(self) -> None:
        """Stop gracefully the first time, and at once the second time."""
        if self._stopping.is_set() and self._child is not None:
            self._child.kill()
        self._stopping.set()

    # what the gateway gets

    def _changed(self, engine: Watched) -> None:
        _say(f"{time.strftime('%H:%M:%S')} {_line(engine)}")
        self._news.set()

    async def _push_forever(self) -> None:
        told = ""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._push()
                told = ""
            except ClusterError as error:
                if error.message != told:
                    _complain(error)
                told = error.message
                self._news.set()
                await asyncio.sleep(PUSH_AGAIN_S)

    async def _push(self) -> None:
        await self._feed.send(self._wanted.policy, self._wanted.models, self._watch.endpoints())

    # the files

    async def _read_forever(self) -> None:
        while True:
            await asyncio.sleep(FILES_EVERY_S)
            stamps = {path: stamp_of(path) for path in self._wanted.files}
            if stamps != self._stamps:
                self._stamps = stamps
                self._read_again()

    def _read_again(self) -> None:
        try:
            wanted = read_wanted(self._options, salt=self._salt)
        except Exception as error:  # no mistake in a file, also one of its checks, ends a gateway that serves
            _complain(error if isinstance(error, LongboatError) else unexpected(error))
            self._read_keys_again()
            return
        before, self._wanted = self._wanted, wanted
        self._stamps = wanted.files
        later = [name for name, value in wanted.fixed.items() if value != before.fixed[name]]
        _say(f"{time.strftime('%H:%M:%S')} read {', '.join(map(str, wanted.files))} again")
        if later:
            _say(f"{', '.join(later)}: changed; start the gateway again for it", file=sys.stderr)
        _say_notes(wanted, notes_of_keys(before))
        self._watch.change(wanted.endpoints, wanted.health)
        self._news.set()

    def _read_keys_again(self) -> None:
        """Follow the file of keys although the settings have a mistake: a revoked key must open nothing."""
        keys = self._wanted.policy.keys
        with suppress(UserInputError):  # also this file has a mistake
            self._wanted = with_new_keys(self._wanted, self._options)
            self._news.set()
        is_same = self._wanted.policy.keys == keys
        others = "" if is_same else f"; the keys are those that {self._options.keys} has now"
        _say(f"what was read before stays in use{others}", file=sys.stderr)

    # what people see

    def _greet(self, port: int) -> None:
        wanted = self._wanted
        scheme = "https" if wanted.gateway.tls else "http"
        host = f"[{wanted.gateway.host}]" if ":" in wanted.gateway.host else wanted.gateway.host
        _say(f"{scheme}://{host}:{port}/v1  {_who(wanted)}")
        _say_notes(wanted)
        rows = [("MODEL", "REPLICA", "STATE", "ENGINE")]
        rows += [(w.endpoint.model, w.endpoint.replica, w.state, _address(w)) for w in self._watch.watched]
        rows += [(m.name, f"{len(m.urls)} URLs", "external", m.urls[0]) for m in wanted.policy.external]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            _say("  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3])).rstrip())


def _who(wanted: Wanted) -> str:
    if not wanted.is_open:
        num = len(wanted.policy.keys) - len(notes_of_keys(wanted))
        return f"for {num} key{'' if num == 1 else 's'}"
    if is_loopback(wanted.gateway.host):
        return "for every user of this machine: no keys are required (--keys FILE requires them)"
    return "for every client that reaches it: no keys are required"


def _address(engine: Watched) -> str:
    return f"{engine.endpoint.url} ({doubt})" if (doubt := engine.doubt) else engine.endpoint.url


def _line(engine: Watched) -> str:
    name = f"{engine.endpoint.model} {engine.endpoint.replica}"
    return f"{name} is {engine.state}: {_address(engine)}"


def _say_notes(wanted: Wanted, before: tuple[str, ...] = ()) -> None:
    for note in notes_of_keys(wanted):
        if note not in before:
            _say(note, file=sys.stderr)


def _say(text: str, *, file: Any = None) -> None:
    with suppress(OSError):  # the terminal may be gone
        print(text, file=file or sys.stdout, flush=True)


def _complain(error: LongboatError) -> None:
    with suppress(OSError):
        print_error(error)


def _on_signals(stop: Any) -> None:
    """Handle the signals, except those ignored from the start: ``nohup`` asks for that."""
    loop = asyncio.get_running_loop()
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop)
