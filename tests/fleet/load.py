"""Streams that run while a fleet changes: each is compared with the answer of a quiet fleet."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPResponse
from types import TracebackType
from typing import Any

__all__ = ("Load", "num_resumed")


@dataclass
class Load:
    """Clients that ask for one stream after the other, of different prompts, until the block is left.

    apart_s: between the first requests of two clients, so that answers do not end together
    pause_s: between two requests of a client; may be set at any time, so that engines start with less work beside them
    more: what requests ask for besides; those of every second client draw by a seed
    expected: prompt → its answer, where an earlier load has learned it; what is missing is learned at the beginning
    wrong: what was not as it should be; num_streams: how many were asked for
    others: whole answers with another text than the quiet fleet's: the client's number and the text; also in wrong
    """

    url: str
    model: str
    num_clients: int = 4
    max_tokens: int = 60
    timeout_s: float = 60.0
    apart_s: float = 0.0
    pause_s: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    num_streams: int = 0
    others: list[tuple[int, str]] = field(default_factory=list)
    _under_way: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Client's number → the replica that began its answer, and how many lines came."""
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        unknown = [number for number in range(self.num_clients) if self._prompt(number) not in self.expected]
        with ThreadPoolExecutor(self.num_clients) as quiet:
            for number, text in zip(unknown, quiet.map(self.stream, unknown), strict=True):
                self.expected[self._prompt(number)] = text
        self._threads = [threading.Thread(target=self._client, args=(n,)) for n in range(self.num_clients)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(self.timeout_s * 2)

    def stream(self, number: int) -> str:
        """The text of a client's answer. Raises OSError or AssertionError where it is not whole."""
        drawn = {"temperature": 0.8, "seed": number} if number % 2 else {"temperature": 0}
        asked = {"model": self.model, "prompt": self._prompt(number), "max_tokens": self.max_tokens, **drawn}
        whole = {**asked, **self.more, "stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps(whole).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=self.timeout_s) as answer:
            lines = list(self._lines(number, answer))
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert events and events[-1] == "[DONE]", f"no end: {events[-1:]}"
        return _whole_text([json.loads(event) for event in events[:-1]], self.max_tokens)

    def replicas_at_work(self) -> set[str]:
        """Return the replicas that began the answers that are under way."""
        return {replica for replica, _ in list(self._under_way.values())}

    def replica_at_work(self, deadline_s: float = 120.0) -> str:
        """Return the name of a replica that has begun an answer and is far from its end: killed now, it breaks one."""
        ends_s = time.monotonic() + deadline_s
        while time.monotonic() < ends_s:
            for replica, num_lines in list(self._under_way.values()):
                if 10 < num_lines < self.max_tokens:  # an event is two lines
                    return replica
            time.sleep(0.01)
        raise AssertionError(f"no answer was under way within {deadline_s:.0f} s: {self._under_way}")

    def _lines(self, number: int, answer: HTTPResponse) -> Iterator[str]:
        """Yield an answer's lines, noted as they come."""
        replica = answer.headers["x-longboat-replica"] or ""
        for count, line in enumerate(answer):
            self._under_way[number] = replica, count
            yield line.decode().strip()
        self._under_way.pop(number, None)

    def _prompt(self, number: int) -> str:
        return f"row {number} "

    def _client(self, number: int) -> None:
        prompt = self._prompt(number)
        self._over.wait(number * self.apart_s)
        while not self._over.is_set():
            self.num_streams += 1
            try:
                if (text := self.stream(number)) != self.expected[prompt]:
                    self.others.append((number, text))
                    self.wrong.append(f"{prompt}: another text")
            except urllib.error.HTTPError as error:
                self.wrong.append(f"{prompt}: {error.code} {error.read()[:300]!r}")
            except (OSError, AssertionError, ValueError) as error:
                self.wrong.append(f"{prompt}: {error!r}")
            self._over.wait(self.pause_s)


def _whole_text(documents: list[dict[str, Any]], max_tokens: int) -> str:
    broken = [document for document in documents if "error" in document]
    assert not broken, f"in-band error: {broken[0]}"
    used = [document["usage"]["completion_tokens"] for document in documents if document.get("usage")]
    assert used == [max_tokens], f"usage {used}"
    return "".join(choice["text"] for document in documents for choice in document["choices"])


def num_resumed(port: int) -> float:
    """Answers that went on elsewhere so far, at the gateway on this port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = [line for line in answer.read().decode().splitlines() if "resumes_total{" in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'result="resumed"' in line)
