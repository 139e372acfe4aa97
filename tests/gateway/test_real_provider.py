"""Signing in through the provider of the package oidc-provider-mock, which runs as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from provider_lab import HOST, Person, ShiftedClock, opened_gateway, sign_in_policy

from longboat.core.policy import Policy

SERVE = """
from oidc_provider_mock import run_server_in_thread
with run_server_in_thread() as server:
    print(server.server_port, flush=True)
    input()
"""


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    command = [sys.executable, "-W", "ignore", "-c", SERVE]
    env = {**os.environ, "AUTHLIB_INSECURE_TRANSPORT": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the provider did not start"
        yield f"http://localhost:{port}"
        process.kill()


@pytest.fixture
def policy(issuer: str, monkeypatch: pytest.MonkeyPatch) -> Policy:
    """Return a policy whose client is registered at the provider, with a secret."""
    callback = f"http://{HOST}/console/api/oidc/callback"
    client = httpx.post(f"{issuer}/oauth2/clients", json={"redirect_uris": [callback]}).json()
    monkeypatch.setenv("OIDC_SECRET", client["client_secret"])
    return sign_in_policy(issuer, client_id=client["client_id"], client_secret_env="OIDC_SECRET")[0]


async def set_groups(issuer: str, *groups: str) -> None:
    claims = {"preferred_username": "ada", "groups": list(groups)}
    async with httpx.AsyncClient() as client:
        assert (await client.put(f"{issuer}/users/ada", json=claims)).status_code == 204


async def agreed(url: str) -> str:
    """Agree at the provider as ada, and return the path and query by which the browser comes back."""
    async with httpx.AsyncClient() as client:
        back = urlsplit((await client.post(url, data={"sub": "ada"})).headers["location"])
    return f"{back.path}?{back.query}"


async def test_person_signs_in_and_loses_a_removed_group(issuer: str, policy: Policy) -> None:
    clock = ShiftedClock()
    await set_groups(issuer, "ops", "staff")
    async with opened_gateway(policy, clock) as gateway:
        person = Person(gateway)
        back = await agreed(await person.start())
        assert (await person.get(back)).headers["location"] == "/console/"
        assert (await person.session())["role"] == "operator"
        await set_groups(issuer, "watch")
        clock.ahead_s = 31
        assert (await person.session())["role"] == "viewer"
        await set_groups(issuer)
        clock.ahead_s = 62
        assert (await person.session())["signed_in"] is False


async def test_revoked_tokens_end_the_session(issuer: str, policy: Policy) -> None:
    clock = ShiftedClock()
    await set_groups(issuer, "ops")
    async with opened_gateway(policy, clock) as gateway:
        person = Person(gateway)
        await person.get(await agreed(await person.start()))
        assert (await person.session())["role"] == "operator"
        async with httpx.AsyncClient() as client:
            assert (await client.post(f"{issuer}/users/ada/revoke-tokens")).status_code == 204
        clock.ahead_s = 31
        assert (await person.session())["signed_in"] is False


async def test_a_person_who_refuses_is_sent_back(policy: Policy) -> None:
    async with opened_gateway(policy, ShiftedClock()) as gateway:
        person = Person(gateway)
        url = await person.start()
        async with httpx.AsyncClient() as client:
            back = urlsplit((await client.post(url, data={"action": "deny"})).headers["location"])
        answer = await person.get(f"{back.path}?{back.query}")
        assert answer.headers["location"].startswith("/console/?sign_in=")
        assert (await person.session())["signed_in"] is False


async def test_a_wrong_secret_opens_nothing(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OIDC_SECRET", "wrong")
    async with opened_gateway(policy, ShiftedClock()) as gateway:
        person = Person(gateway)
        back = await agreed(await person.start())
        assert (await person.get(back)).headers["location"] == "/console/?sign_in=silent"
    assert "invalid_client" in caplog.text
