"""Tests of zygotes: one per environment, private to the user, and no engine depends on its zygote's life."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from longboat.core.errors import EngineError
from longboat.engines.contract import EngineEnvironment, RankCommand, ZygoteRequest
from longboat.engines.launch.process import RankExit, RankProcess, start_rank
from longboat.engines.launch.zygote_client import ZygoteClient, ensure_zygote, stop_all
from waiting import is_alive, wait_until_async

DEADLINE_S = 30.0
ENTRY = """
import json, os, random, sys, threading, time
READ_AT_IMPORT = os.environ.get("PRELOADED")
def main():
    what = sys.argv[1]
    if what == "tell":
        fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
        print(json.dumps({"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "random": random.random(),
            "threads": threading.active_count(), "tty": os.readlink("/proc/self/fd/0"), "read": READ_AT_IMPORT,
            "targets": [os.readlink(f"/proc/self/fd/{fd}") for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]}))
    elif what == "fail":
        raise RuntimeError("engine broke")
    elif what == "family":
        if os.fork() == 0:
            time.sleep(600)
        print("up", flush=True)
        time.sleep(600)
    else:
        print("up", flush=True)
        time.sleep(600)
"""


def command(*words: str, **env: str | None) -> RankCommand:
    return RankCommand(argv=("unused",), env=env, zygote=ZygoteRequest(argv=("engine", *words)))


async def test_a_fork_that_is_cancelled_before_its_thread_begins_leaves_no_descriptors(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def occupy() -> None:
        begun.set()
        go_on.wait(DEADLINE_S)

    with ThreadPoolExecutor(1) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        busy = asyncio.create_task(asyncio.to_thread(occupy))
        await asyncio.sleep(0)
        assert begun.wait(DEADLINE_S)
        before = os.listdir("/proc/self/fd")
        client = ZygoteClient(socket_path=tmp_path / "none.sock", token="t")
        fork = asyncio.create_task(client.fork(command("x"), env_tags={}, lifeline_fd=0, status_fd=1, log_fd=2))
        await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) == len(before) + 3
        fork.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fork
        assert len(os.listdir("/proc/self/fd")) == len(before)
        go_on.set()
        await busy


@dataclasses.dataclass
class Node:
    """A node's run folder, with an engine environment in which ``ENTRY`` is the engine."""

    run: Path
    overlay: Path
    environment: EngineEnvironment

    async def zygote(
        self, *, environment: EngineEnvironment | None = None, lifeline_pid: int | None = None, wait_s: float = 20.0
    ) -> ZygoteClient | None:
        return await ensure_zygote(
            environment or self.environment,
            self.overlay,
            {"PRELOADED": "early"},
            self.run,
            lifeline_pid or os.getpid(),
            wait_s=wait_s,
            options=("--preload", "fake_entry", "--entry", "fake_entry:main"),
        )

    async def ready(self) -> ZygoteClient:
        client = await self.zygote()
        assert client is not None
        return client

    @property
    def log(self) -> Path:
        return self.run / "rank0.log"

    async def rank(self, client: ZygoteClient, wanted: RankCommand, **marks: str) -> RankProcess:
        return await start_rank(wanted, env_tags=marks, log_path=self.log, zygote=client)

    async def up(self, client: ZygoteClient, *words: str, **marks: str) -> RankProcess:
        rank = await self.rank(client, command(*words), **marks)
        await wait_until_async(lambda: "up" in self.log.read_text(), "engine is up")
        return rank


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    (overlay / "fake_entry.py").write_text(ENTRY)
    environment = EngineEnvironment(
        kind="vllm", python=sys.executable, distribution="vllm", version="0", platform="cpu", fingerprint="one"
    )
    run = tmp_path / "a-run-folder-with-a-name-so-long-that-a-socket-address-could-never-hold-it-in-its-107-bytes"
    run.mkdir()
    yield Node(run, overlay, environment)
    await asyncio.to_thread(stop_all, run)


async def ended(rank: RankProcess) -> RankExit:
    return await asyncio.wait_for(rank.wait(), DEADLINE_S)


async def test_ping_says_what_the_zygote_is(node: Node) -> None:
    state = await (await node.ready()).ping()
    assert (state.fingerprint, state.threads, state.num_forks) == ("one", 1, 0)
    assert state.modules == ("fake_entry",)
    assert state.lifeline_pid == os.getpid()


