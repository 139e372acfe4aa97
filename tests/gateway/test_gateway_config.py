"""The gateway's configuration document."""

from __future__ import annotations

import orjson
import pytest
from gateway_lab import config

from longboat.core.errors import UserInputError
from longboat.gateway.config import GatewayLimits, decode_config, encode_config

GOOD = {"port": 8000, "control_socket": "/s", "control_token": "t"}


def test_config_round_trips() -> None:
    given = config(port=1, processes=3, access_log="/a", limits=GatewayLimits(max_outstanding=4))
    assert decode_config(encode_config(given)) == given


def test_config_hides_its_token_when_printed() -> None:
    assert "hush" not in repr(config(control_token="hush"))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"prot": 1}, "prot"),
        ({"port": "8000"}, "port"),
        ({"port": True}, "port"),
        ({"control_token": ""}, "control_token"),
        ({"processes": 0}, "processes"),
        ({"limits": {"max_body_bytes": "1"}}, "limits.max_body_bytes"),
        ({"limits": {"x": 1}}, "limits.x"),
        ({"limits": 3}, "limits"),
    ],
)
def test_config_names_the_wrong_value(change: dict[str, object], where: str) -> None:
    with pytest.raises(UserInputError) as caught:
        decode_config(orjson.dumps({**GOOD, **change}))
    assert [p.where for p in caught.value.problems] == [where]


@pytest.mark.parametrize("document", [b"", b"[]", b"{", b"{}"])
def test_config_that_is_no_whole_document_is_refused(document: bytes) -> None:
    with pytest.raises(UserInputError):
        decode_config(document)
