"""The gateway's configuration document."""

from __future__ import annotations

import orjson
import pytest
from gateway_lab import config

from longboat.core.errors import UserInputError
from longboat.core.policy import Alias, KeyRecord, Policy, RouteRule, TenantPolicy, WeightedPool
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


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"port": 70000}, "port"),
        ({"tracing_sample_ratio": 1.5}, "tracing_sample_ratio"),
        ({"tls_certificate": "/c.pem"}, "tls_key"),
        ({"tls_key": "/k.pem"}, "tls_certificate"),
        ({"limits": {"max_body_bytes": 0}}, "limits.max_body_bytes"),
        ({"limits": {"head_timeout_s": -1}}, "limits.head_timeout_s"),
        ({"policy": {"tenants": [{"name": 3}]}}, "policy.tenants[0].name"),
        ({"upstreams": []}, "upstreams"),  # endpoints come over the control socket alone
    ],
)
def test_config_names_a_value_outside_its_bounds(change: dict[str, object], where: str) -> None:
    with pytest.raises(UserInputError) as caught:
        decode_config(orjson.dumps({**GOOD, **change}))
    assert [p.where for p in caught.value.problems] == [where]
    assert caught.value.hint


def test_config_carries_the_policy() -> None:
    policy = Policy(
        auth="keys",
        tenants=(TenantPolicy(name="a", models=("m",)),),
        keys=(KeyRecord(key_id="lb-1", tenant="a", sha256="00"),),
        aliases=(Alias(name="x", pools=(WeightedPool(model="m"),)),),
        fallbacks={"m": ("n",)},
        rules=(RouteRule(to="m", headers={"h": "*"}),),
        salt="grain",
    )
    given = config(policy=policy, redis_url="redis://:pw@h")
    assert decode_config(encode_config(given)) == given


def test_config_shows_no_secret_when_printed() -> None:
    told = config(redis_url="redis://:hush@h", policy=Policy(salt="hush"), control_token="hush")
    assert "hush" not in repr(told) + str(list(told.__rich_repr__()))
    assert "port=0" in repr(told)