async def test_fork_is_a_server_of_its_own(node: Node) -> None:
    client = await node.ready()
    marks = {"LONGBOAT_GANG": f"test/{uuid.uuid4()}"}
    wanted = command("tell", "a b", ADDED="yes", PATH=None)
    async with await node.rank(client, wanted, **marks) as rank:
        assert await ended(rank) == RankExit(returncode=0)
        assert rank.started_by == "zygote"
    told = json.loads(node.log.read_text())
    assert told["argv"] == ["engine", "tell", "a b"]
    assert told["env"]["ADDED"] == "yes"
    assert told["env"]["LONGBOAT_GANG"] == marks["LONGBOAT_GANG"]
    assert told["env"]["LONGBOAT_FORKED"] == "1"
    assert "PATH" not in told["env"]
    assert (told["read"], told["cwd"], told["threads"], told["tty"]) == ("early", os.getcwd(), 1, "/dev/null")
    assert not [target for target in told["targets"] if target.startswith("socket:")]


async def test_forks_do_not_share_randomness(node: Node) -> None:
    client = await node.ready()
    for _ in range(2):
        async with await node.rank(client, command("tell")) as rank:
            await ended(rank)
    first, second = (json.loads(line)["random"] for line in node.log.read_text().splitlines())
    assert first != second
    assert (await client.ping()).num_forks == 2


async def test_failure_of_the_engine_is_in_its_log_and_exit_code(node: Node) -> None:
    async with await node.rank(await node.ready(), command("fail")) as rank:
        assert await ended(rank) == RankExit(returncode=1)
    assert "RuntimeError: engine broke" in node.log.read_text()


async def test_marks_are_seen_on_every_forked_process(node: Node) -> None:
    gang = f"test/{uuid.uuid4()}"
    async with await node.up(await node.ready(), "family", LONGBOAT_GANG=gang) as rank:
        seen = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if f"LONGBOAT_GANG={gang}".encode() in _read(path).split(b"\0")
        ]
        assert {rank.pid, rank.keeper_pid} < set(seen)
        assert len(seen) == 3


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_loss_of_main_and_keeper_ends_forked_children(node: Node) -> None:
    client = await node.ready()
    rank = await node.up(client, "family")
    children = [int(word) for word in Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split()]
    assert len(children) == 1
    os.kill(rank.keeper_pid, signal.SIGKILL)
    await wait_until_async(lambda: not any(map(is_alive, [rank.pid, *children])), "the family ends")


async def test_close_ends_a_forked_rank(node: Node) -> None:
    rank = await node.up(await node.ready(), "family")
    rank.close()
    assert await ended(rank) == RankExit(signal=signal.SIGKILL)
    assert not is_alive(rank.pid)


async def test_crash_of_the_zygote_harms_no_engine(node: Node) -> None:
    client = await node.ready()
    async with await node.up(client, "serve") as rank:
        os.kill((await client.ping()).pid, signal.SIGKILL)
        successor = await node.ready()
        assert (await successor.ping()).num_forks == 0
        assert is_alive(rank.pid)
        rank.kill()
        assert await ended(rank) == RankExit(signal=signal.SIGKILL)


async def test_zygote_ends_with_its_lifeline_process_and_its_engines_stay(node: Node) -> None:
    owner = await asyncio.create_subprocess_exec("sleep", "600")
    client = await node.zygote(lifeline_pid=owner.pid)
    assert client is not None
    pid = (await client.ping()).pid
    async with await node.up(client, "serve") as rank:
        owner.kill()
        await asyncio.wait_for(owner.wait(), DEADLINE_S)
        await wait_until_async(lambda: not is_alive(pid), "zygote ends")
        assert is_alive(rank.pid)
        assert not client.socket_path.exists()


async def test_zygote_whose_lifeline_process_has_ended_imports_nothing_and_listens_nowhere(node: Node) -> None:
    owner = await asyncio.create_subprocess_exec("true")
    await asyncio.wait_for(owner.wait(), DEADLINE_S)
    imported = node.overlay / "imported"
    (node.overlay / "fake_entry.py").write_text(f"open({str(imported)!r}, 'w').close()\n")
    with pytest.raises(EngineError, match="ended while starting"):
        await node.zygote(lifeline_pid=owner.pid)
    assert not imported.exists() and not list((node.run / "zygotes").glob("*.sock"))


async def test_concurrent_callers_start_one_zygote(node: Node) -> None:
    clients = await asyncio.gather(*(node.ready() for _ in range(6)))
    assert len({(await client.ping()).pid for client in clients}) == 1


