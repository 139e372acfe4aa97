"""Audio on real vLLM in a fleet: transcriptions, chats, limits, counts, and streams whose replica dies."""

from __future__ import annotations

import base64
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.media_lab import Files, ask, outlive_their_replica, said, served
from fleet.paced_steps import paced_vllm
from wav_files import tone

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

FLEET = """name: t
models:
  - {name: a, source: 'builtin:tiny-audio', replicas: 2, resources: {cpus: 0.4}, context: 1024,
      engine: %s, media: {domains: [127.0.0.1], private_addresses: true, max_bytes: 100KiB}}"""
LOW, HIGH, LONG = tone(300), tone(900), tone(seconds=4)
TOKENS_PER_S = 13  # of this model


@pytest.fixture(scope="module")
def files() -> Iterator[Files]:
    with served({"/low.wav": LOW, "/long.wav": LONG}) as files:
        yield files


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    environment = Path(PYTHON).parent.parent
    if not any(environment.glob("lib/python3*/site-packages/av")):
        pytest.skip(f"{environment} has no PyAV: longboat engines install vllm")
    lab.must("up", lab.write(FLEET % paced_vllm()), "--detach", timeout_s=800)
    return lab


def heard(up: FleetLab, audio: bytes, kind: str = "transcriptions", **fields: str) -> httpx.Response:
    """Return the response about an uploaded file."""
    return httpx.post(
        f"http://127.0.0.1:{up.local_port}/v1/audio/{kind}",
        files={"file": ("a.wav", audio, "audio/wav")},
        data={"model": "a", "max_completion_tokens": "12", **fields},
        timeout=120,
    )


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["text"])


def body(*parts: dict[str, Any], **more: object) -> dict[str, Any]:
    content = [{"type": "text", "text": "what?"}, *parts]
    return {"model": "a", "messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0} | more


def data(audio: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(audio).decode(), "format": "wav"}}


def address(url: str) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": url}}


def test_seconds_of_audio_are_counted(up: FleetLab) -> None:
    """It comes first, before others here are counted. 50 tokens stand for a second; far more were reserved."""

    def counted() -> int:
        days = json.loads(up.must("usage", "--json"))["days"]
        return sum(row["prompt_tokens"] for row in days if row["model"] == "a")

    before = counted()
    assert text_of(heard(up, LOW))
    wait_until("the seconds are counted", lambda: counted() == before + 2 * 50)


def test_transcriptions_and_translations_depend_on_the_audio(up: FleetLab) -> None:
    low = text_of(heard(up, LOW))
    assert text_of(heard(up, LOW)) == low
    assert text_of(heard(up, HIGH)) != low
    assert text_of(heard(up, tone(rate=22_050)))  # resampled
    assert text_of(heard(up, LOW, "translations"))
    assert heard(up, b"no audio").status_code == 400


def test_chats_depend_on_the_audio_and_count_its_tokens(up: FleetLab) -> None:
    low = said(up, body(data(LOW)))
    assert said(up, body(data(HIGH))) != low
    assert said(up, body(data(tone(rate=22_050))))
    (_, with_audio), (_, without) = ask(up, body(data(LOW))), ask(up, body())
    marks = 2  # around the audio
    assert with_audio["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"] + 2 * TOKENS_PER_S + marks


def test_audio_is_fetched_from_an_allowed_host_alone(up: FleetLab, files: Files) -> None:
    files.asked.clear()
    here = f"http://127.0.0.1:{files.port}"
    assert said(up, body(address(f"{here}/low.wav"))) == said(up, body(data(LOW)))
    for url in (f"{here}/away", f"{here}/long.wav"):  # a redirect, and too many bytes
        status, answer = ask(up, body(address(url)))
        assert status == 400, answer
    assert files.asked == ["/low.wav", "/away", "/long.wav"]
    for url in (f"http://localhost:{files.port}/low.wav", "http://169.254.169.254/a.wav", "file:///etc/passwd"):
        status, answer = ask(up, body(address(url)))
        assert (status, answer["error"]["code"]) == (400, "media_address")
    assert len(files.asked) == 3


def test_large_audio_is_refused_in_chats_and_in_forms(up: FleetLab) -> None:
    status, answer = ask(up, body(data(LONG)))
    assert (status, answer["error"]["code"]) == (413, "media_too_large")
    for kind in ("transcriptions", "translations"):
        refused = heard(up, LONG, kind)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "media_too_large")


def test_chats_about_audio_outlive_their_replica(up: FleetLab) -> None:
    drawn: tuple[dict[str, Any], ...] = ({}, {"seed": 7, "temperature": 0.8})
    outlive_their_replica(up, "a", [body(data(audio), **more) for audio in (LOW, HIGH) for more in drawn])


def test_a_broken_stream_of_a_transcription_says_so(up: FleetLab) -> None:
    """A form's stream is not continued elsewhere: the client gets an error, and never a text that looks whole."""
    wait_until("both replicas are ready", lambda: len(up.replicas("a")) == 2, deadline_s=400)
    pids = {replica["replica"]: replica["ranks"][0]["pid"] for replica in up.replicas("a")}
    url = f"http://127.0.0.1:{up.local_port}/v1/audio/transcriptions"
    form = {"model": "a", "stream": "true", "max_completion_tokens": "900"}
    with httpx.stream("POST", url, files={"file": ("a.wav", LOW)}, data=form, timeout=120) as response:
        events = (line[6:] for line in response.iter_lines() if line.startswith("data: "))
        lines = list(itertools.islice(events, 5))
        os.kill(pids[response.headers["x-longboat-replica"]], 9)
        lines += events
    assert "error" in json.loads(lines[-1]), lines[-1]
    assert text_of(heard(up, LOW))
