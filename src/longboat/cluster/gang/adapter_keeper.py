"""Keeps one engine's adapters as the controller wants them: stages their files on all nodes, and tells the engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from longboat.cluster.gang.gang import Gang
from longboat.cluster.protocol.model import WantedAdapter
from longboat.core.errors import LongboatError
from longboat.engines.contract import ADAPTERS_PATH
from longboat.gateway.http.message import ask
from longboat.telemetry import logger

__all__ = ("AdapterKeeper", "KnownAdapters", "entries_for")

log = logger("adapters")

GRACE_S = 60.0
"""How long an engine still knows what left the list: requests on the way name it, and streams are continued with it."""
LOOK_EVERY_S = 5.0
AGAIN_S = 60.0
"""How long after a failure a node is asked again to copy an adapter."""
TELL_TIMEOUT_S = 60.0
FIRST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAdapters:
    """What one engine has."""

    revisions: dict[str, str] = field(default_factory=dict)  # name → the newest revision that it knows
    held: tuple[str, ...] = ()  # names of those in its memory
    problems: dict[str, str] = field(default_factory=dict)  # name → revision, and why this cannot be served


def entries_for(
    wanted: Sequence[WantedAdapter], before: dict[tuple[str, str], float], now_s: float
) -> dict[tuple[str, str], float]:
    """Return name and revision of what the engine is to know, each with the time until which it stays; older first.

    before: the last answer; what is wanted stays without an end, what left the list for ``GRACE_S``
    """
    keys = [(adapter.name, adapter.revision) for adapter in wanted]
    until_s = {key: min(at_s, now_s + GRACE_S) for key, at_s in before.items() if key not in keys}
    return {**{key: at_s for key, at_s in until_s.items() if at_s > now_s}, **dict.fromkeys(keys, float("inf"))}


class AdapterKeeper:
    """The keeper of one gang's adapters. It tells the engine again now and then, so that both agree in the end."""

    def __init__(self, gang: Gang, on_change: Callable[[], None]) -> None:
        self._gang = gang
        self._on_change = on_change
        self._wanted: tuple[WantedAdapter, ...] | None = None
        self._entries: dict[tuple[str, str], float] = {}
        self._paths: dict[tuple[str, str], str] = {}
        self._pinned: set[str] = set()  # revisions that some node of the gang may have pinned
        self._failed: dict[tuple[str, str], tuple[float, str]] = {}  # copies: when to try again, and what was wrong
        self._changed = asyncio.Event()
        self._told_once = asyncio.Event()
        self.known = KnownAdapters()

    def take(self, wanted: tuple[WantedAdapter, ...]) -> None:
        """Take over what the controller wants."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    async def run(self) -> None:
        """Keep the engine's adapters as they are wanted, until cancelled."""
        while True:
            self._changed.clear()
            if self._wanted is not None:
                await self._tell(self._wanted)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LOOK_EVERY_S)

    async def wait_first(self) -> None:
        """Wait until the engine got its adapters once, but no longer than ``FIRST_WAIT_S``."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._told_once.wait(), FIRST_WAIT_S)

    async def _tell(self, wanted: tuple[WantedAdapter, ...]) -> None:
        self._entries = entries_for(wanted, self._entries, time.monotonic())
        problems = await self._stage(wanted)
        told = [
            {"name": n, "revision": r, "path": self._paths[n, r]} for n, r in self._entries if (n, r) in self._paths
        ]
        try:
            self._learn(wanted, await self._ask({"adapters": told}), problems)
        except (OSError, ValueError, KeyError, TypeError) as error:  # the next turn tries again
            log.warning("the engine does not take its adapters: %r", error)
        else:
            await self._unpin({revision for _, revision in self._entries})

    async def _stage(self, wanted: tuple[WantedAdapter, ...]) -> dict[str, str]:
        """Put the files of new adapters on all nodes of the gang. Return name → why that failed."""
        for adapter in wanted:
            key = (adapter.name, adapter.revision)
            again_s, _ = self._failed.get(key, (0.0, ""))
            if key in self._paths or time.monotonic() < again_s:
                continue
            self._failed.pop(key, None)
            self._pinned.add(adapter.revision)  # a node may have its copy although another one fails
            try:
                self._paths[key] = await self._gang.stage(adapter.source, adapter.revision)
            except Exception as error:  # Ray wraps errors of other nodes in classes of its own
                cause = getattr(error, "cause", error)
                why = str(cause if isinstance(cause, LongboatError) else repr(cause))
                self._failed[key] = (time.monotonic() + AGAIN_S, why)
        keys = [(adapter.name, adapter.revision) for adapter in wanted]
        return {name: self._failed[name, revision][1] for name, revision in keys if (name, revision) in self._failed}

    async def _unpin(self, needed: set[str]) -> None:
        """Let the nodes remove the copies of revisions that the engine does not know any more."""
        if not self._pinned - needed:
            return
        self._paths = {key: path for key, path in self._paths.items() if key[1] in needed}
        try:
            await self._gang.keep_adapters(tuple(sorted(self._pinned & needed)))
        except Exception as error:  # the next turn tries again; the locks of an agent that is lost end with it
            log.warning("copies of adapters stay pinned: %r", error)
        else:
            self._pinned &= needed

    async def _ask(self, document: dict[str, Any]) -> dict[str, Any]:
        plan = self._gang.plan
        answer = await ask(
            self._gang.url,
            ADAPTERS_PATH,
            method="POST",
            body=json.dumps(document).encode(),
            headers={"content-type": "application/json"},
            api_key=plan.api_key if plan else "",
            timeout_s=TELL_TIMEOUT_S,
        )
        if answer.status != 200:
            raise ValueError(f"{answer.status} {answer.body[:200].decode(errors='replace')}")
        told: dict[str, Any] = json.loads(answer.body)
        return told

    def _learn(self, wanted: tuple[WantedAdapter, ...], answer: dict[str, Any], problems: dict[str, str]) -> None:
        known, held = set(answer["known"]), set(answer["held"])
        keys = {adapter.name: f"{adapter.name}@{adapter.revision}" for adapter in wanted}
        refused = {name: answer["problems"][key] for name, key in keys.items() if key in answer["problems"]}
        revisions = {adapter.name: adapter.revision for adapter in wanted}
        now = KnownAdapters(
            revisions={adapter.name: adapter.revision for adapter in wanted if keys[adapter.name] in known},
            held=tuple(name for name, key in keys.items() if key in held),
            problems={name: f"{revisions[name]}: {why}" for name, why in {**refused, **problems}.items()},
        )
        if now != self.known:
            self.known = now
            self._on_change()
        self._told_once.set()