async def test_zygote_is_kept_while_it_fits(node: Node) -> None:
    first, second = [await (await node.ready()).ping() for _ in range(2)]
    assert first.pid == second.pid


async def test_zygote_is_replaced_when_the_environment_changed(node: Node) -> None:
    first = await (await node.ready()).ping()
    client = await node.zygote(environment=dataclasses.replace(node.environment, fingerprint="two"))
    assert client is not None
    second = await client.ping()
    assert second.fingerprint == "two"
    assert not is_alive(first.pid)


async def test_zygote_that_does_not_answer_is_replaced(node: Node) -> None:
    first = await (await node.ready()).ping()
    os.kill(first.pid, signal.SIGSTOP)
    second = await (await node.ready()).ping()
    assert second.pid != first.pid
    assert not is_alive(first.pid)


async def test_zygote_that_is_not_ready_in_time_is_none_and_ready_later(node: Node) -> None:
    assert await node.zygote(wait_s=0.0) is None
    assert (await (await node.ready()).ping()).num_forks == 0


async def test_zygote_that_cannot_start_is_an_error_with_its_log(node: Node) -> None:
    (node.overlay / "fake_entry.py").write_text("raise SystemExit('no engine here')")
    with pytest.raises(EngineError) as caught:
        await node.ready()
    assert "no engine here" in caught.value.log_tail


async def test_wrong_token_is_refused(node: Node) -> None:
    client = dataclasses.replace(await node.ready(), token="guessed")
    with pytest.raises(EngineError, match="wrong token"):
        await client.ping()
    with pytest.raises(EngineError, match="wrong token"):
        await node.rank(client, command("serve"))


async def test_files_are_for_this_user_alone(node: Node) -> None:
    client = await node.ready()
    assert client.socket_path.parent.stat().st_mode & 0o077 == 0
    assert client.socket_path.stat().st_mode & 0o077 == 0
    assert client.socket_path.with_suffix(".token").stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can call as another user")
async def test_another_user_is_refused_even_with_the_token(node: Node) -> None:
    client = await node.ready()
    code = (
        "import os, socket, sys\n"
        "os.chdir(sys.argv[1]); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[2])\n"
        'data = (\'{"op": "ping", "token": "\' + sys.argv[3] + \'"}\').encode()\n'
        "s.sendall(len(data).to_bytes(4, 'big') + data); print(s.recv(1000)[4:].decode())\n"
    )
    # Folder and socket are opened to the other user, so that only the zygote's own check is left.
    client.socket_path.parent.chmod(0o711)
    client.socket_path.chmod(0o666)
    argv = [sys.executable, "-I", "-c", code, str(client.socket_path.parent), client.socket_path.name, client.token]
    done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=DEADLINE_S)
    assert "65534 may not use this socket" in done.stdout


@pytest.mark.parametrize(
    "sent",
    [b"", b"\0\0", b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\5hello", b"\0\0\0\2{}", b"GET / HTTP/1.1\r\n\r\n"],
)
async def test_nonsense_on_the_socket_is_survived(node: Node, sent: bytes) -> None:
    client = await node.ready()
    with socket.socket(socket.AF_UNIX) as connection:
        folder_fd = os.open(client.socket_path.parent, os.O_PATH)
        connection.connect(f"/proc/self/fd/{folder_fd}/{client.socket_path.name}")
        os.close(folder_fd)
        connection.sendall(sent)
    assert (await client.ping()).num_forks == 0


async def test_fork_is_refused_while_threads_run(node: Node) -> None:
    (node.overlay / "fake_entry.py").write_text(ENTRY + "LATER = threading.Timer(600, print)\nLATER.daemon = True\n")
    code = "\ndef _start():\n    LATER.start()\nimport gc\ngc.freeze = _start\n"
    with (node.overlay / "fake_entry.py").open("a") as file:
        file.write(code)
    with pytest.raises(EngineError) as caught:
        await node.ready()
    assert any("threads run in the zygote" in line for line in caught.value.log_tail)


async def test_stop_all_ends_every_zygote(node: Node) -> None:
    client = await node.ready()
    state = await client.ping()
    await asyncio.to_thread(stop_all, node.run)
    assert not is_alive(state.pid)
    assert not client.socket_path.exists()


async def test_command_that_cannot_be_forked_starts_plainly(node: Node) -> None:
    plain = RankCommand(argv=("true",), env={})
    async with await node.rank(await node.ready(), plain) as rank:
        assert rank.started_by == "plain"
        assert await ended(rank) == RankExit(returncode=0)
