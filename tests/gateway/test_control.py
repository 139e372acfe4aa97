"""The control socket: who may call, and what the calls do."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import DEADLINE_S, until_closed
from gateway_lab import config, endpoint, eventually, post_bytes, table

from longboat.core.errors import ClusterError, UserInputError
from longboat.gateway.admin.control_client import GatewayControl
from longboat.gateway.admin.control_socket import ControlServer
from longboat.gateway.process.server import Gateway

URL = "http://127.0.0.1:1"


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway(config(fleet="f", node="n"))
    await gateway.start()
    yield gateway
    gateway.stop(0.0)
    await gateway.stopped.wait()


@pytest.fixture
async def socket_path(gateway: Gateway, tmp_path: Path) -> AsyncIterator[str]:
    path = str(tmp_path / "c.sock")
    server = ControlServer(gateway.steering, path, "token")
    await server.start()
    yield path
    await server.close()
    assert not os.path.exists(path)


async def test_state_tells_what_runs(gateway: Gateway, socket_path: str) -> None:
    control = GatewayControl(socket_path, "token")
    assert await control.put_table("e", table(endpoint(URL), version=3))
    state = await control.state()
    assert {k: state[k] for k in ("pid", "version", "epoch", "port", "in_flight", "fleet", "processes")} == {
        "pid": os.getpid(),
        "version": 3,
        "epoch": "e",
        "port": gateway.port,
        "in_flight": 0,
        "fleet": "f",
        "processes": [os.getpid()],
    }
    assert state["requests_total"] == 0 and state["uptime_s"] >= 0


async def test_table_rules_hold_over_the_socket(socket_path: str) -> None:
    control = GatewayControl(socket_path, "token")
    assert await control.put_table("e", table(version=3))
    assert not await control.put_table("e", table(version=2))
    assert await control.put_table("f", table(version=1))
    assert (await control.state())["version"] == 1


async def test_useless_table_is_refused_with_its_reason(socket_path: str) -> None:
    with pytest.raises(ClusterError, match="http://HOST:PORT"):
        await GatewayControl(socket_path, "token").put_table("e", table(endpoint("nowhere")))


@pytest.mark.parametrize("token", ["", "wrong", "token2"])
async def test_every_call_needs_the_token(token: str, gateway: Gateway, socket_path: str) -> None:
    control = GatewayControl(socket_path, token)
    before = gateway.state.last_contact_s
    for call in (control.state, control.drain, control.stop, lambda: control.put_table("e", table())):
        with pytest.raises(ClusterError, match="token"):
            await call()
    assert not gateway.state.draining and not gateway.state.table.known
    assert gateway.state.last_contact_s == before


async def test_socket_is_closed_to_other_users(socket_path: str) -> None:
    assert stat.S_IMODE(os.stat(socket_path).st_mode) == 0o600


@pytest.mark.parametrize("wire", [b"GET\r\n\r\n", b"GET /x HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"\0\r\n\r\n"])
async def test_nonsense_on_the_socket_gets_an_error(wire: bytes, socket_path: str) -> None:
    reader, writer = await asyncio.open_unix_connection(socket_path)
    writer.write(wire)
    assert (await asyncio.wait_for(reader.readline(), DEADLINE_S)).startswith(b"HTTP/1.1 4")
    writer.close()


async def test_second_gateway_does_not_take_the_socket(gateway: Gateway, socket_path: str) -> None:
    with pytest.raises(UserInputError, match="another gateway"):
        await ControlServer(gateway.steering, socket_path, "token").start()


async def test_stale_socket_file_is_replaced(gateway: Gateway, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    left = await asyncio.start_unix_server(lambda r, w: None, path)
    left.close()
    assert os.path.exists(path)
    server = ControlServer(gateway.steering, path, "token")
    await server.start()
    await GatewayControl(path, "token").state()
    await server.close()


async def test_gone_gateway_is_a_cluster_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="does not answer"):
        await GatewayControl(str(tmp_path / "none.sock"), "token").state()


async def test_stop_lets_running_requests_finish(
    gateway: Gateway, socket_path: str, make_upstream: Any, connect: Any
) -> None:
    go_on = asyncio.Event()

    async def wait(seen: Any) -> None:
        await go_on.wait()
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    upstream = await make_upstream(wait)
    control = GatewayControl(socket_path, "token")
    await control.put_table("e", table(endpoint(upstream)))
    running, idle = await connect(gateway), await connect(gateway)
    await idle.get("/livez")
    running.send(post_bytes({"model": "tiny"}))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    await control.stop(DEADLINE_S)
    assert await idle.at_end()
    assert (await control.state())["stopping"]
    with pytest.raises(OSError):
        await connect(gateway)
    assert not gateway.stopped.is_set()
    go_on.set()
    assert (await running.response()).body == b"ok"
    await asyncio.wait_for(gateway.stopped.wait(), DEADLINE_S)


async def test_stop_ends_at_its_deadline(gateway: Gateway, socket_path: str, make_upstream: Any, connect: Any) -> None:
    upstream = await make_upstream(until_closed)
    control = GatewayControl(socket_path, "token")
    await control.put_table("e", table(endpoint(upstream)))
    (await connect(gateway)).send(post_bytes({"model": "tiny"}))
    await asyncio.wait_for(upstream.arrived.wait(), DEADLINE_S)
    await control.stop(0.2)
    await eventually(gateway.stopped.is_set, "the gateway stopped")
