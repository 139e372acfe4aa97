"""Stream a chat, and go on exactly where it was when the gateway dies in the middle of the answer.

python examples/come_back.py "What is Longboat?" http://10.0.0.1:8000 http://10.0.0.2:8000

The addresses are those of the fleet's gateways; one is enough where it is started again. Needs httpx. Where a key is
asked for, it is taken from LONGBOAT_API_KEY.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

MODEL = "tiny"
MAX_ATTEMPTS = 200
PAUSE_S = 0.3
NOT_NOW = (429, 502, 503, 504)


def stream_chat(gateways: Sequence[str], body: bytes) -> Iterator[dict[str, Any]]:
    """The chunks of the answer, each once. body: sent again byte for byte, since the token belongs to it."""
    key = os.environ.get("LONGBOAT_API_KEY", "none")
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    last_id = token = ""
    anything = False
    with httpx.Client(timeout=60.0) as client:
        for attempt in range(MAX_ATTEMPTS):
            url = f"{gateways[attempt % len(gateways)]}/v1/chat/completions"
            if last_id and token:
                headers |= {"last-event-id": last_id, "x-longboat-resume": token}
            elif anything:
                raise RuntimeError("the answer broke off, and its engine keeps no journal")
            try:
                with client.stream("POST", url, content=body, headers=headers) as answer:
                    if answer.status_code == 200:
                        token = answer.headers.get("x-longboat-resume", token)
                        for event in events(answer.iter_bytes()):
                            token = event.get("token", token)
                            last_id = event.get("id", last_id)
                            if event.get("data") == "[DONE]":
                                return
                            if "data" in event:
                                anything = True
                                yield json.loads(event["data"])
                    elif answer.status_code not in NOT_NOW:
                        raise RuntimeError(answer.read().decode())
            except httpx.TransportError:
                pass  # it has gone: the next one knows how to go on
            time.sleep(PAUSE_S)
    raise RuntimeError("no gateway answers")


def events(pieces: Iterator[bytes]) -> Iterator[dict[str, str]]:
    """Fields of each whole event. A stream that had to wait for an engine tells its token in a comment."""
    held, event = b"", {}
    for piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            if line.startswith(b": x-longboat-resume: "):
                event["token"] = line.decode().rpartition(" ")[2]
            elif line and not line.startswith(b":"):
                name, _, value = line.decode().partition(": ")
                event[name] = value
            elif not line and event:
                yield event
                event = {}


def main() -> None:
    """Print the answer as it comes."""
    prompt, *gateways = sys.argv[1:]
    request = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "stream": True, "temperature": 0}
    for chunk in stream_chat(gateways or ["http://127.0.0.1:8000"], json.dumps(request).encode()):
        if "error" in chunk:
            raise RuntimeError(chunk["error"])
        for choice in chunk["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
