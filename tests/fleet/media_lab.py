"""What tests of images and of audio share: a server of files, chats, and streams that outlive their replica."""

from __future__ import annotations

import http.server
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import num_resumed

__all__ = ("Files", "ask", "outlive_their_replica", "said", "served", "streamed")


LONG: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True, "stream": True}
"""What makes the response of a paced engine a stream of seconds."""


@dataclass
class Files:
    """Files that are served on loopback, by their paths; any other path is a redirect to the first file."""

    files: dict[str, bytes]
    port: int = 0
    asked: list[str] = field(default_factory=list)


@contextmanager
def served(files: dict[str, bytes]) -> Iterator[Files]:
    """Serve these files, and note the path of each request."""
    found = Files(files)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            data = files.get(self.path)
            self.send_response(302 if data is None else 200)
            if data is None:
                self.send_header("Location", next(iter(files)))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def ask(up: FleetLab, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{up.local_port}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(asked).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def said(up: FleetLab, asked: dict[str, Any]) -> str:
    status, answer = ask(up, asked)
    assert status == 200, answer
    return str(answer["choices"][0]["message"]["content"])


def outlive_their_replica(up: FleetLab, model: str, cases: Sequence[dict[str, Any]]) -> None:
    """Kill the replica of a stream while all cases run, long ones; each must give the text that it gives alone."""
    cases = [case | LONG for case in cases]
    expected = [streamed(up, case, [], []) for case in cases]
    assert len(set(expected)) == len(cases)
    before = num_resumed(up.local_port)
    pids = {replica["replica"]: replica["ranks"][0]["pid"] for replica in up.replicas(model)}
    found: list[str] = [""] * len(cases)
    events: list[list[str]] = [[] for _ in cases]
    served_by: list[list[str]] = [[] for _ in cases]

    def client(at: int) -> None:
        found[at] = streamed(up, cases[at], events[at], served_by[at])

    threads = [threading.Thread(target=client, args=(at,)) for at in range(len(cases))]
    for thread in threads:
        thread.start()
    wait_until("streams run", lambda: all(len(one) > 10 for one in events))
    newest = min(range(len(cases)), key=lambda at: len(events[at]))  # others may be at their end
    os.kill(pids[served_by[newest][0]], 9)
    for thread in threads:
        thread.join(200)
    assert found == expected
    assert num_resumed(up.local_port) > before


def streamed(up: FleetLab, asked: dict[str, Any], events: list[str], served_by: list[str]) -> str:
    """The text of a stream. Its events are noted as they come, and the replica that begins it."""
    url = f"http://127.0.0.1:{up.local_port}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(asked).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=240) as answer:
        served_by.append(answer.headers["x-longboat-replica"])
        events.extend(line.decode()[6:].strip() for line in answer if line.startswith(b"data: "))
    assert events[-1] == "[DONE]", events[-1]
    parts = [json.loads(event)["choices"] for event in events[:-1]]
    return "".join(choice[0]["delta"].get("content") or "" for choice in parts if choice)
