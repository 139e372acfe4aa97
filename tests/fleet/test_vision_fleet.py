"""Images on real vLLM in a fleet: what they change, what is refused, and streams that outlive their replica."""

from __future__ import annotations

import base64
import http.server
import json
import os
import struct
import threading
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import num_resumed

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

FLEET = """name: t
models:
  - &base {name: v, source: 'builtin:tiny-vision', replicas: 2, resources: {cpus: 0.4}, context: 1024,
      engine: {environment: %s}, media: {domains: [127.0.0.1], private_addresses: true, max_items: 2}}
  - {<<: *base, name: outside, replicas: 1, media: {domains: [localhost], max_bytes: 2KiB, max_pixels: 10000}}"""
RED, BLUE = (255, 0, 0), (0, 0, 255)


def png(colour: tuple[int, int, int], side: int = 32) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(colour) * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def data_url(colour: tuple[int, int, int], side: int = 32) -> str:
    return "data:image/png;base64," + base64.b64encode(png(colour, side)).decode()


class _Images(http.server.BaseHTTPRequestHandler):
    """``/red.png`` is an image, ``/away`` a redirect to it; whatever was asked for is noted."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        is_image = self.path == "/red.png"
        self.send_response(200 if is_image else 302)
        if not is_image:
            self.send_header("Location", "/red.png")
        self.end_headers()
        self.wfile.write(png(RED) if is_image else b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def images() -> Iterator[int]:
    """The port of a server of images on loopback."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Images)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    environment = Path(PYTHON).parent.parent
    if not any(environment.glob("lib/python3*/site-packages/torchvision")):
        pytest.skip(f"{environment} has no torchvision: longboat engines install vllm")
    lab.must("up", lab.write(FLEET % environment), "--detach", timeout_s=800)
    return lab


def body(model: str, *urls: str, **more: object) -> dict[str, Any]:
    content = [{"type": "text", "text": "what?"}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    asked = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    return asked | more


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


def test_images_change_the_answer_and_are_counted(up: FleetLab) -> None:
    red, blue = said(up, body("v", data_url(RED))), said(up, body("v", data_url(BLUE)))
    assert red != blue
    assert said(up, body("v", data_url(RED))) == red
    _, with_image = ask(up, body("v", data_url(RED)))
    _, without = ask(up, body("v"))
    assert with_image["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"] + 16


def test_an_image_is_fetched_from_an_allowed_host_and_a_redirect_is_not_followed(up: FleetLab, images: int) -> None:
    _Images.asked.clear()
    assert said(up, body("v", f"http://127.0.0.1:{images}/red.png")) == said(up, body("v", data_url(RED)))
    status, answer = ask(up, body("v", f"http://127.0.0.1:{images}/away"))
    assert status == 400, answer
    assert _Images.asked == ["/red.png", "/away"]


def test_a_name_that_resolves_to_the_inside_leads_nowhere(up: FleetLab, images: int) -> None:
    _Images.asked.clear()
    status, answer = ask(up, body("outside", f"http://localhost:{images}/red.png"))
    assert status == 400, answer
    assert "no address that may be connected to" in answer["error"]["message"]
    assert _Images.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/red.png",
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/a.png",
        "http://[::1]:{port}/red.png",
        "http://[::ffff:127.0.0.1]:{port}/red.png",
        "http://2130706433:{port}/red.png",
        "http://0x7f000001:{port}/red.png",
        "http://0177.0.0.1:{port}/red.png",
        "http://user@localhost:{port}/red.png",
        "file:///etc/passwd",
        "data:text/html;base64,AAAA",
        "ftp://localhost/a.png",
    ],
)
def test_other_addresses_are_refused(up: FleetLab, images: int, url: str) -> None:
    _Images.asked.clear()
    status, answer = ask(up, body("outside", url.format(port=images)))
    assert status == 400, answer
    assert answer["error"]["code"].startswith("media_")
    assert _Images.asked == []


def test_large_images_are_refused(up: FleetLab) -> None:
    status, answer = ask(up, body("outside", data_url(RED, 2000)))
    assert status == 413 or "bytes" in answer["error"]["message"], answer
    status, answer = ask(up, body("outside", data_url(RED, 101)))
    assert status == 400, answer
    assert "pixels" in answer["error"]["message"]
    status, answer = ask(up, body("v", *[data_url(RED)] * 3))
    assert (status, answer["error"]["code"]) == (400, "too_many_media")


def test_streams_about_images_outlive_their_replica(up: FleetLab) -> None:
    long: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True, "stream": True}
    drawn: tuple[dict[str, Any], ...] = ({}, {"seed": 7, "temperature": 0.8})
    cases = [body("v", data_url(colour), **long, **more) for colour in (RED, BLUE) for more in drawn]
    expected = [streamed(up, case, [], []) for case in cases]
    assert len(set(expected)) == len(cases)
    before = num_resumed(up.local_port)
    pids = {replica["replica"]: replica["ranks"][0]["pid"] for replica in up.replicas("v")}
    found: list[str] = [""] * len(cases)
    events: list[list[str]] = [[] for _ in cases]
    served_by: list[str] = []

    def client(at: int) -> None:
        found[at] = streamed(up, cases[at], events[at], served_by)

    threads = [threading.Thread(target=client, args=(at,)) for at in range(len(cases))]
    for thread in threads:
        thread.start()
    wait_until("streams run", lambda: all(len(one) > 50 for one in events))
    os.kill(pids[served_by[0]], 9)
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
