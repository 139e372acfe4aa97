"""Pins of adapters' copies: every node of a gang lets go of them, and none before the engine has forgotten them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapter_files import write_adapter
from longboat.catalog.read_adapter import adapter_revision
from longboat.cluster.gang import adapter_keeper
from longboat.cluster.gang.adapter_keeper import AdapterKeeper
from longboat.cluster.gang.gang import Gang
from longboat.cluster.protocol.model import WantedAdapter
from longboat.cluster.weights.adapter_copies import AdapterCopies
from longboat.engines.fake import FakeAdapter
from longboat.file_lock import FileLock


class Node:
    """An agent's part that pins copies, in a home of its own."""

    def __init__(self, home: Path, *, fails: bool = False) -> None:
        self.home = home
        self.fails = fails
        self.copies = AdapterCopies(home)

    async def stage(self, source: str, revision: str) -> str:
        if self.fails:
            raise OSError("this node cannot read the adapter")
        self.copies.use(source, revision)
        return source

    async def keep_adapters(self, revisions: Sequence[str]) -> None:
        if self.fails:
            raise OSError("this node is away")
        self.copies.keep(revisions)

    def is_pinned(self, revision: str) -> bool:
        lock = FileLock.taken(self.home / "adapters" / ".locks" / revision)
        if lock is not None:
            lock.release()
        return lock is None


class Engine:
    """An engine that knows what it was told last, unless it refuses to be told."""

    def __init__(self) -> None:
        self.url = ""
        self.refuses = False
        self.known: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        told = json.loads(await reader.readexactly(length))["adapters"]
        if not self.refuses:
            self.known = [f"{entry['name']}@{entry['revision']}" for entry in told]
        body = json.dumps({"known": self.known, "held": [], "problems": {}}).encode()
        status = b"503 Busy" if self.refuses else b"200 OK"
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        writer.close()


class GangOf(Gang):
    """A gang whose engine is at a known address."""

    def __init__(self, nodes: Sequence[Any], engine: Engine) -> None:
        super().__init__(nodes, FakeAdapter())
        self._engine = engine

    @property
    def url(self) -> str:
        return self._engine.url


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(adapter_keeper, "GRACE_S", 0.0)
    made = Engine()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.url = "http://{}:{}".format(*server.sockets[0].getsockname()[:2])
        yield made


@pytest.fixture
def adapter(tmp_path: Path) -> WantedAdapter:
    source = write_adapter(tmp_path / "adapter", 1)
    return WantedAdapter(name="one", source=str(source), revision=adapter_revision(source))


async def test_what_only_some_nodes_copied_is_unpinned_with_the_adapter(
    tmp_path: Path, engine: Engine, adapter: WantedAdapter
) -> None:
    good, bad = Node(tmp_path / "good"), Node(tmp_path / "bad", fails=True)
    keeper = AdapterKeeper(GangOf((good, bad), engine), lambda: None)
    await keeper._tell((adapter,))
    assert good.is_pinned(adapter.revision)
    assert "cannot read" in keeper.known.problems["one"]
    good.fails = True
    await keeper._tell(())
    assert good.is_pinned(adapter.revision)
    good.fails = bad.fails = False
    await keeper._tell(())
    assert not good.is_pinned(adapter.revision), "what a node did not hear is said again"


async def test_a_copy_stays_pinned_until_the_engine_has_forgotten_it(
    tmp_path: Path, engine: Engine, adapter: WantedAdapter
) -> None:
    node = Node(tmp_path / "home")
    keeper = AdapterKeeper(GangOf((node,), engine), lambda: None)
    await keeper._tell((adapter,))
    assert engine.known == [f"one@{adapter.revision}"]
    engine.refuses = True
    await keeper._tell(())
    assert node.is_pinned(adapter.revision)
    engine.refuses = False
    await keeper._tell(())
    assert engine.known == []
    assert not node.is_pinned(adapter.revision)
