"""Tests of what runs inside SGLang, as far as it needs no SGLang: forced tokens, salts, folders of metrics, the key."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longboat_sglang import metrics_folder
from longboat_sglang.middleware import EngineMiddleware
from longboat_sglang.resume.front_end import noted
from longboat_sglang.resume.replay import forced_rows
from longboat_sglang.salts import Body
from longboat_vllm.resume.carry import CarriedRequest


def row(*ids: int, prompt: int) -> dict[str, Any]:
    return {"longboat_forced": list(ids), "longboat_prompt": prompt}


def test_next_token_follows_from_the_position_of_the_last_one() -> None:
    params = [row(7, 8, 9, prompt=4), None, row(7, 8, 9, prompt=4), row(5, prompt=10)]
    assert forced_rows(params, [3, 3, 5, 10]) == {0: 7, 2: 9}
    assert forced_rows(params, [6, 3, 6, 9]) == {3: 5}


def test_part_of_a_prompt_forces_nothing() -> None:
    assert forced_rows([row(7, prompt=100)], [50]) == {}


async def test_tokens_are_noted_with_their_words_though_sglang_has_more_by_then() -> None:
    """Of several choices, an output waits for its turn while SGLang adds to the list of tokens that stands in it."""
    end, request, told = 2, CarriedRequest(journal=True), list[list[int]]()
    tokens = [7, 8]

    async def outputs() -> AsyncIterator[dict[str, Any]]:
        meta = {"id": "a", "finish_reason": None, "completion_tokens": len(tokens)}
        waiting = {"index": 1, "text": "two words", "output_ids": tokens, "meta_info": meta}
        tokens.extend([9, end])
        yield waiting
        ended = {**meta, "finish_reason": {"type": "stop", "matched": end}, "completion_tokens": len(tokens)}
        yield {"index": 1, "text": "two words more", "output_ids": tokens.copy(), "meta_info": ended}

    async for _ in noted(request, None, None, outputs()):
        told.append(request.unsent.pop(1, []))
    told.append(request.unsent.pop(1, []))
    assert told == [[7, 8], [9], [end]]


@pytest.mark.parametrize(
    ("carried", "pieces", "salt"),
    [
        (b"0", [b'{"cache_salt": "te', b'nant"}'], "tenant"),
        (b"5", [b'{"a"}{"cache_salt": "tenant"}'], "tenant"),
        (b"0", [b'{"model": "x"}'], None),
        (b"0", [b'{"cache_salt": 3}'], None),
        (b"0", [b'["cache_salt"'], None),
    ],
)
async def test_salt_is_read_from_the_clients_part_of_a_body(
    carried: bytes, pieces: list[bytes], salt: str | None
) -> None:
    waiting = list(pieces)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    body = Body({"headers": [(b"x-longboat-carry", carried)]}, receive)
    while waiting:
        await body.receive()
    assert body.salt() == salt


def test_folders_of_engines_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(metrics_folder.VARIABLE, raising=False)
    base = tmp_path / f"longboat-sglang-{os.getuid()}"
    for name in ("gone", "living"):
        (base / name).mkdir(parents=True)
        (base / name / "lock").touch()
    with (base / "living" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        metrics_folder.prepare()
    own = Path(os.environ[metrics_folder.VARIABLE])
    assert {path.name for path in base.iterdir() if path.is_dir()} == {"living", own.name}


async def asked(path: str, key: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> int:
    monkeypatch.setenv("LONGBOAT_ENGINE_API_KEY", "secret")
    sent: list[MutableMapping[str, Any]] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    scope = {"type": "http", "path": path, "method": "POST", "headers": headers, **more}
    await EngineMiddleware(app)(scope, receive, send)
    return int(sent[0]["status"])


def test_a_link_in_place_of_the_metrics_folder_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / f"longboat-sglang-{os.getuid()}").symlink_to("other")
    with pytest.raises(SystemExit, match="not a folder of this user"):
        metrics_folder.prepare()
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.parametrize("path", ["/v1/completions", "/health", "/flush_cache", "/metrics/../generate", "/readyx"])
async def test_every_path_needs_the_key(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await asked(path, "", monkeypatch) == 401
    assert await asked(path, "another", monkeypatch) == 401
    assert await asked(path, "secret", monkeypatch) == 200


@pytest.mark.parametrize(("hears", "status"), [(False, 404), (True, 200), (None, 200)])
async def test_a_model_of_text_has_no_path_for_audio(
    hears: bool | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang has it for every model; the gateway says of a 404 what the model cannot do."""
    config = SimpleNamespace() if hears is None else SimpleNamespace(is_audio_understandable_model=hears)
    manager = SimpleNamespace(model_config=config)
    app = SimpleNamespace(
        state=SimpleNamespace(openai_serving_transcription=SimpleNamespace(tokenizer_manager=manager))
    )
    assert await asked("/v1/audio/transcriptions", "secret", monkeypatch, app=app) == status
    assert await asked("/v1/audio/transcriptions", "", monkeypatch, app=app) == 401
    assert await asked("/v1/completions", "secret", monkeypatch, app=app) == 200


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/ready"])
async def test_metrics_and_readiness_need_none(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await asked(path, "", monkeypatch) == 200
