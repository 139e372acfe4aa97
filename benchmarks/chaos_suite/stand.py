"""Everything that a chaos run starts: engines, gateways, the load; and the table that gateways are told."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from chaos_suite.asks import Ask
from chaos_suite.loader import Loader
from chaos_suite.parts import MODEL, EngineOrder, EnginePart, GatewayPart, until
from chaos_suite.places import Place
from longboat.core.policy import Policy
from longboat.core.states import EndpointTable, ResumeLevel
from longboat.engines.contract import RankCommand
from longboat.gateway.config import GatewayConfig, GatewayLimits

__all__ = ("Commands", "Stand", "fake_commands")

HERE = Path(__file__).resolve().parent
ENGINES_S = 600.0
PORTS = 40
COUNT_EVERY_S = 1.0
TABLE_DELAY_S = 0.4
"""What a supervisor and the controller take to tell gateways that an engine is gone."""

Commands = Callable[[int, str, int, str, Path], EngineOrder]
"""From a number, an address, a port, a key and a folder to an engine's command."""

REPLAYING = 1
"""The number of the engine that takes over nothing at once, and so makes the tokens of others again step by step."""


def fake_commands(itl_ms: float, ttft_ms: float, start_s: float) -> Commands:
    """Fake engines of this pace."""

    def command(number: int, address: str, port: int, key: str, folder: Path) -> EngineOrder:
        resume = ResumeLevel.REPLAY if number == REPLAYING else ResumeLevel.CARRIED
        argv = [sys.executable, "-m", "longboat_fake", "--model", MODEL, "--host", address]
        argv += ["--port", str(port), "--itl-ms", f"{itl_ms:g}", "--ttft-ms", f"{ttft_ms:g}"]
        argv += ["--start-s", f"{start_s:g}", "--resume", resume]
        return EngineOrder(
            command=RankCommand(argv=tuple(argv), env={"LONGBOAT_ENGINE_API_KEY": key}), resume=resume,
            url=f"http://{address}:{port}", key=key, log=folder / f"engine-{port}.log", address=address,
        )  # fmt: skip

    return command


class Stand:
    """One run's processes. Everything ends with the block."""

    def __init__(self, place: Place, folder: Path, commands: Commands, *, num_engines: int, num_gateways: int) -> None:
        """One engine more is started, which suffers no fault and is in no table: the reference."""
        self.place = place
        self.key = secrets.token_hex(16)
        self._folder = folder
        self._version = 0
        self._dirty = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.load = Loader(place.way_in(0), folder / "load.log")
        port = _free_ports()
        self.engines = [
            self._engine(number, commands(number, place.address(number + 1), port + number, self.key, folder))
            for number in range(num_engines)
        ]
        self.reference = self._engine(-1, commands(-1, place.address(0), port + num_engines, self.key, folder))
        self.gateways = [self._gateway(number, port + 20 + number) for number in range(num_gateways)]

    def _engine(self, number: int, order: EngineOrder) -> EnginePart:
        argv = [*self.place.way_in(number + 1), sys.executable, str(HERE / "engine_host.py")]
        return EnginePart(f"e{number}", argv, order, self._dirty.set)

    def _gateway(self, number: int, port: int) -> GatewayPart:
        folder = self._folder / f"gateway{number}"
        folder.mkdir(mode=0o700)
        config = GatewayConfig(
            port=port, host=self.place.address(0), control_socket=str(folder / "c.sock"), control_token=self.key,
            fleet="chaos", node=f"g{number}", orphan_grace_s=None, access_log=str(folder / "access.log"),
            policy=Policy(salt=self.key), limits=GatewayLimits(stop_deadline_s=2.0),
        )  # fmt: skip
        return GatewayPart(number, self.place.way_in(0), config, folder / "log")

    async def start(self, asks: Sequence[Ask], *, concurrency: int, deadline_s: float) -> None:
        """Until engines and gateways serve and the load knows what to ask."""
        parts: list[EnginePart | GatewayPart] = [*self.engines, self.reference, *self.gateways]
        self._tasks = [asyncio.create_task(part.run_always()) for part in parts]
        self._tasks += [asyncio.create_task(self._push_always()), asyncio.create_task(self._count_always())]
        await until("all engines serve", lambda: all(e.is_ready for e in (*self.engines, self.reference)), ENGINES_S)
        await until("all gateways serve", lambda: all(gateway.is_up for gateway in self.gateways))
        self._dirty.set()
        await asyncio.sleep(2 * TABLE_DELAY_S)
        await self.load.start(
            asks,
            [(gateway.config.host, gateway.config.port) for gateway in self.gateways],
            concurrency=concurrency,
            deadline_s=deadline_s,
            reference=[_address(self.reference.order.url)],
            engine_key=self.key,
        )

    async def resumes(self) -> dict[str, int]:
        """What gateways counted; of those that were killed, until a moment before."""
        await self._count()
        total: Counter[str] = Counter()
        for gateway in self.gateways:
            total += gateway.resumes.total()
        return dict(total)

    async def _count(self) -> None:
        await asyncio.gather(*(gateway.count() for gateway in self.gateways if gateway.is_up))

    async def _count_always(self) -> None:
        while True:
            await self._count()
            await asyncio.sleep(COUNT_EVERY_S)

    async def stop(self) -> None:
        """Everything that was started."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self.load.stop(), return_exceptions=True)

    async def _push_always(self) -> None:
        """Tell gateways what is ready; that something is gone only after a moment, as a fleet does."""
        known: set[str] = set()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            endpoints = [engine.endpoint() for engine in self.engines if engine.is_ready]
            if not {endpoint.key for endpoint in endpoints} - known:
                await asyncio.sleep(TABLE_DELAY_S)
                endpoints = [engine.endpoint() for engine in self.engines if engine.is_ready]
            known = {endpoint.key for endpoint in endpoints}
            self._version += 1
            table = EndpointTable(version=self._version, models=(MODEL,), endpoints=tuple(endpoints))
            await asyncio.gather(*(gateway.push(table) for gateway in self.gateways))


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def _free_ports() -> int:
    """The first of PORTS that are free together, below those that the system hands out by itself."""
    for _ in range(100):
        first = 20_000 + PORTS * secrets.randbelow(12_000 // PORTS)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + PORTS):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise OSError("no free ports")
