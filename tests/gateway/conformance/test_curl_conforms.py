"""The same API by curl, as people type it: whole, streamed, with a large body and with 100-continue."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conformance_lab import Place

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

ASK = [{"role": "user", "content": "Hello."}]


def curl(place: Place, path: str, document: dict[str, Any] | None, *flags: str, body_file: Path | None = None) -> str:
    argv = ["curl", "-sS", "-m", "60", "-w", "\n%{http_code}", *flags]
    argv += ["-H", f"authorization: {place.headers['authorization']}"]
    if document is not None:
        argv += ["-H", "content-type: application/json"]
        text = json.dumps({"model": place.model, **document})
        if body_file is None:
            argv += ["-d", text]
        else:
            body_file.write_text(text)
            argv += ["--data-binary", f"@{body_file}"]
    done = subprocess.run([*argv, place.url + path], capture_output=True, check=True, timeout=90)
    text, _, status = done.stdout.decode().rpartition("\n")
    assert status == "200", text
    return text


def test_curl_chats(chat: Place) -> None:
    answer = json.loads(curl(chat, "/v1/chat/completions", {"messages": ASK, "max_tokens": 5}))
    assert answer["choices"][0]["message"]["content"]


def test_curl_streams_without_buffering(chat: Place) -> None:
    text = curl(chat, "/v1/chat/completions", {"messages": ASK, "max_tokens": 5, "stream": True}, "-N")
    assert text.rstrip().endswith("data: [DONE]")


def test_curl_sends_a_large_body_after_100_continue(chat: Place, tmp_path: Path) -> None:
    document = {"messages": ASK, "max_tokens": 2, "metadata": {"note": "x" * 2_000_000}}
    flags = ("-H", "expect: 100-continue")
    answer = curl(chat, "/v1/chat/completions", document, *flags, body_file=tmp_path / "body.json")
    assert json.loads(answer)["usage"]["completion_tokens"] <= 2


def test_curl_sends_chunks(chat: Place, tmp_path: Path) -> None:
    flags = ("-H", "transfer-encoding: chunked")
    answer = curl(chat, "/v1/completions", {"prompt": "x", "max_tokens": 2}, *flags, body_file=tmp_path / "body.json")
    assert json.loads(answer)["choices"]


def test_curl_speaks_http_1_0(chat: Place) -> None:
    assert json.loads(curl(chat, "/v1/completions", {"prompt": "x", "max_tokens": 2}, "--http1.0"))["choices"]


def test_curl_lists_models(chat: Place) -> None:
    assert json.loads(curl(chat, "/v1/models", None))["object"] == "list"
