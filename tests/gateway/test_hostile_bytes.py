"""Whatever bytes a client sends, in whatever pieces: no exception, one answer a request at most, nothing kept."""

from __future__ import annotations

from typing import Any

from gateway_lab import config, endpoint, table
from hypothesis import given, settings
from hypothesis import strategies as st

from longboat.gateway.calls.state import GatewayState
from longboat.gateway.config import GatewayLimits
from longboat.gateway.requests.connection import ClientConnection

FRAGMENTS = st.sampled_from(
    [
        b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /readyz HTTP/1.0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n",
        b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        b"expect: 100-continue\r\n",
        b"connection: close\r\n",
        b"content-length: 3\r\n",
        b'{"model":1}',
        b'{"model":"nope"}',
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"0\r\na: b\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"\r\n",
        b"\n",
        b"\x00",
        b"HTTP/1.1 200 OK\r\n",
    ]
) | st.binary(max_size=20)
STREAMS = st.lists(FRAGMENTS, max_size=12).map(b"".join)


class RecordingTransport:
    """As much of a transport as a connection uses."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def write_eof(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def get_extra_info(self, name: str) -> Any:
        return None


@settings(max_examples=300)
@given(STREAMS, st.lists(st.integers(1, 40), max_size=20))
async def test_any_bytes_leave_nothing_behind(data: bytes, sizes: list[int]) -> None:
    state = GatewayState(config(limits=GatewayLimits(max_body_bytes=1000, max_head_bytes=300)))
    state.table.offer("e", table(endpoint("http://127.0.0.1:1", ready=False)))
    connection, transport = ClientConnection(state), RecordingTransport()
    connection.connection_made(transport)
    for size in [*sizes, len(data)]:
        if piece := data[:size]:
            connection.data_received(piece)
        data = data[size:]
    assert transport.written == b"" or transport.written.startswith(b"HTTP/1.1 ")
    connection.connection_lost(None)
    assert (state.held_bytes, state.in_flight, len(state.connections)) == (0, 0, 0)
