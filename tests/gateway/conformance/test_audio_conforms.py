"""Sound to text by the official OpenAI client, against the fake engine: the tiny model does not hear."""

from __future__ import annotations

import io
import json
import math
import struct
import subprocess
import wave
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from conformance_lab import DEADLINE_S, Place, Target


@pytest.fixture(autouse=True)
def hears(target: Target) -> None:
    if target.engine != "fake":
        pytest.skip("the tiny model does not hear")


@pytest.fixture
def sound() -> bytes:
    """Two seconds of a tone, as a WAV file."""
    tone = struct.pack("<32000h", *(int(9000 * math.sin(step / 20)) for step in range(32000)))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(tone)
    return file.getvalue()


def test_transcription(client: openai.OpenAI, chat: Place, sound: bytes) -> None:
    file = ("tone.wav", sound)
    heard = client.audio.transcriptions.create(model=chat.model, file=file)
    assert heard.text
    text: Any = client.audio.transcriptions.create(model=chat.model, file=file, response_format="text")
    assert text.strip() == heard.text
    verbose = client.audio.transcriptions.create(model=chat.model, file=file, response_format="verbose_json")
    assert verbose.text == heard.text
    assert verbose.duration == pytest.approx(2, abs=0.1)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # in OpenAI's client
def test_translation(client: openai.OpenAI, chat: Place, sound: bytes) -> None:
    assert client.audio.translations.create(model=chat.model, file=("tone.wav", sound)).text


def test_transcription_streamed(client: openai.OpenAI, chat: Place, sound: bytes) -> None:
    """vLLM streams chunks like a chat's, not the typed events that OpenAI's client reads: plain HTTP."""
    whole = client.audio.transcriptions.create(model=chat.model, file=("tone.wav", sound)).text
    response = httpx.post(
        f"{chat.url}/v1/audio/transcriptions",
        files={"file": ("tone.wav", sound, "audio/wav")},
        data={"model": chat.model, "stream": "true"},
        headers=chat.headers,
        timeout=DEADLINE_S,
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert "".join(part["choices"][0]["delta"]["content"] for part in chunks if part["choices"]) == whole


def test_transcription_of_a_file_that_curl_sends(chat: Place, sound: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    path.write_bytes(sound)
    form = ("-F", f"file=@{path}", "-F", f"model={chat.model}", "-F", "response_format=json")
    auth = ("-H", f"authorization: {chat.headers['authorization']}")
    argv = ("curl", "-sS", "-m", "60", *auth, *form, f"{chat.url}/v1/audio/transcriptions")
    done = subprocess.run(argv, capture_output=True, check=True, timeout=90)
    assert json.loads(done.stdout)["text"]


def test_transcription_for_an_unknown_model_is_not_found(client: openai.OpenAI, sound: bytes) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.audio.transcriptions.create(model="no-such-model", file=("tone.wav", sound))
