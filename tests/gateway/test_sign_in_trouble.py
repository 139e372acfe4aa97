"""Sign-ins while clients leave, the provider is half away, or proxies answer in its place."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from provider_lab import HOST, Provider, ShiftedClock, opened_provider, sign_in_policy

from longboat.core.sign_in import SignIn
from longboat.gateway.sign_in.bearers import Bearers
from longboat.gateway.sign_in.grants import Grant
from longboat.gateway.sign_in.people import People
from longboat.gateway.sign_in.problems import ProviderSilentError, RefusedError
from longboat.gateway.sign_in.provider import Provider as AskedProvider
from longboat.gateway.sign_in.records import Records
from longboat.gateway.sign_in.web import Web

OPERATOR = Grant("ada", "operator", "")
PAGE = "<html>Forbidden</html>"


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with opened_provider() as made:
        yield made


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


class Desk:
    """The gateway's own part of sign-ins, with its records in memory."""

    def __init__(self, provider: Provider, clock: ShiftedClock, **changes: Any) -> None:
        sign_in = sign_in_policy(provider.issuer, **changes)[0].sign_in
        assert isinstance(sign_in, SignIn)
        self._lab = provider
        self.asked = AskedProvider(sign_in, clock.monotonic_s)
        self.people = People(b"secret", None, 3600.0, clock.unix_s)

    async def arrive(self) -> str:
        """Sign a person in, and return the session's id."""
        departure = await self.people.begin(self.asked, f"http://{HOST}")
        given = dict(parse_qsl(urlsplit(self._lab.authorize(departure.url)).query))
        return (await self.people.finish(self.asked, departure.sealed, given)).session_id

    async def grant(self, session_id: str) -> Grant | None:
        return await self.people.grant(self.asked, session_id)


@pytest.fixture
def desk(provider: Provider, clock: ShiftedClock) -> Desk:
    return Desk(provider, clock)


async def asked(provider: Provider, path: str, times: int) -> None:
    """Wait for a question at the provider."""
    async with asyncio.timeout(30):
        while provider.asked[path] < times:  # noqa: ASYNC110 the provider counts only
            await asyncio.sleep(0.01)


async def test_a_client_that_leaves_loses_no_refresh_token(provider: Provider, clock: ShiftedClock, desk: Desk) -> None:
    session = await desk.arrive()
    provider.rotates, provider.takes_access, provider.gates = True, "access-2", {"/token": asyncio.Event()}
    clock.ahead_s = 31
    request = asyncio.create_task(desk.grant(session))
    await asked(provider, "/token", 2)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    provider.gates["/token"].set()
    assert await desk.grant(session) == OPERATOR
    provider.takes_access, clock.ahead_s = "access-3", 62
    assert await desk.grant(session) == OPERATOR


async def test_userinfo_that_is_silent_after_a_refresh_loses_no_refresh_token(
    provider: Provider, clock: ShiftedClock, desk: Desk
) -> None:
    session = await desk.arrive()
    provider.rotates, provider.takes_access, provider.gates = True, "access-2", {"/token": asyncio.Event()}
    clock.ahead_s = 31
    request = asyncio.create_task(desk.grant(session))
    await asked(provider, "/token", 2)
    provider.answers = {"/userinfo": (503, {})}
    provider.gates["/token"].set()
    assert await request == OPERATOR  # the groups of the last minute count
    provider.answers, clock.ahead_s = {}, 62
    desk.asked = AskedProvider(desk.asked.sign_in, clock.monotonic_s)  # it has forgotten the silence
    provider.groups = ["watch"]
    assert await desk.grant(session) == Grant("ada", "viewer", "")
    assert [form.get("refresh_token") for form in provider.forms[1:]] == ["refresh-1"]


async def test_a_sign_out_during_a_check_stands(provider: Provider, clock: ShiftedClock, desk: Desk) -> None:
    session = await desk.arrive()
    provider.gates = {"/userinfo": asyncio.Event()}
    clock.ahead_s = 31
    request = asyncio.create_task(desk.grant(session))
    await asked(provider, "/userinfo", 2)
    desk.people.end(session)
    provider.gates["/userinfo"].set()
    assert await request is None and await desk.grant(session) is None


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/token", (401, {"error": "invalid_client"})),
        ("/token", (403, PAGE)),
        ("/token", (404, PAGE)),
        ("/token", (200, PAGE)),
        ("/userinfo", (403, PAGE)),
        ("/userinfo", (404, PAGE)),
        ("/userinfo", (200, PAGE)),
    ],
    ids=[
        *("another secret", "tokens forbidden by a proxy", "no page of tokens", "a page in place of tokens"),
        *("userinfo forbidden by a proxy", "no page of userinfo", "a page in place of userinfo"),
    ],
)
async def test_an_answer_that_is_not_of_the_person_ends_no_session(
    provider: Provider, clock: ShiftedClock, desk: Desk, path: str, answer: tuple[int, Any]
) -> None:
    session = await desk.arrive()
    provider.takes_access = "access-2"
    provider.answers = {path: answer}
    clock.ahead_s = 31
    assert await desk.grant(session) == OPERATOR
    clock.ahead_s = 61
    with pytest.raises(ProviderSilentError):
        await desk.grant(session)
    provider.answers, clock.ahead_s = {}, 62
    desk.asked = AskedProvider(desk.asked.sign_in, clock.monotonic_s)
    assert await desk.grant(session) == OPERATOR


