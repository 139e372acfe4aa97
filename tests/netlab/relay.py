"""Inside a lab host: takes connections from a listening socket made outside, and passes them to a port of the host.

usage: relay.py LISTENER_FD ADDRESS PORT

A socket stays in the network namespace where it was made, so the listener is outside and the connections are inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        there = await asyncio.open_connection(sys.argv[2], int(sys.argv[3]))
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))


async def _main() -> None:
    server = await asyncio.start_server(_relay, sock=socket.socket(fileno=int(sys.argv[1])))
    await server.serve_forever()


asyncio.run(_main())
