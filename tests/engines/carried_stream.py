"""Builders for tests of resuming: reading a stream with its journal, and carrying it to another engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from engines.fake_process import PLAIN

__all__ = ("KEY", "PATHS", "Stream", "carried_head", "journalled")

KEY = "s3cret"
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


@dataclass
class Stream:
    """One streamed response. ids: by choice; event_ids: the ``id:`` of each event; body: as it came."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    ids: dict[int, list[int]] = field(default_factory=dict)
    event_ids: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    body: bytes = b""

    def take(self, line: str) -> None:
        if line.startswith(": ids "):
            _, _, choice, ids = line.split(" ")
            self.ids.setdefault(int(choice), []).extend(map(int, ids.split(",")))
        elif line.startswith(": steps "):
            self.steps.append(int(line.split(" ")[2]))
        elif line.startswith("id: "):
            self.event_ids.append(line[4:])
        elif line.startswith("data: {"):
            self.events.append(json.loads(line[6:]))

    def texts(self) -> dict[int, str]:
        """Return the texts by choice, whatever the API, reasoning and arguments of tools included."""
        found: dict[int, str] = {}
        for event in self.events:
            for choice in event.get("choices") or [{"index": 0, "delta": event.get("delta", "")}]:
                said = choice.get("text") or _said(choice.get("delta", ""))
                found[choice["index"]] = found.get(choice["index"], "") + said
        return found


def journalled(
    url: str,
    path: str,
    document: Mapping[str, Any],
    *,
    prior: Sequence[Sequence[int]] | None = None,
    mode: str = "carried",
    seed: int | None = None,
    key: str = KEY,
    adapter: str = "",
) -> Stream:
    """Request a stream with its journal, carrying ``prior`` where it is given."""
    body = json.dumps(document).encode()
    headers = {"authorization": f"Bearer {key}", "x-longboat-journal": "1", "content-type": "application/json"}
    if seed is not None:
        headers["x-longboat-seed"] = str(seed)
    if adapter:
        headers["x-longboat-adapter"] = adapter
    if prior is not None:
        head = carried_head(mode, prior)
        headers["x-longboat-carry"] = str(len(head))
        body = head + body
    stream = Stream()
    with httpx.stream("POST", url + path, content=body, headers=headers, timeout=120, verify=PLAIN) as response:
        stream.status, stream.headers = response.status_code, response.headers
        stream.body = response.read()
        for line in stream.body.decode().split("\n"):
            stream.take(line)
    return stream


def carried_head(mode: str, prior: Sequence[Sequence[int]]) -> bytes:
    return json.dumps({"mode": mode, "prior": [list(ids) for ids in prior]}).encode()


def _said(delta: Any) -> str:
    if isinstance(delta, str):
        return delta
    calls = delta.get("tool_calls") or [{}]
    words = (delta.get(name) or "" for name in ("reasoning", "thinking", "content", "text", "partial_json"))
    return "".join(words) + "".join(call.get("function", {}).get("arguments") or "" for call in calls)
