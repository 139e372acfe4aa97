"""Calls between the processes of the stand: pickled messages over Unix sockets, as Ray's calls are pickled, too."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ("Link", "serve_link")

_LENGTH_BYTES = 8


class Link:
    """One connection to another process of the stand. Many calls may be under way."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count().__next__
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def call(self, name: str, *args: Any) -> Any:
        """Return what the other process's function of this name returned. Raise what it raised."""
        async with self._lock:
            if self._writer is None:
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                self._reading = asyncio.create_task(self._read(reader))
        number = self._numbers()
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        _write(self._writer, (number, name, args))
        try:
            return await answer
        finally:
            self._calls.pop(number, None)

    async def close(self) -> None:
        """Close the connection."""
        writer, reading = self._writer, self._reading
        if writer is None or reading is None:
            return
        writer.close()
        await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                number, result, error = await _receive(reader)
                call = self._calls.get(number)
                if call is None or call.done():
                    continue
                call.set_exception(RuntimeError(error)) if error else call.set_result(result)
        self._writer = None
        for call in self._calls.values():
            if not call.done():
                call.set_exception(ConnectionResetError(f"{self._path} is gone"))


async def serve_link(path: str, functions: dict[str, Callable[..., Awaitable[Any]]]) -> asyncio.Server:
    """Answer calls of these functions."""
    tasks: set[asyncio.Task[None]] = set()

    async def answer(writer: asyncio.StreamWriter, number: int, name: str, args: Any) -> None:
        try:
            result, error = await functions[name](*args), ""
        except Exception as raised:
            result, error = None, repr(raised)
        _write(writer, (number, result, error))

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                task = asyncio.create_task(answer(writer, *await _receive(reader)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        writer.close()

    return await asyncio.start_unix_server(welcome, path)


def _write(writer: asyncio.StreamWriter, message: Any) -> None:
    data = pickle.dumps(message, protocol=5)
    writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


async def _receive(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    return pickle.loads(await reader.readexactly(size))  # noqa: S301 (a process of this program wrote it)
