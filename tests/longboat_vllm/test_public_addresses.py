"""Which addresses an engine may connect to for images, and which hosts it may fetch from."""

from __future__ import annotations

import pytest

from longboat_vllm.media import RULES, Rules, is_public


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses_are_known(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.31.255.255", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1"),
        *("224.0.0.1", "239.1.1.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fd12::1", "fc00::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2002:a00:1::1"),
    ],
)
def test_other_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_hosts_are_compared_whole() -> None:
    rules = Rules({"domains": ["images.example.com", "*.cdn.example.org", "10.0.0.1", "8.8.8.8"]})
    assert all(rules.allows(host) for host in ("images.example.com", "IMAGES.example.com.", "a.cdn.example.org"))
    assert rules.allows("8.8.8.8")
    others = ("example.com", "cdn.example.org", "images.example.com.evil.net", "10.0.0.1", "127.0.0.1", "[::1]")
    assert not any(rules.allows(host) for host in others)


def test_inner_addresses_are_allowed_on_request() -> None:
    rules = Rules({"domains": ["10.0.0.1"], "private_addresses": True})
    assert rules.allows("10.0.0.1")
    assert rules.may_connect("127.0.0.1")


def test_without_rules_nothing_is_fetched() -> None:
    rules = Rules.read({})
    assert not rules.allows("images.example.com")
    assert not Rules.read({RULES: '{"domains": []}'}).may_connect("127.0.0.1")
