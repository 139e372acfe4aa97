"""Audio to text by the official OpenAI client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from conformance_lab import DEADLINE_S, Place, Target

from wav_files import tone

SOUND = tone()


@pytest.fixture
def hearing(audio: Place) -> Iterator[openai.OpenAI]:
    with audio.openai() as made:
        yield made


def test_transcription(hearing: openai.OpenAI, audio: Place) -> None:
    file = ("tone.wav", SOUND)
    heard = hearing.audio.transcriptions.create(model=audio.model, file=file)
    assert heard.text
    text: Any = hearing.audio.transcriptions.create(model=audio.model, file=file, response_format="text")
    assert heard.text.strip() in (text.strip(), json.loads(text)["text"].strip() if text.startswith("{") else "")


def test_verbose_transcription(target: Target, hearing: openai.OpenAI, audio: Place) -> None:
    """vLLM has segments of Whisper's models alone."""
    file = ("tone.wav", SOUND)
    if target.engine == "vllm":
        with pytest.raises(openai.BadRequestError, match="verbose_json"):
            hearing.audio.transcriptions.create(model=audio.model, file=file, response_format="verbose_json")
        return
    verbose = hearing.audio.transcriptions.create(model=audio.model, file=file, response_format="verbose_json")
    assert verbose.text == hearing.audio.transcriptions.create(model=audio.model, file=file).text
    assert verbose.duration == pytest.approx(2, abs=0.1)


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # in OpenAI's client
def test_translation(hearing: openai.OpenAI, audio: Place) -> None:
    assert hearing.audio.translations.create(model=audio.model, file=("tone.wav", SOUND)).text


def test_transcription_streamed(hearing: openai.OpenAI, audio: Place) -> None:
    """vLLM streams chunks like a chat's, not the typed events that OpenAI's client reads: plain HTTP."""
    whole = hearing.audio.transcriptions.create(model=audio.model, file=("tone.wav", SOUND)).text
    response = httpx.post(
        f"{audio.url}/v1/audio/transcriptions",
        files={"file": ("tone.wav", SOUND, "audio/wav")},
        data={"model": audio.model, "stream": "true"},
        headers=audio.headers,
        timeout=DEADLINE_S,
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert "".join(part["choices"][0]["delta"]["content"] for part in chunks if part["choices"]) == whole


def test_transcription_of_a_file_that_curl_sends(audio: Place, tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    path.write_bytes(SOUND)
    form = ("-F", f"file=@{path}", "-F", f"model={audio.model}", "-F", "response_format=json")
    auth = ("-H", f"authorization: {audio.headers['authorization']}")
    argv = ("curl", "-sS", "-m", "60", *auth, *form, f"{audio.url}/v1/audio/transcriptions")
    done = subprocess.run(argv, capture_output=True, check=True, timeout=90)
    assert json.loads(done.stdout)["text"]


def test_transcription_for_an_unknown_model_is_not_found(hearing: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        hearing.audio.transcriptions.create(model="no-such-model", file=("tone.wav", SOUND))
