"""From the file's gateway section to what gateways are told."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import msgspec
import pytest

from longboat.core.errors import UserInputError
from longboat.core.policy import KeyRecord, Policy, TenantPolicy
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of, tenant_names
from longboat.spec.secrets import admin_credentials
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.types.gateway import GatewaySpec

FULL = """
models: [builtin:tiny, {name: big, source: builtin:tiny}]
gateway:
  host: 0.0.0.0
  auth: keys
  tls: {certificate: /etc/tls.crt, key: /etc/tls.key}
  tenants:
    - {name: a, weight: 2, priority: 0, requests_per_minute: 60, models: [chat], tags: [gold], cache_group: all,
       allow_fields: [priority]}
    - {name: b, tokens_per_day: 1000000}
  admin: [{name: ops, role: operator, secret_env: OPS_SECRET}]
  cors: {origins: ["https://app.example.com"]}
  trusted_proxies: ["10.0.0.7", "fd00::/8"]
  aliases:
    - {name: gpt-4o, model: big}
    - {name: chat, pools: [{model: tiny, weight: 9}, {model: big}], sticky: tenant}
  fallbacks: {big: [tiny]}
  rules: [{to: big, model: chat, tags: [gold], headers: {x-long: "*"}, min_prompt_tokens: 1000}]
  queue: {max_wait_s: 5}
  logs: {max_bytes: 10MiB, keep: 2}
  tracing: {endpoint: "http://collector:4318", sample_ratio: 0.1}
  redis: {url_file: /etc/redis-url}
"""


def full() -> Fleet:
    return load_fleet(FULL, "fleet.yaml")


def test_everything_in_the_section_reaches_the_policy() -> None:
    key = KeyRecord(key_id="k", tenant="a", sha256="0" * 64)
    policy = policy_of(full().gateway, [key], "salt", 3)
    assert (policy.auth, policy.keys, policy.salt, policy.num_gateways) == ("keys", (key,), "salt", 3)
    assert policy.tenants[0] == TenantPolicy(
        name="a",
        weight=2.0,
        priority=0,
        requests_per_minute=60,
        models=("chat",),
        tags=("gold",),
        cache_group="all",
        allow_fields=("priority",),
    )
    assert policy.tenants[1] == TenantPolicy(name="b", tokens_per_day=1_000_000)
    assert [(alias.name, [(pool.model, pool.weight) for pool in alias.pools]) for alias in policy.aliases] == [
        ("gpt-4o", [("big", 1.0)]),
        ("chat", [("tiny", 9.0), ("big", 1.0)]),
    ]
    assert policy.fallbacks == {"big": ("tiny",)}
    assert (policy.rules[0].to, policy.rules[0].headers, policy.rules[0].min_prompt_tokens) == (
        "big",
        {"x-long": "*"},
        1000,
    )
    assert (policy.queue.max_wait_s, policy.cors.origins) == (5.0, ("https://app.example.com",))
    assert policy.trusted_proxies == ("10.0.0.7", "fd00::/8")


def test_policy_goes_through_json_unchanged() -> None:
    policy = policy_of(full().gateway, [KeyRecord(key_id="k", tenant="a", sha256="0" * 64)], "salt", 2)
    assert msgspec.json.decode(msgspec.json.encode(dataclasses.asdict(policy)), type=Policy) == policy


def test_full_section_is_dumped_and_read_back() -> None:
    assert load_fleet(dump_fleet(full()), "dump") == full()


def test_no_section_is_the_open_policy() -> None:
    assert policy_of(GatewaySpec()) == Policy()


def test_keys_without_tenants_are_of_one_tenant_without_limits() -> None:
    gateway = GatewaySpec(auth="keys")
    assert policy_of(gateway).tenants == (TenantPolicy(name="default"),)
    assert tenant_names(gateway) == ("default",)


def test_no_keys_can_be_made_where_none_are_asked_for() -> None:
    assert tenant_names(GatewaySpec()) == ()


def test_admins_are_known_by_the_digest_of_their_secret(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    digest = hashlib.sha256(b"0123456789abcdef").hexdigest()
    for source in ({"secret_file": str(tmp_path / "secret")}, {"secret_env": "S"}, {"sha256": digest}):
        gateway = GatewaySpec.model_validate({"admin": ({"name": "ops", "role": "operator", **source},)})
        (admin,) = admin_credentials(gateway.admin, {"S": "0123456789abcdef"})
        assert (admin.name, admin.role, admin.sha256) == ("ops", "operator", digest)


@pytest.mark.parametrize(("env", "what"), [({}, "not set"), ({"S": "  "}, "not set"), ({"S": "short"}, "5 characters")])
def test_a_secret_that_is_missing_or_short_is_refused_unseen(env: dict[str, str], what: str) -> None:
    gateway = GatewaySpec.model_validate({"admin": ({"name": "ops", "secret_env": "S"},)})
    with pytest.raises(UserInputError, match=what) as caught:
        admin_credentials(gateway.admin, env)
    assert "short" not in str(caught.value)


def test_only_tgi_loads_images_from_texts() -> None:
    kinds = ("vllm", "sglang", "tgi")
    served = {
        kind: ModelSpec.model_validate({"name": kind, "source": "/m", "engine": {"kind": kind}}) for kind in kinds
    }
    assert [policy_of(GatewaySpec(), served=served).media[kind].in_texts for kind in kinds] == [False, False, True]
