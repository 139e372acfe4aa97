"""Signing in at the console through a provider: the way there and back, bad tokens, rights that end."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from gateway_lab import push_policy
from provider_lab import (
    CLIENT,
    HOST,
    Person,
    Provider,
    ShiftedClock,
    opened_gateway,
    opened_provider,
    private_key,
    public_jwk,
    sign_in_policy,
)

from longboat.gateway.process.server import Gateway


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with opened_provider() as made:
        yield made


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
async def gateway(provider: Provider, clock: ShiftedClock) -> AsyncIterator[Gateway]:
    async with opened_gateway(sign_in_policy(provider.issuer)[0], clock) as made:
        yield made


# the way there and back


async def test_person_gets_the_role_of_a_group(gateway: Gateway, provider: Provider) -> None:
    person = Person(gateway)
    before = await person.session()
    assert before["provider"] == {
        "name": urlsplit(provider.issuer).netloc,
        "url": "/console/api/oidc/start",
        "here": True,
    }
    assert await person.arrive(provider) == "/console/"
    session = await person.session()
    assert session["signed_in"] and session["name"] == "ada" and session["role"] == "operator"
    assert (await person.get("/console/api/live/fleet")).status == 200


async def test_the_provider_is_asked_as_the_standard_has_it(gateway: Gateway, provider: Provider) -> None:
    person = Person(gateway)
    asked = dict(parse_qsl(urlsplit(await person.start()).query))
    assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
    assert asked["client_id"] == CLIENT and asked["redirect_uri"] == f"http://{HOST}/console/api/oidc/callback"
    assert len(asked["state"]) >= 32 and len(asked["nonce"]) >= 32 and "openid" in asked["scope"].split()
    again = dict(parse_qsl(urlsplit(await person.start()).query))
    assert {name for name in asked if asked[name] != again[name]} == {"state", "nonce", "code_challenge"}


async def test_cookies_are_closed_to_scripts_and_hold_no_token(gateway: Gateway, provider: Provider) -> None:
    person = Person(gateway)
    answer = await person.get(provider.authorize(await person.start()))
    assert "HttpOnly" in answer.headers["set-cookie"] and answer.headers["cache-control"] == "no-store"
    assert set(person.cookies.values()) - {""} and "access-1" not in json.dumps(person.cookies)


@pytest.mark.parametrize(
    ("groups", "role", "chats"),
    [(["watch"], "viewer", False), (["watch", "science"], "viewer", True), (["science"], "tenant", True)],
    ids=["viewer", "viewer with a tenant", "tenant"],
)
async def test_groups_give_roles_and_tenants(
    gateway: Gateway, provider: Provider, groups: list[str], role: str, chats: bool
) -> None:
    provider.groups = groups
    person = Person(gateway)
    await person.arrive(provider)
    session = await person.session()
    assert (session["role"], session["may_chat"], session["may_steer"]) == (role, chats, False)
    assert (await person.get("/console/api/live/fleet")).status == (200 if role == "viewer" else 403)
    assert (await person.post("/console/api/drain", f"x-csrf-token: {session['csrf']}\r\n")).status == 403


async def test_a_person_without_a_known_group_does_not_get_in(gateway: Gateway, provider: Provider) -> None:
    provider.groups = ["staff", "OPS", "ops "]
    person = Person(gateway)
    assert await person.arrive(provider) == "/console/?sign_in=no_group"
    assert (await person.session())["signed_in"] is False


async def test_the_client_secret_goes_to_the_token_endpoint_and_nowhere_else(
    provider: Provider, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OIDC_SECRET", "s3cret+value")
    policy, _ = sign_in_policy(provider.issuer, client_secret_env="OIDC_SECRET")
    caplog.set_level(logging.DEBUG)
    async with opened_gateway(policy, clock) as gateway:
        assert await Person(gateway).arrive(provider) == "/console/"
    assert "authorization: Basic bG9uZ2JvYXQ6czNjcmV0JTJCdmFsdWU=" in provider.forms[0]["head"]
    assert "client_secret" not in provider.forms[0]
    assert "s3cret" not in caplog.text and "code-0" not in caplog.text and "access-1" not in caplog.text


async def test_a_missing_secret_is_named_in_the_log(
    provider: Provider, clock: ShiftedClock, caplog: pytest.LogCaptureFixture
) -> None:
    policy, _ = sign_in_policy(provider.issuer, client_secret_env="NOT_SET_HERE")
    async with opened_gateway(policy, clock) as gateway:
        assert await Person(gateway).arrive(provider) == "/console/?sign_in=silent"
    assert "NOT_SET_HERE is empty or not set" in caplog.text


async def test_another_address_gets_a_hint(gateway: Gateway) -> None:
    person = Person(gateway, "10.0.0.7:8000")
    answer = await person.get("/console/api/oidc/start")
    assert (answer.status, answer.code) == (
        400,
        "other_address",
    ) and f"Open http://{HOST}/console" in answer.body.decode()
    found = (await person.session())["provider"]
    assert found["here"] is False and found["url"] == f"http://{HOST}/console"


# replays


async def test_code_and_state_are_good_once(gateway: Gateway, provider: Provider) -> None:
    person = Person(gateway)
    back = provider.authorize(await person.start())
    way = dict(person.cookies)
    assert (await person.get(back)).headers["location"] == "/console/"
    thief = Person(gateway)
    thief.cookies = way
    assert (await thief.get(back)).headers["location"] == "/console/?sign_in=expired"
    assert provider.asked["/token"] == 1 and not (await thief.session())["signed_in"]


async def test_a_state_is_good_once_in_all_processes_of_a_node(
    provider: Provider, clock: ShiftedClock, tmp_path: Path
) -> None:
    policy, _ = sign_in_policy(provider.issuer)
    socket = str(tmp_path / "control.sock")
    async with (
        opened_gateway(policy, clock, parent_socket=socket) as one,
        opened_gateway(policy, clock, parent_socket=socket) as other,
    ):
        person = Person(one)
        back = provider.authorize(await person.start())
        way = dict(person.cookies)
        assert (await person.get(back)).headers["location"] == "/console/"
        thief = Person(other)
        thief.cookies = way
        assert (await thief.get(back)).headers["location"] == "/console/?sign_in=expired"
        thief.cookies = dict(person.cookies)
        assert (await thief.session())["role"] == "operator"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and all(path.stat().st_mode & 0o077 == 0 for path in files)
    assert not any(b"access-1" in path.read_bytes() or b"u-1" in path.read_bytes() for path in files)


async def test_a_browser_that_began_nothing_is_sent_away(gateway: Gateway, provider: Provider) -> None:
    back = provider.authorize(await Person(gateway).start())
    assert (await Person(gateway).get(back)).headers["location"] == "/console/?sign_in=expired"
    assert provider.asked["/token"] == 0


async def test_a_way_that_took_too_long_is_over(gateway: Gateway, provider: Provider, clock: ShiftedClock) -> None:
    person = Person(gateway)
    back = provider.authorize(await person.start())
    clock.ahead_s = 601
    assert (await person.get(back)).headers["location"] == "/console/?sign_in=expired"


async def test_a_token_of_another_sign_in_is_refused(gateway: Gateway, provider: Provider) -> None:
    provider.claims = {"nonce": "of another sign-in"}
    assert await Person(gateway).arrive(provider) == "/console/?sign_in=refused"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("error=access_denied&state={state}", "denied"),
        ("state={state}", "refused"),
        ("code=x&state=other", "expired"),
        ("code=x&state={state}&iss=https://evil.example.com", "refused"),
    ],
    ids=["the person said no", "no code", "another state", "another issuer"],
)
async def test_a_bad_way_back_is_refused(gateway: Gateway, provider: Provider, query: str, code: str) -> None:
    person = Person(gateway)
    state = dict(parse_qsl(urlsplit(await person.start()).query))["state"]
    answer = await person.get(f"/console/api/oidc/callback?{query.format(state=state)}")
    assert answer.headers["location"] == f"/console/?sign_in={code}" and provider.asked["/token"] == 0


# bad ID tokens


def with_public_key_as_secret(provider: Provider) -> str:
    """Sign with HMAC under the provider's public key, as a library without a list of algorithms would take it."""
    pem = private_key("one").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = jwt.decode(provider.token(), options={"verify_signature": False})
    return _hs256(claims, pem)


