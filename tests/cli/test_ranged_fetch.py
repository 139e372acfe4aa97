"""Reading ranges of files by HTTP."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from longboat.cli.plan.ranged_fetch import ranged_fetch
from longboat.core.errors import TransferError

DATA = bytes(range(256)) * 4
URL = "https://huggingface.co/acme/boat/resolve/main/model.safetensors"


def fetch_from(answer: Callable[[httpx.Request], httpx.Response]) -> Callable[[str, int, int], bytes]:
    return ranged_fetch(httpx.MockTransport(answer))


def test_range_is_asked_for() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Range"] == "bytes=8-15"
        return httpx.Response(206, content=DATA[8:16])

    assert fetch_from(answer)(URL, 8, 8) == DATA[8:16]


def test_server_without_ranges_is_read_all_the_same() -> None:
    assert fetch_from(lambda request: httpx.Response(200, content=DATA))(URL, 8, 8) == DATA[8:16]


def test_range_behind_the_end_is_empty() -> None:
    assert fetch_from(lambda request: httpx.Response(416))(URL, 5000, 8) == b""


def test_missing_file_is_a_lookup_error() -> None:
    with pytest.raises(LookupError):
        fetch_from(lambda request: httpx.Response(404))(URL, 0, 8)


@pytest.mark.parametrize(("status", "hint"), [(403, "HF_TOKEN"), (500, "later")])
def test_refusals_say_what_to_do(status: int, hint: str) -> None:
    with pytest.raises(TransferError) as caught:
        fetch_from(lambda request: httpx.Response(status))(URL, 0, 8)
    assert hint in caught.value.hint


def test_lost_network_says_what_needs_none() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route")

    with pytest.raises(TransferError, match="no route") as caught:
        fetch_from(answer)(URL, 0, 8)
    assert "needs none" in caught.value.hint


def test_token_goes_to_the_hub_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("Authorization"))
        return httpx.Response(206, content=b"")

    fetch = fetch_from(answer)
    fetch(URL, 0, 8)
    fetch("https://example.org/boat.gguf", 0, 8)
    assert seen == ["Bearer secret", None]
