"""The load of a chaos run from outside: starts its process, orders phases, hears every answer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos_suite.asks import Ask
from chaos_suite.parts import begin, end

__all__ = ("Loader",)

HERE = Path(__file__).resolve().parent
Address = tuple[str, int]


class Loader:
    """One load process. Every answer is also written to ``answers.jsonl`` beside the log: a run may be cut short."""

    def __init__(self, way_in: Sequence[str], log: Path) -> None:
        self._argv = [*way_in, sys.executable, str(HERE / "load_process.py")]
        self._log = log
        self._answers = log.with_name("answers.jsonl")
        self._process: asyncio.subprocess.Process | None = None

    async def start(
        self,
        asks: Sequence[Ask],
        addresses: Sequence[Address],
        *,
        concurrency: int,
        deadline_s: float,
        reference: Sequence[Address] = (),
        engine_key: str = "",
    ) -> None:
        """addresses: of gateways; reference: of an engine that suffers no fault, asked where only the seed is known."""
        order = {
            "asks": [dataclasses.asdict(ask) for ask in asks],
            "addresses": list(addresses),
            "concurrency": concurrency,
            "deadline_s": deadline_s,
            "reference": list(reference),
            "engine_key": engine_key,
        }
        self._process = await begin(self._argv, self._log, first=json.dumps(order).encode() + b"\n")
        await self._told()

    async def phase(
        self,
        name: str,
        num_streams: int,
        meanwhile: asyncio.Task[Any] | None = None,
        *,
        concurrency: int | None = None,
    ) -> list[dict[str, Any]]:
        """Every answer of one phase. It goes on until ``meanwhile`` is done, and ``num_streams`` were had.

        concurrency: of this phase, where it is not that of all
        """
        self._order(phase=name, streams=num_streams, concurrency=concurrency)
        if name != "reference":
            if meanwhile is None:
                self._order(finish=True)
            else:
                meanwhile.add_done_callback(lambda _: self._order(finish=True))
        answers: list[dict[str, Any]] = []
        with self._answers.open("a") as file:
            while "ended" not in (line := await self._told()):
                answers.append(dict(line))
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return answers

    async def stop(self) -> None:
        await end(self._process)

    def _order(self, **order: Any) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _told(self) -> Mapping[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the load ended: {self._log.read_text()[-2000:]}")
        told: Mapping[str, Any] = json.loads(line)
        return told
