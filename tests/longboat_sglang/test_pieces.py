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
from longboat_sglang.resume.front_end import fit, noted, sending
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


def asked_for(text: Any, **params: Any) -> SimpleNamespace:
    """Return a request as SGLang's API server makes it."""
    return SimpleNamespace(text=text, input_ids=None, sampling_params=params, return_hidden_states=False)


@pytest.mark.parametrize("limit", [None, 30])
async def test_each_choice_has_its_own_seed_and_tokens(limit: int | None) -> None:
    """SGLang computes the prompt alone first, and sends one object of parameters for all choices."""
    request = asked_for("Hello", n=2, max_new_tokens=limit)
    fit(CarriedRequest(seed=77, prior=[[1, 2], [3]]), request)
    params = SimpleNamespace(**request.sampling_params)
    sent = []

    async def send(_manager: Any, tokenized: Any) -> None:
        sent.append(
            (tokenized.sampling_params.sampling_seed, tokenized.sampling_params.custom_params["longboat_forced"])
        )

    prompt_alone = SimpleNamespace(**{**request.sampling_params, "max_new_tokens": 0})
    for own in (prompt_alone, params, params):
        await sending(send)(None, SimpleNamespace(sampling_params=own))
    assert sent == [(77, [1, 2]), (77, [1, 2]), (78, [3])]


async def test_the_seed_after_the_largest_one_is_one_that_sglang_takes() -> None:
    """A larger one would end its scheduler."""
    largest = 2**63 - 1
    params = SimpleNamespace(n=2, max_new_tokens=None, sampling_seed=largest, custom_params=None)

    async def send(_manager: Any, _tokenized: Any) -> None:
        return None

    await sending(send)(None, SimpleNamespace(sampling_params=params))
    assert params.sampling_seed != largest
    assert -largest - 1 <= params.sampling_seed <= largest


@pytest.mark.parametrize("prompts", [["Hello", "Hello"], [[1, 2], [1, 2]]])
def test_equal_prompts_of_one_request_have_seeds_of_their_own(prompts: list[Any]) -> None:
    texts, ids = (prompts, None) if isinstance(prompts[0], str) else (None, prompts)
    request = asked_for(texts, n=3)
    request.input_ids = ids
    fit(CarriedRequest(seed=77), request)
    assert [params["sampling_seed"] for params in request.sampling_params] == [77, 80]
    named = asked_for(["Hello", "Hello"], sampling_seed=5)
    fit(CarriedRequest(seed=77), named)
    assert named.sampling_params["sampling_seed"] == 5


def test_a_choice_that_has_all_its_tokens_is_continued_to_its_end() -> None:
    """SGLang's chats say only at the end of all choices that one has ended."""
    fit(CarriedRequest(prior=[[1, 2], [3]]), asked_for("Hello", n=2, max_new_tokens=2))
    with pytest.raises(ValueError, match="3 tokens are carried, but max_tokens is 2"):
        fit(CarriedRequest(prior=[[1, 2, 3]]), asked_for("Hello", max_new_tokens=2))


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
