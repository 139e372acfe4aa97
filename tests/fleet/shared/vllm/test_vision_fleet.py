"""Images on real vLLM in a fleet: what they change, what is refused, and streams that outlive their replica."""

from __future__ import annotations

import base64
import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.media_lab import Files, ask, outlive_their_replica, said, served
from fleet.paced_steps import paced_vllm

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
ENVIRONMENT = Path(PYTHON).parent.parent
pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

FLEET = """name: t
models:
  - &base {name: v, source: 'builtin:tiny-vision', replicas: 2, resources: {cpus: 0.4}, context: 1024,
      engine: %s, media: {domains: [127.0.0.1], private_addresses: true, max_items: 2}}
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


@pytest.fixture(scope="module")
def files() -> Iterator[Files]:
    with served({"/red.png": png(RED)}) as files:
        yield files


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    if not any(ENVIRONMENT.glob("lib/python3*/site-packages/torchvision")):
        pytest.skip(f"{ENVIRONMENT} has no torchvision: longboat engines install vllm")
    lab.must("up", lab.write(FLEET % paced_vllm()), "--detach", timeout_s=800)
    return lab


def body(model: str, *urls: str, **more: object) -> dict[str, Any]:
    content = [{"type": "text", "text": "what?"}, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
    asked = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    return asked | more


def test_images_change_the_answer_and_are_counted(up: FleetLab) -> None:
    red, blue = said(up, body("v", data_url(RED))), said(up, body("v", data_url(BLUE)))
    assert red != blue
    assert said(up, body("v", data_url(RED))) == red
    _, with_image = ask(up, body("v", data_url(RED)))
    _, without = ask(up, body("v"))
    assert with_image["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"] + 16


def test_an_image_is_fetched_from_an_allowed_host_and_a_redirect_is_not_followed(up: FleetLab, files: Files) -> None:
    files.asked.clear()
    assert said(up, body("v", f"http://127.0.0.1:{files.port}/red.png")) == said(up, body("v", data_url(RED)))
    status, answer = ask(up, body("v", f"http://127.0.0.1:{files.port}/away"))
    assert status == 400, answer
    assert files.asked == ["/red.png", "/away"]


def test_a_name_that_resolves_to_the_inside_leads_nowhere(up: FleetLab, files: Files) -> None:
    files.asked.clear()
    status, answer = ask(up, body("outside", f"http://localhost:{files.port}/red.png"))
    assert status == 400, answer
    assert "no address that may be connected to" in answer["error"]["message"]
    assert files.asked == []


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
def test_other_addresses_are_refused(up: FleetLab, files: Files, url: str) -> None:
    files.asked.clear()
    status, answer = ask(up, body("outside", url.format(port=files.port)))
    assert status == 400, answer
    assert answer["error"]["code"].startswith("media_")
    assert files.asked == []


def test_large_images_are_refused(up: FleetLab) -> None:
    status, answer = ask(up, body("outside", data_url(RED, 2000)))
    assert status == 413 or "bytes" in answer["error"]["message"], answer
    status, answer = ask(up, body("outside", data_url(RED, 101)))
    assert status == 400, answer
    assert "pixels" in answer["error"]["message"]
    status, answer = ask(up, body("v", *[data_url(RED)] * 3))
    assert (status, answer["error"]["code"]) == (400, "too_many_media")


def test_streams_about_images_outlive_their_replica(up: FleetLab) -> None:
    drawn: tuple[dict[str, Any], ...] = ({}, {"seed": 7, "temperature": 0.8})
    cases = [body("v", data_url(colour), **more) for colour in (RED, BLUE) for more in drawn]
    outlive_their_replica(up, "v", cases)


def test_tokens_of_images_count_for_the_quota(up: FleetLab) -> None:
    """It comes last: the limit stays."""
    asked = body("v", data_url(RED), data_url(BLUE), max_tokens=1)
    used = used_tokens(up)
    _, answer = ask(up, asked)
    assert answer["usage"]["prompt_tokens"] > 32, "two images have 32 tokens"
    wait_until("they are counted", lambda: used_tokens(up) == used + answer["usage"]["prompt_tokens"])
    limit = 2 * answer["usage"]["total_tokens"]
    tenants = f"tenants: [{{name: anonymous, tokens_per_minute: {limit}}}]"
    up.must("up", up.write(FLEET % paced_vllm(), gateway=tenants), "--detach")
    wait_until("images are refused", lambda: ask(up, asked)[0] == 429)


def used_tokens(up: FleetLab) -> int:
    """Prompt tokens of the model ``v`` on all days."""
    return sum(row["prompt_tokens"] for row in json.loads(up.must("usage", "--json"))["days"] if row["model"] == "v")
