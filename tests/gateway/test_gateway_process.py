"""The gateway as a process: start, port in use, signals, orphans, several workers, access log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_clock import FakeClock
from fake_upstream import DEADLINE_S, STREAM_HEAD, Seen, chunk, event, until_closed
from gateway_lab import RawClient, config, endpoint, eventually, keyed, post_bytes, table

from longboat.core.policy import TenantPolicy
from longboat.gateway.admin.control_client import GatewayControl, gateway_command, gateway_stdin
from longboat.gateway.config import GatewayConfig
from longboat.gateway.process.server import SWEEP_S, Gateway

ASK = {"model": "tiny", "messages": [{"role": "user", "content": "a very private prompt"}]}


@dataclass
class Running:
    process: asyncio.subprocess.Process
    config: GatewayConfig
    port: int = 0

    @property
    def control(self) -> GatewayControl:
        return GatewayControl(self.config.control_socket, self.config.control_token)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), DEADLINE_S)


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Running] = []

    async def run(*, listening: bool = True, **changes: Any) -> Running:
        given = config(control_socket=str(tmp_path / f"c{len(made)}.sock"), **changes)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *gateway_command(), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        made.append(Running(process, given))
        assert process.stdin and process.stdout
        process.stdin.write(gateway_stdin(given))
        process.stdin.close()
        if listening:
            line = json.loads(await asyncio.wait_for(process.stdout.readline(), DEADLINE_S))
            assert (line["event"], line["pid"]) == ("listening", process.pid)
            made[-1].port = line["port"]
        return made[-1]

    yield run
    for running in made:
        if running.process.returncode is None:
            os.killpg(running.process.pid, signal.SIGKILL)
            await running.process.wait()
        for pipe in (running.process.stdout, running.process.stderr):  # workers end after their parent
            assert pipe is not None
            await asyncio.wait_for(pipe.read(), DEADLINE_S)


@pytest.mark.parametrize("processes", [1, 2])
async def test_port_in_use_is_exit_code_2_and_one_line(processes: int, start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        running = await start(listening=False, port=port, processes=processes)
        assert await running.ended() == 2
    assert running.process.stderr
    message = (await running.process.stderr.read()).decode()
    assert message.count("\n") == 1
    assert f"127.0.0.1:{port}" in message and "already in use" in message


async def test_second_gateway_with_workers_does_not_share_the_port(start: Start) -> None:
    first = await start(processes=2)
    second = await start(listening=False, processes=2, port=first.port)
    assert await second.ended() == 2


async def test_bad_configuration_is_exit_code_2(start: Start) -> None:
    running = await start(listening=False, host="not a host name")
    assert await running.ended() == 2


@pytest.mark.parametrize("processes", [1, 2])
async def test_sigterm_ends_it(processes: int, start: Start) -> None:
    running = await start(processes=processes)
    running.process.terminate()
    assert await running.ended() == 0
    assert not Path(running.config.control_socket).exists()


async def test_gateway_that_nobody_asks_for_ends() -> None:
    clock = FakeClock()
    gateway = Gateway(config(orphan_grace_s=60.0), clock)
    await gateway.start()
    for _ in range(3):  # asking keeps it
        clock.now_s += 50
        gateway.steering.heard()
        await asyncio.sleep(2 * SWEEP_S)
    assert not gateway.state.stopping
    clock.now_s += 61
    await asyncio.wait_for(gateway.stopped.wait(), DEADLINE_S)


async def test_workers_that_nobody_asks_for_end(start: Start) -> None:
    running = await start(processes=2, orphan_grace_s=0.5)
    assert await running.ended() == 0


async def test_workers_share_port_table_and_counts(start: Start, make_upstream: Any) -> None:
    upstream = await make_upstream()
    running = await start(processes=2)
    assert await running.control.put_table("e", table(endpoint(upstream), version=4))
    assert not await running.control.put_table("e", table(version=3))
    for _ in range(20):
        client = await RawClient.to(running.port)
        assert (await client.post(ASK)).status == 200
        client.abort()
    state = await running.control.state()
    assert (state["requests_total"], state["version"], state["pid"]) == (20, 4, running.process.pid)
    assert len(set(state["processes"])) == 2 and running.process.pid not in state["processes"]


async def test_workers_count_a_tenants_requests_together(start: Start, make_upstream: Any, tmp_path: Path) -> None:
    running = await start(processes=2, state_folder=str(tmp_path))
    policy, (key,) = keyed(TenantPolicy(name="a", requests_per_minute=12))
    await running.control.put_policy(msgspec.json.encode(policy))
    await running.control.put_table("e", table(endpoint(await make_upstream())))
    answers = []
    for _ in range(30):
        client = await RawClient.to(running.port)
        answers.append((await client.post(ASK, headers=key)).status)
        client.abort()
    # two minutes may have begun meanwhile: then the older one's requests count in part
    assert 12 <= answers.count(200) <= 24
    assert answers[:12] == [200] * 12
    assert 429 in answers


async def test_what_ran_in_a_dead_worker_counts_no_more(start: Start, make_upstream: Any, tmp_path: Path) -> None:
    upstream = await make_upstream(until_closed)
    running = await start(processes=2, state_folder=str(tmp_path))
    policy, (key,) = keyed(TenantPolicy(name="a", concurrent_requests=4))
    await running.control.put_policy(msgspec.json.encode(policy))
    await running.control.put_table("e", table(endpoint(upstream)))
    clients = [await RawClient.to(running.port) for _ in range(4)]
    for client in clients:
        client.send(post_bytes(ASK, headers=key))
    await eventually(lambda: len(upstream.seen) == 4, "all of them run")
    refused = await (await RawClient.to(running.port)).post(ASK, headers=key)
    assert (refused.status, refused.code) == (429, "concurrent_requests")
    for pid in (await running.control.state())["processes"]:
        os.kill(pid, signal.SIGKILL)

    async def ok(seen: Seen) -> None:
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    upstream.script = ok

    async def let_in() -> bool:
        try:
            client = await RawClient.to(running.port)
            return bool((await client.post(ASK, headers=key)).status == 200)
        except (ConnectionError, asyncio.IncompleteReadError):
            return False

    await came_true(let_in)


async def test_worker_with_all_the_demand_gets_nearly_all_slots(start: Start, make_upstream: Any) -> None:
    upstream = await make_upstream()
    running = await start(processes=2)
    await running.control.put_table("e", table(endpoint(upstream, capacity=8)))
    by_worker: dict[str, list[RawClient]] = {}
    while min((len(clients) for clients in by_worker.values()), default=0) < 10 or len(by_worker) < 2:
        client = await RawClient.to(running.port)
        request_id = (await client.post(ASK)).headers["x-request-id"]
        by_worker.setdefault(request_id.rpartition("-")[0], []).append(client)
    upstream.script = until_closed
    upstream.seen.clear()

    def num_sent() -> int:
        return sum(seen.head.startswith(b"POST") for seen in upstream.seen)

    busy, idle = by_worker.values()
    for client in busy[:10]:
        client.send(post_bytes(ASK))
    await eventually(lambda: num_sent() == 7, "all slots but one are the busy worker's")
    state = await running.control.state()
    assert state["tenant_demands"] == {"tiny": {"anonymous": [1.0, 7, 3]}}
    idle[0].send(post_bytes(ASK))
    await eventually(lambda: num_sent() == 8, "the other worker has a slot")


async def test_response_is_found_by_whichever_worker_is_asked(start: Start, make_upstream: Any) -> None:
    async def keeper(seen: Seen) -> None:
        body = b'{"id": "resp_1", "object": "response"}'
        await seen.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    running = await start(processes=2)
    engines = [endpoint(await make_upstream(keeper), "r0"), endpoint(await make_upstream(), "r1")]
    await running.control.put_table("e", table(*engines))
    maker = None
    while maker != "r0":
        made = await (await RawClient.to(running.port)).post({"model": "tiny", "input": "x"}, "/v1/responses")
        maker = made.headers["x-longboat-replica"]
    for _ in range(12):
        client = await RawClient.to(running.port)
        found = await client.get("/v1/responses/resp_1")
        assert (found.status, found.headers["x-longboat-replica"]) == (200, "r0")
        assert (await client.get("/v1/responses/resp_2")).status == 404
        client.abort()


async def test_dead_worker_is_replaced_and_gets_the_table(start: Start, make_upstream: Any) -> None:
    upstream = await make_upstream()
    running = await start(processes=2)
    await running.control.put_table("e", table(endpoint(upstream)))
    old = (await running.control.state())["processes"]
    os.kill(old[0], signal.SIGKILL)
    await came_true(lambda: _replaced(running, old[0]))
    await came_true(lambda: _ready_everywhere(running.port))


async def came_true(fact: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await fact():  # noqa: ASYNC110 what happens is in other processes
            await asyncio.sleep(0.05)


async def _replaced(running: Running, old_pid: int) -> bool:
    pids = (await running.control.state())["processes"]
    return len(pids) == 2 and old_pid not in pids


async def _ready_everywhere(port: int) -> bool:
    for _ in range(20):
        client = await RawClient.to(port)
        status = (await client.get("/readyz")).status
        client.abort()
        if status != 200:
            return False
    return True


async def test_workers_end_with_their_parent(start: Start) -> None:
    running = await start(processes=2)
    workers = (await running.control.state())["processes"]
    running.process.kill()
    await running.ended()
    await eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in workers), "the workers ended")


async def test_access_log_has_a_line_a_request_and_no_prompt(start: Start, make_upstream: Any, tmp_path: Path) -> None:
    async def stream(seen: Any) -> None:
        await seen.send(STREAM_HEAD + chunk(event("secret answer")) + b"0\r\n\r\n")

    path = tmp_path / "access.log"
    running = await start(access_log=str(path))
    await running.control.put_table("e", table(endpoint(await make_upstream(stream), "r7")))
    client = await RawClient.to(running.port)
    await client.post(ASK, headers="x-request-id: one\r\n")
    await client.post({"model": "nope"}, headers="x-request-id: two\r\n")
    await running.control.stop()
    assert await running.ended() == 0
    text = path.read_text()
    assert "private" not in text and "secret" not in text
    one, two = map(json.loads, text.splitlines())
    assert (one["id"], one["model"], one["replica"], one["status"]) == ("one", "tiny", "r7", 200)
    assert one["bytes"] == len(event("secret answer")) and 0 <= one["ttft_ms"] <= one["total_ms"]
    assert (two["id"], two["status"], two["error"]) == ("two", 404, "model_not_found")


async def test_full_disk_does_not_end_the_serving(start: Start) -> None:
    running = await start(access_log="/dev/full")
    await running.control.put_table("e", table())
    client = await RawClient.to(running.port)
    for dropped in (1, 2):
        assert (await client.post({**ASK, "model": "nobody"})).status == 404
        await came_true(lambda n=dropped: _dropped(running, n))


async def _dropped(running: Running, num_lines: int) -> bool:
    return bool((await running.control.state())["log_lines_dropped"] == num_lines)


async def test_gateway_loads_nothing_heavy() -> None:
    program = "import sys, longboat.gateway.__main__; print(sorted({m.split('.')[0] for m in sys.modules}))"
    argv = [gateway_command()[0], "-P", "-c", program]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    loaded = set(json.loads(out.decode().replace("'", '"')))
    assert not loaded & {"ray", "torch", "vllm", "pydantic", "httpx", "fastapi", "aiohttp"}
