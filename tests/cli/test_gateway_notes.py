"""What status and up say of who may use the models, and how much."""

from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console

from cli.cli_builders import gateway, report
from longboat.cli.shared.gateway_notes import auth_line, key_note, limits_line, tenants_document
from longboat.cli.shared.tables import tenant_view
from longboat.cluster.protocol.shown import ShownGateway, shown_gateway
from longboat.spec.files.load import load_fleet
from longboat.spec.types.fleet import Fleet

KEYS = "auth: keys, tenants: [{name: a, requests_per_minute: 60}]"


def fleet(section: str) -> Fleet:
    return load_fleet(f"{{models: [builtin:tiny], gateway: {{{section}}}}}", "x")


def shown(section: str) -> ShownGateway:
    return shown_gateway(fleet(section).gateway)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("", "open to this node's own users only"),
        ("auth: none, host: 0.0.0.0", "every client that reaches the address"),
        ("auth: keys", "auth: keys, 2 known"),
        ("auth: keys, host: 0.0.0.0", "keys cross the network in clear"),
    ],
)
def test_auth_is_said_with_what_it_means(section: str, words: str) -> None:
    assert words in auth_line(shown(section), 2)


def test_keys_behind_tls_are_not_in_clear() -> None:
    line = auth_line(shown("auth: keys, host: 0.0.0.0, tls: {certificate: /c, key: /k}"), 2)
    assert "clear" not in line


def test_the_split_of_limits_is_stated_where_there_is_no_redis() -> None:
    assert "each of the 4 gateways allows 1/4" in limits_line(shown(KEYS), 4)
    assert "one gateway" in limits_line(shown(KEYS), 1)
    assert "Redis" in limits_line(shown(KEYS + ", redis: {url: 'redis://h/0'}"), 4)
    assert limits_line(shown("auth: keys, tenants: [{name: a}]"), 4) == ""


def test_the_table_of_tenants_shows_each_gateways_part() -> None:
    console = Console(width=200)
    with console.capture() as printed:
        console.print(tenant_view(shown(KEYS), report(gateways=(gateway("n1"), gateway("n2")))))
    assert "60 (30 each)" in printed.get()


def test_machines_learn_the_same() -> None:
    document = tenants_document(shown(KEYS), 2)
    assert (document["auth"], document["counted"], document["num_gateways"]) == ("keys", "per_gateway", 2)
    assert document["tenants"][0]["requests_per_minute"] == 60


def test_up_says_how_the_first_key_is_made() -> None:
    seen = report(gateways=(gateway("n1"),))
    assert "longboat keys create --tenant a" in key_note(fleet(KEYS), seen)
    assert "longboat keys list" in key_note(fleet(KEYS), dataclasses.replace(seen, num_keys=1))
    assert key_note(fleet(""), seen) == ""