def _hs256(claims: dict[str, Any], secret: bytes) -> str:
    def text(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head = text(json.dumps({"alg": "HS256", "kid": "one", "typ": "JWT"}).encode())
    signed = f"{head}.{text(json.dumps(claims).encode())}"
    return f"{signed}.{text(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def without_algorithm(provider: Provider) -> str:
    claims = jwt.decode(provider.token(), options={"verify_signature": False})
    return jwt.encode(claims, None, algorithm="none", headers={"kid": "one"})


def with_changed_claims(provider: Provider) -> str:
    head, _, signature = provider.token().split(".")
    return f"{head}.{provider.token(sub='u-2').split('.')[1]}.{signature}"


def unsigned(provider: Provider) -> str:
    """Return a token whose signature was cut off."""
    return provider.token().rpartition(".")[0] + "."


BAD: dict[str, tuple[Callable[[Provider], str], str]] = {
    "wrong issuer": (lambda p: p.token(iss="https://evil.example.com"), "another issuer"),
    "wrong audience": (lambda p: p.token(aud="another-client"), "another audience"),
    "for several, made for another client": (lambda p: p.token(aud=[CLIENT, "x"], azp="x"), "for another client"),
    "expired": (lambda p: p.token(exp=1_700_000_000, iat=1_699_999_000), "has expired"),
    "of a later time": (lambda p: p.token(nbf=4_000_000_000), "of a later time"),
    "no expiry": (lambda p: p.token(exp=None), "lacks the claim 'exp'"),
    "no subject": (lambda p: p.token(sub=None), "lacks the claim 'sub'"),
    "unsigned": (unsigned, "signature is wrong"),
    "none algorithm": (without_algorithm, "algorithm is 'none'"),
    "HS256 with the public key": (with_public_key_as_secret, "algorithm is 'HS256'"),
    "unknown key id": (lambda p: p.token(key="two"), "no key of this name"),
    "another key under a known id": (lambda p: p.token(key="two", headers={"kid": "one"}), "signature is wrong"),
    "changed claims": (with_changed_claims, "signature is wrong"),
    "key of another kind": (lambda p: p.token(key="ec-one", headers={"kid": "one"}), "no key of this name"),
    "logout token": (lambda p: p.token(events={"logout": {}}), "reports a logout"),
    "not a token": (lambda p: "ey.ey.ey", "not a signed JSON Web Token"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_bad_id_token_opens_no_session(
    gateway: Gateway, provider: Provider, bad: tuple[Callable[[Provider], str], str], caplog: pytest.LogCaptureFixture
) -> None:
    provider.raw_id_token = bad[0](provider)
    person = Person(gateway)
    assert await person.arrive(provider) == "/console/?sign_in=token_refused"
    assert bad[1] in caplog.text and provider.raw_id_token not in caplog.text
    assert (await person.session())["signed_in"] is False


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_bad_bearer_token_opens_nothing(
    gateway: Gateway, provider: Provider, bad: tuple[Callable[[Provider], str], str]
) -> None:
    answer = await Person(gateway).get("/admin/v1/state", f"authorization: Bearer {bad[0](provider)}\r\n")
    assert (answer.status, answer.code) == (401, "token_refused") and bad[1] in answer.json()["error"]["message"]


# rights that end


async def test_a_removed_group_loses_its_role_within_a_minute(
    gateway: Gateway, provider: Provider, clock: ShiftedClock
) -> None:
    person = Person(gateway)
    await person.arrive(provider)
    provider.groups = ["watch"]
    clock.ahead_s = 31
    assert (await person.session())["role"] == "viewer"
    provider.groups = []
    clock.ahead_s = 62
    assert (await person.session())["signed_in"] is False
    assert (await person.get("/console/api/live/fleet")).status == 401


async def test_the_provider_is_asked_twice_a_minute_at_most(
    gateway: Gateway, provider: Provider, clock: ShiftedClock
) -> None:
    person = Person(gateway)
    await person.arrive(provider)
    for ahead_s in (5, 15, 29, 31, 40, 55):
        clock.ahead_s = ahead_s
        assert (await person.session())["signed_in"]
    assert provider.asked["/userinfo"] == 2


async def test_groups_come_from_new_id_tokens_where_userinfo_has_none(
    gateway: Gateway, provider: Provider, clock: ShiftedClock
) -> None:
    provider.userinfo_groups = False
    person = Person(gateway)
    assert await person.arrive(provider) == "/console/"
    provider.groups = ["watch"]
    clock.ahead_s = 31
    assert (await person.session())["role"] == "viewer"
    assert provider.forms[-1]["grant_type"] == "refresh_token"


async def test_without_a_way_to_notice_a_removed_group_nobody_gets_in(gateway: Gateway, provider: Provider) -> None:
    provider.userinfo_groups, provider.gives_refresh = False, False
    assert await Person(gateway).arrive(provider) == "/console/?sign_in=unchecked"


async def test_revoked_tokens_end_the_session(gateway: Gateway, provider: Provider, clock: ShiftedClock) -> None:
    person = Person(gateway)
    await person.arrive(provider)
    provider.revoked = True
    clock.ahead_s = 31
    assert (await person.session())["signed_in"] is False


async def test_a_silent_provider_is_believed_for_a_minute(
    gateway: Gateway, provider: Provider, clock: ShiftedClock
) -> None:
    person = Person(gateway)
    await person.arrive(provider)
    provider.is_down = True
    clock.ahead_s = 45
    assert (await person.session())["role"] == "operator"
    clock.ahead_s = 61
    answer = await person.get("/console/api/session")
    assert (answer.status, answer.code) == (503, "provider_silent")


async def test_sign_out_ends_the_session_itself(gateway: Gateway, provider: Provider) -> None:
    person = Person(gateway)
    await person.arrive(provider)
    csrf, kept = (await person.session())["csrf"], dict(person.cookies)
    assert (await person.post("/console/api/sign-out", f"x-csrf-token: {csrf}\r\n")).status == 200
    person.cookies = kept
    assert (await person.session())["signed_in"] is False


async def test_sign_out_works_while_the_provider_is_silent(
    gateway: Gateway, provider: Provider, clock: ShiftedClock
) -> None:
    person = Person(gateway)
    await person.arrive(provider)
    csrf, kept = (await person.session())["csrf"], dict(person.cookies)
    provider.is_down, clock.ahead_s = True, 61
    assert (await person.get("/console/api/session")).status == 503
    assert (await person.post("/console/api/sign-out", "")).code == "csrf"
    assert (await person.post("/console/api/drain", f"x-csrf-token: {csrf}\r\n")).code == "provider_silent"
    assert (await person.post("/console/api/sign-out", f"x-csrf-token: {csrf}\r\n")).status == 200
    provider.is_down, person.cookies = False, kept
    assert (await person.session())["signed_in"] is False


async def test_a_sign_out_forgets_the_tokens_though_the_end_cannot_be_stored(
    gateway: Gateway, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError("no space left")

    person = Person(gateway)
    await person.arrive(provider)
    csrf, kept = (await person.session())["csrf"], dict(person.cookies)
    monkeypatch.setattr(gateway.state.console.sessions, "end", full)
    assert (await person.post("/console/api/sign-out", f"x-csrf-token: {csrf}\r\n")).status == 200
    person.cookies = kept
    assert (await person.session())["signed_in"] is False


async def test_another_client_of_the_provider_ends_sessions(gateway: Gateway, provider: Provider) -> None:
    person = Person(gateway)
    await person.arrive(provider)
    policy = gateway.state.live.policy
    assert policy.sign_in is not None
    push_policy(gateway, dataclasses.replace(policy, sign_in=dataclasses.replace(policy.sign_in, client_id="other")))
    assert (await person.session())["signed_in"] is False
    push_policy(gateway, dataclasses.replace(policy, sign_in=None))
    assert (await person.session())["signed_in"] is False
    assert (await person.get("/console/api/oidc/start")).status == 404


async def test_a_cookie_cannot_be_made_by_hand(gateway: Gateway, provider: Provider) -> None:
    person = Person(gateway)
    await person.arrive(provider)
    name = next(name for name in person.cookies if not name.endswith("_way"))
    payload, _, mac = person.cookies[name].partition(".")
    person.cookies[name] = f"{payload[:-2]}AA.{mac}"
    assert (await person.session())["signed_in"] is False


# keys


async def test_rotated_keys_are_fetched_again(gateway: Gateway, provider: Provider, clock: ShiftedClock) -> None:
    assert await Person(gateway).arrive(provider) == "/console/"
    provider.key, provider.keys = "ec-two", [public_jwk("ec-two")]
    clock.ahead_s = 11
    assert await Person(gateway).arrive(provider) == "/console/"
    assert provider.asked["/keys"] == 2


async def test_a_key_that_the_provider_removed_is_forgotten(
    gateway: Gateway, provider: Provider, clock: ShiftedClock
) -> None:
    assert await Person(gateway).arrive(provider) == "/console/"
    provider.keys = [public_jwk("two")]
    clock.ahead_s = 301
    assert await Person(gateway).arrive(provider) == "/console/?sign_in=token_refused"


async def test_invented_keys_ask_the_provider_rarely(gateway: Gateway, provider: Provider) -> None:
    for number in range(20):
        token = provider.token(key="two", headers={"kid": f"invented-{number}"})
        answer = await Person(gateway).get("/admin/v1/state", f"authorization: Bearer {token}\r\n")
        assert answer.status == 401
    assert provider.asked["/keys"] == 1


# the provider's document


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"issuer": "https://evil.example.com"}, "calls itself"),
        ({"jwks_uri": "http://169.254.169.254/keys"}, "jwks_uri"),
        ({"token_endpoint": "https://10.0.0.1/token"}, "token_endpoint"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint"),
        ({"userinfo_endpoint": 7}, "userinfo_endpoint"),
        ({"authorization_endpoint": "https://a.example.com/\r\nset-cookie: x=y"}, "printable ASCII"),
        ({"token_endpoint": "https://a.example.com/\tx"}, "printable ASCII"),
        ({"jwks_uri": "https://a.example.com/a b"}, "printable ASCII"),
        ({"jwks_uri": "https://b\u00fccher.example.com/"}, "printable ASCII"),
        ({"userinfo_endpoint": "https://[::1/userinfo"}, "userinfo_endpoint"),
    ],
    ids=[
        *("another issuer", "metadata of a cloud", "inner address", "script", "number"),
        *("line break", "tab", "space", "not ASCII", "half an address"),
    ],
)
async def test_unsafe_document_is_refused(
    gateway: Gateway, provider: Provider, change: dict[str, Any], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider.document = change
    answer = await Person(gateway).get("/console/api/oidc/start")
    assert answer.headers["location"] == "/console/?sign_in=silent" and what in caplog.text


async def test_a_large_document_is_refused(
    gateway: Gateway, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    provider.document = {"x": "y" * 600_000}
    answer = await Person(gateway).get("/console/api/oidc/start")
    assert answer.headers["location"] == "/console/?sign_in=silent" and "larger than 512 KiB" in caplog.text


async def failed_way(gateway: Gateway) -> str:
    """Return where a browser goes whose person says no at the provider."""
    person = Person(gateway)
    started = await person.get("/console/api/oidc/start")
    if started.headers["location"] == "/console/?sign_in=busy":
        return "busy"
    state = dict(parse_qsl(urlsplit(started.headers["location"]).query))["state"]
    answer = await person.get(f"/console/api/oidc/callback?error=access_denied&state={state}")
    return answer.headers["location"].rpartition("=")[2]


async def test_many_failures_from_one_address_must_wait(gateway: Gateway) -> None:
    assert [await failed_way(gateway) for _ in range(11)] == ["denied"] * 10 + ["busy"]


async def test_links_to_the_callback_lock_nobody_out(gateway: Gateway, provider: Provider) -> None:
    for _ in range(11):
        answer = await Person(gateway).get("/console/api/oidc/callback?code=x&state=y")
        assert answer.headers["location"] == "/console/?sign_in=expired"
    assert await Person(gateway).arrive(provider) == "/console/"


async def test_failures_at_the_provider_leave_the_way_with_keys_open(gateway: Gateway) -> None:
    assert [await failed_way(gateway) for _ in range(11)][-1] == "busy"
    answer = await Person(gateway).post("/console/api/sign-in", f"origin: http://{HOST}\r\n")
    assert (answer.status, answer.code) == (401, "invalid_key")


# tokens at the admin API


async def test_bearer_token_has_the_rights_of_its_groups(gateway: Gateway, provider: Provider) -> None:
    async def status(path: str, **claims: Any) -> int:
        token = provider.token(**claims)
        return (await Person(gateway).get(path, f"authorization: Bearer {token}\r\n")).status

    assert await status("/admin/v1/state") == 200
    assert await status("/admin/v1/state", groups=["science"]) == 403
    assert await status("/admin/v1/requests?tenant=a", groups=["science"]) == 200
    assert await status("/admin/v1/requests?tenant=b", groups=["science"]) == 404
    assert await status("/admin/v1/state", groups=["staff"]) == 403
    assert await status("/v1/models") == 401  # models take keys, and no tokens


async def test_bearer_token_for_another_audience_needs_it_named(provider: Provider, clock: ShiftedClock) -> None:
    headers = f"authorization: Bearer {provider.token(aud='fleet-api')}\r\n"
    for audiences, status in (((), 401), (("fleet-api",), 200)):
        policy, _ = sign_in_policy(provider.issuer, audiences=audiences)
        async with opened_gateway(policy, clock) as gateway:
            assert (await Person(gateway).get("/admin/v1/state", headers)).status == status


@pytest.mark.parametrize(
    ("aud", "status"),
    [(["longboat-api", "account"], 200), ([CLIENT, "account"], 401), ([CLIENT, "longboat-api"], 200)],
    ids=["for the API", "for the client", "for both"],
)
async def test_only_tokens_for_the_client_must_be_made_for_it(
    provider: Provider, clock: ShiftedClock, aud: list[str], status: int
) -> None:
    policy, _ = sign_in_policy(provider.issuer, audiences=("longboat-api",))
    headers = f"authorization: Bearer {provider.token(aud=aud, azp='ci')}\r\n"
    async with opened_gateway(policy, clock) as gateway:
        assert (await Person(gateway).get("/admin/v1/state", headers)).status == status


async def test_id_tokens_stay_strict_beside_audiences(provider: Provider, clock: ShiftedClock) -> None:
    policy, _ = sign_in_policy(provider.issuer, audiences=("longboat-api",))
    provider.claims = {"aud": [CLIENT, "longboat-api"], "azp": "ci"}
    async with opened_gateway(policy, clock) as gateway:
        assert await Person(gateway).arrive(provider) == "/console/?sign_in=token_refused"


async def test_bearer_token_loses_a_removed_group_within_a_minute(
    gateway: Gateway, provider: Provider, clock: ShiftedClock
) -> None:
    headers = f"authorization: Bearer {provider.token()}\r\n"
    person = Person(gateway)
    assert (await person.get("/admin/v1/state", headers)).status == 200
    assert provider.asked["/userinfo"] == 0
    provider.groups = []
    clock.ahead_s = 61
    assert (await person.get("/admin/v1/state", headers)).status == 403


async def test_an_old_bearer_token_that_cannot_be_checked_is_refused(
    gateway: Gateway, provider: Provider, clock: ShiftedClock
) -> None:
    provider.userinfo_groups = False
    clock.ahead_s = 61
    answer = await Person(gateway).get("/admin/v1/state", f"authorization: Bearer {provider.token()}\r\n")
    assert (answer.status, answer.code) == (401, "token_old") and "get a new token" in answer.body.decode()


async def test_keys_work_while_the_provider_is_away(provider: Provider, clock: ShiftedClock) -> None:
    provider.is_down = True
    policy, keys = sign_in_policy(provider.issuer)
    async with opened_gateway(policy, clock) as gateway:
        person = Person(gateway)
        assert (await person.get("/admin/v1/state", f"authorization: Bearer {keys['operator']}\r\n")).status == 200
        answer = await person.get("/admin/v1/state", f"authorization: Bearer {provider.token()}\r\n")
        assert (answer.status, answer.code) == (503, "provider_silent")


async def test_a_gateway_with_a_provider_is_not_open_to_its_own_machine(
    provider: Provider, clock: ShiftedClock
) -> None:
    policy, _ = sign_in_policy(provider.issuer)
    policy = dataclasses.replace(policy, auth="none", keys=(), admins=())
    async with opened_gateway(policy, clock) as gateway:
        assert (await Person(gateway).get("/admin/v1/state")).status == 401
        assert (await Person(gateway).session())["signed_in"] is False


def test_a_gateway_imports_nothing_of_this_before_it_is_used() -> None:
    code = "import longboat.gateway.process.server, sys; print({'jwt', 'cryptography', 'httpx'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "set()"
