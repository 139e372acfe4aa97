"""Clients with streams while nodes restart or die: each answer comes whole, from whichever gateway is there."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

from fleet.fleet_lab import wait_until
from longboat.cli.chat.lasting_answer import LastingAnswer, Refused
from longboat.core.errors import ClusterError

MOST_S = 400.0


@dataclass
class Streams:
    """Clients that ask for one stream after the other until the block is left."""

    bases: Sequence[str]
    model: str
    num_clients: int
    max_tokens: int = 60
    num_whole: int = 0
    num_events: int = 0
    num_continued: int = 0  # requests for the rest of an answer whose gateway went away
    # What was not as it should be: a client's number and what it got.
    failed: list[tuple[int, str]] = field(default_factory=list)
    differing: list[tuple[int, str]] = field(default_factory=list)
    _quiet: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Streams:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        hooks = {"request": [self._note]}
        self._http = httpx.Client(timeout=MOST_S, limits=limits, event_hooks=hooks)
        with ThreadPoolExecutor(self.num_clients) as pool:
            self._quiet = list(pool.map(self.text, range(self.num_clients)))
        self._threads = [threading.Thread(target=self._client, args=(n,)) for n in range(self.num_clients)]
        before = self.num_events
        for thread in self._threads:
            thread.start()
        wait_until("streams run", lambda: self.num_events >= before + self.num_clients)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(MOST_S)
        self.failed += [(n, "it has not ended") for n, thread in enumerate(self._threads) if thread.is_alive()]
        self._http.close()

    def _note(self, request: httpx.Request) -> None:
        self.num_continued += "last-event-id" in request.headers

    def text(self, number: int) -> str:
        """Return a client's answer; even clients are greedy, odd ones draw by a seed."""
        drawn = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
        asked = {"model": self.model, "prompt": f"row {number} ", "max_tokens": self.max_tokens}
        at = number % len(self.bases)
        bases = [*self.bases[at:], *self.bases[:at]]
        events = self._events(bases, json.dumps({**asked, **drawn, "stream": True}).encode())
        if broken := [event for event in events if "error" in event]:
            raise ValueError(str(broken[0]))
        return "".join(choice["text"] for event in events for choice in event["choices"])

    def _events(self, bases: Sequence[str], body: bytes) -> list[Any]:
        """Return an answer's events. A request that reaches no gateway is sent again, as by any client."""
        events: list[Any] = []
        end_s = time.monotonic() + MOST_S
        while True:
            try:
                for data in LastingAnswer(self._http, bases, "/v1/completions", body):
                    events.append(json.loads(data))
                    self.num_events += 1
                return events
            except ClusterError:
                if events or time.monotonic() > end_s:
                    raise
                time.sleep(0.5)

    def _client(self, number: int) -> None:
        while not self._over.is_set():
            try:
                text = self.text(number)
            except Refused as error:
                self.failed.append((number, f"{error.status} {error.body[:300]!r}"))
            except (ClusterError, ValueError) as error:
                self.failed.append((number, str(error)))
            else:
                self.num_whole += 1
                if text != self._quiet[number]:
                    self.differing.append((number, text))
