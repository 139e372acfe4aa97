"""The address by which a client's failed sign-ins count, with and without proxies in front."""

from __future__ import annotations

import dataclasses
from ipaddress import ip_network
from typing import Any

import pytest
from console_client import API, Browser
from console_lab import lab_policy
from gateway_lab import push_policy

from longboat.gateway.limits.client_address import client_address, household
from longboat.gateway.process.server import Gateway

PROXIES = (ip_network("10.0.0.0/24"), ip_network("fd00::/8"))
WRONG = {"key": "guess"}


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7:4711", "192.0.2.7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("::ffff:10.0.0.1", " 192.0.2.7 ", "192.0.2.7"),
        ("fd00::5", "192.0.2.7, 10.0.0.9", "192.0.2.7"),  # two proxies in a row
        ("10.0.0.1", "203.0.113.1, 192.0.2.7", "192.0.2.7"),  # the client wrote the first one itself
        ("192.0.2.9", "203.0.113.1", "192.0.2.9"),  # it is no proxy of the fleet
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "192.0.2.7, é, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "192.0.2.7, " + "10.0.0.2, " * 20 + "10.0.0.3", "10.0.0.2"),  # no proxies are so many
        ("", "192.0.2.7", "None"),
    ],
)
def test_only_what_trusted_proxies_add_counts(peer: str, forwarded: str, found: str) -> None:
    assert str(client_address(peer, forwarded.encode("latin-1"), PROXIES)) == found


def test_one_owner_of_many_ipv6_addresses_counts_once() -> None:
    one, two, other = (client_address(peer, b"", ()) for peer in ("2001:db8::1", "2001:db8::2:3", "2001:db8:0:1::1"))
    assert household(one) == household(two) != household(other)


def behind(address: str) -> str:
    return f"x-forwarded-for: {address}\r\n"


async def test_wrong_keys_behind_a_trusted_proxy_lock_no_one_else_out(make_gateway: Any, make_upstream: Any) -> None:
    _, browser, keys = await opened(make_gateway, make_upstream, ("127.0.0.0/8",))
    for _ in range(10):
        assert (await browser.post(API + "sign-in", WRONG, behind("192.0.2.66"))).status == 401
    assert (await browser.post(API + "sign-in", WRONG, behind("192.0.2.66"))).status == 429
    assert (await browser.post(API + "sign-in", WRONG, behind("203.0.113.5, 192.0.2.66"))).status == 429
    assert (await browser.post(API + "sign-in", {"key": keys["viewer"]}, behind("192.0.2.7"))).status == 200


async def test_a_client_cannot_take_other_names_to_guess_on(make_gateway: Any, make_upstream: Any) -> None:
    _, browser, _ = await opened(make_gateway, make_upstream, ())
    statuses = [
        (await browser.post(API + "sign-in", WRONG, behind(f"192.0.2.{number}"))).status for number in range(12)
    ]
    assert statuses == [401] * 10 + [429] * 2


async def test_the_cookie_is_for_encrypted_connections_behind_a_proxy_with_tls(
    make_gateway: Any, make_upstream: Any
) -> None:
    _, browser, keys = await opened(make_gateway, make_upstream, ())
    for scheme, secure in (("https", True), ("http", False)):
        answer = await browser.post(API + "sign-in", {"key": keys["viewer"]}, f"origin: {scheme}://{browser.host}\r\n")
        assert answer.status == 200 and ("; Secure" in answer.headers["set-cookie"]) is secure


async def opened(
    make_gateway: Any, make_upstream: Any, proxies: tuple[str, ...]
) -> tuple[Gateway, Browser, dict[str, str]]:
    policy, keys = lab_policy(())
    gateway = await make_gateway(await make_upstream(), policy=policy)
    push_policy(gateway, dataclasses.replace(policy, trusted_proxies=proxies))
    return gateway, Browser(gateway), keys