@pytest.mark.parametrize("error", ["invalid_grant", "access_denied", "interaction_required", "login_required"])
async def test_a_refusal_of_the_person_ends_the_session(
    provider: Provider, clock: ShiftedClock, desk: Desk, error: str
) -> None:
    session = await desk.arrive()
    provider.takes_access, provider.answers = "access-2", {"/token": (400, {"error": error})}
    clock.ahead_s = 31
    assert await desk.grant(session) is None
    provider.answers = {}
    assert await desk.grant(session) is None


@pytest.mark.parametrize(
    "document",
    [{"keys": []}, {"error": "x"}, PAGE, {"keys": [{"kty": "oct", "k": "AA"}]}],
    ids=["no keys", "no key set", "a page", "secrets only"],
)
async def test_a_key_set_without_keys_replaces_no_good_keys(
    provider: Provider, clock: ShiftedClock, desk: Desk, document: Any
) -> None:
    await desk.arrive()
    provider.answers = {"/keys": (200, document)}
    clock.ahead_s = 11
    for _ in range(2):
        with pytest.raises(ProviderSilentError):
            await desk.asked.verified(provider.token(key="two"), ("longboat",))
    assert (await desk.asked.verified(provider.token(), ("longboat",)))["sub"] == "u-1"
    assert provider.asked["/keys"] == 2


async def test_a_full_disk_is_like_a_silent_provider(
    provider: Provider, clock: ShiftedClock, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError("no space left")

    session = await desk.arrive()
    monkeypatch.setattr("longboat.gateway.sign_in.records.Records.put", full)
    clock.ahead_s = 31
    assert await desk.grant(session) == OPERATOR
    clock.ahead_s = 61
    with pytest.raises(ProviderSilentError, match="no space left"):
        await desk.grant(session)


@pytest.mark.parametrize("url", ["https://a.example.com:port/", "https://a.example.com/\n"], ids=["port", "line break"])
async def test_an_address_that_cannot_be_asked_is_silent(url: str) -> None:
    with pytest.raises(ProviderSilentError):
        await Web().ask(url)


async def test_requests_with_one_token_share_a_question(provider: Provider, clock: ShiftedClock, desk: Desk) -> None:
    bearers, token = Bearers(clock.unix_s), provider.token()
    provider.gates, clock.ahead_s = {"/userinfo": asyncio.Event()}, 61
    requests = [asyncio.create_task(bearers.grant(desk.asked, token)) for _ in range(8)]
    await asked(provider, "/userinfo", 1)
    requests[0].cancel()
    provider.gates["/userinfo"].set()
    assert await asyncio.gather(*requests[1:]) == [OPERATOR] * 7
    assert provider.asked["/userinfo"] == 1


async def test_a_removed_group_is_noticed_after_the_clock_went_back(
    provider: Provider, clock: ShiftedClock, desk: Desk
) -> None:
    clock.ahead_s = 8 * 3600.0
    session_id = await desk.arrive()
    clock.ahead_s = 100.0
    provider.is_down = True
    with pytest.raises(ProviderSilentError):
        await desk.grant(session_id)
    desk.asked._web._silent.clear()  # it would be left alone for a while
    provider.is_down, provider.groups = False, []
    assert await desk.grant(session_id) is None


async def test_a_bearers_removed_group_is_noticed_after_the_clock_went_back(
    provider: Provider, clock: ShiftedClock, desk: Desk
) -> None:
    bearers, token = Bearers(clock.unix_s), provider.token()
    clock.ahead_s = 200.0
    assert await bearers.grant(desk.asked, token) == OPERATOR
    clock.ahead_s = 100.0
    provider.is_down = True
    with pytest.raises(ProviderSilentError):
        await bearers.grant(desk.asked, token)
    desk.asked._web._silent.clear()  # it would be left alone for a while
    provider.is_down, provider.groups = False, []
    with pytest.raises(RefusedError):
        await bearers.grant(desk.asked, token)


async def test_one_silent_address_leaves_the_others(provider: Provider) -> None:
    web, silent = Web(), f"{provider.issuer}/userinfo"
    provider.answers = {"/userinfo": (503, {})}
    for _ in range(2):
        with pytest.raises(ProviderSilentError):
            await web.ask(silent)
    assert provider.asked["/userinfo"] == 1
    assert (await web.ask(f"{provider.issuer}/keys"))[0] == 200


async def test_locks_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longboat.gateway.sign_in.records._MAX", 2)
    records = Records(tmp_path / "open", 60.0)
    assert await records.has_room()
    records.put("aa", "x")
    async with records.locked("aa"):
        assert await records.has_room()
    records.put("bb", "x")
    assert not await records.has_room()
    os.utime(tmp_path / "open" / "aa", (0, 0))
    assert await records.has_room() and records.get("aa") is None


async def test_records_in_memory_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longboat.gateway.sign_in.records._MAX", 2)
    records = Records(None, 60.0)
    records.put("aa", "x")
    assert records.add_new("bb") and not records.add_new("bb")
    assert not await records.has_room()
    later_s = time.monotonic() + 40
    monkeypatch.setattr("longboat.gateway.sign_in.records.time", SimpleNamespace(monotonic=lambda: later_s))
    records.put("aa", "y")
    monkeypatch.setattr("longboat.gateway.sign_in.records.time", SimpleNamespace(monotonic=lambda: later_s + 40))
    assert await records.has_room()
    assert (records.get("aa"), records.get("bb")) == ("y", None)


async def test_the_folder_of_records_is_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open").mkdir()
    threads: list[int] = []
    read = os.scandir

    def watched(path: Path) -> Any:
        threads.append(threading.get_ident())
        return read(path)

    monkeypatch.setattr("longboat.gateway.sign_in.records.os.scandir", watched)
    assert await Records(tmp_path / "open", 60.0).has_room()
    assert threads and threading.get_ident() not in threads
