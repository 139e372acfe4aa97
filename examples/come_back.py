"""Stream a chat, and resume the stream exactly if its gateway dies.

python examples/come_back.py "What is Longboat?" http://10.0.0.1:8000 http://10.0.0.2:8000

The arguments are the prompt and the addresses of the fleet's gateways. One address is enough if that gateway restarts.
The program needs httpx, and reads an optional key from LONGBOAT_API_KEY.
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
    """Yield each chunk of the response once. body: sent again unchanged, because the resume token is bound to it."""
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
                raise RuntimeError("the response broke off, and its engine keeps no journal")
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
                pass  # this gateway is gone: the next one can resume the stream
            time.sleep(PAUSE_S)
    raise RuntimeError("no gateway responds")


def events(pieces: Iterator[bytes]) -> Iterator[dict[str, str]]:
    """Yield the fields of each complete event. A stream that waited for an engine sends its token in a comment."""
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
    """Print the response as it arrives."""
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
