"""Mistakes in the gateway's part of the file, alone and between its parts."""

from __future__ import annotations

import pytest

from longboat.core.errors import Problem, UserInputError
from longboat.spec.files.load import load_fleet


# what stands under gateway, path, words in the message, words in the hint
def sign_in(
    issuer: str = "https://id.a",
    console: str = "https://llm.a",
    groups: str = "{group: g, role: viewer}",
    more: str = "",
) -> str:
    """Return a section that is right but for what is given."""
    rest = f", {more}" if more else ""
    return f"sign_in: {{issuer: '{issuer}', client_id: lb, console_urls: ['{console}'], groups: [{groups}]{rest}}}"


MISTAKES = {
    "TLS without its key": ("tls: {certificate: /c.pem}", "gateway.tls.key", "key is missing", "/etc/longboat/tls.key"),
    "relative certificate": ("tls: {certificate: c.pem, key: /k}", "gateway.tls.certificate", "absolute", "/etc"),
    "other words for a certificate": (
        "tls: {cert: /c, certificate: /c, key: /k}",
        "gateway.tls.cert",
        "no field",
        "write certificate",
    ),
    "kind of auth that is not there": ("auth: oidc", "gateway.auth", "'oidc' is not one of: keys, none", "one of"),
    "tenant twice": ("auth: keys, tenants: [{name: a}, {name: a}]", "gateway.tenants[1].name", "tenants[0]", "another"),
    "tenant without keys": ("tenants: [{name: a}]", "gateway.tenants[0].name", "no keys are required", "auth: keys"),
    "no weight": (
        "auth: keys, tenants: [{name: a, weight: 0}]",
        "gateway.tenants[0].weight",
        "0 is less than the smallest allowed",
        "write 0.001",
    ),
    "limit by another tool's name": (
        "auth: keys, tenants: [{name: a, rpm: 5}]",
        "gateway.tenants[0].rpm",
        "no field 'rpm'",
        "write requests_per_minute",
    ),
    "tenant's unknown model": (
        "auth: keys, tenants: [{name: a, models: [tinny]}]",
        "gateway.tenants[0].models[0]",
        "there is no model 'tinny'",
        "write tiny",
    ),
    "keys in the file": ("keys: [lb-a-b]", "gateway.keys", "no field 'keys'", "longboat keys create"),
    "admin without a secret": ("admin: [{name: a}]", "gateway.admin[0]", "one of secret_file", "secret_file"),
    "admin with two secrets": (
        "admin: [{name: a, secret_file: /s, secret_env: S}]",
        "gateway.admin[0]",
        "one of",
        "secret_file",
    ),
    "origin with a path": (
        "cors: {origins: ['https://a/b']}",
        "gateway.cors.origins[0]",
        "not an origin",
        "https://app",
    ),
    "proxy by name": ("trusted_proxies: [lb.example]", "gateway.trusted_proxies[0]", "not the address", "10.0.0.0/24"),
    "every client a proxy": ("trusted_proxies: ['::/0']", "gateway.trusted_proxies[0]", "every client", "10.0.0.7"),
    "alias of no model": ("aliases: [{name: a, model: x}]", "gateway.aliases[0].model", "no model 'x'", "tiny"),
    "alias named as a model": ("aliases: [{name: tiny, model: big}]", "gateway.aliases[0].name", "a model", "rules:"),
    "alias twice": (
        "aliases: [{name: a, model: big}, {name: a, model: tiny}]",
        "gateway.aliases[1].name",
        "already the name of aliases[0]",
        "another name",
    ),
    "alias of nothing": ("aliases: [{name: a}]", "gateway.aliases[0].pools", "one of model and pools", "model: NAME"),
    "alias with both": (
        "aliases: [{name: a, model: big, pools: [{model: tiny}]}]",
        "gateway.aliases[0].pools",
        "one of model and pools",
        "model: NAME",
    ),
    "pool twice": (
        "aliases: [{name: a, pools: [{model: tiny}, {model: tiny}]}]",
        "gateway.aliases[0].pools",
        "twice",
        "another model",
    ),
    "pool without weight": (
        "aliases: [{name: a, pools: [{model: tiny, weight: -1}, {model: big}]}]",
        "gateway.aliases[0].pools[0].weight",
        "-1 is less",
        "write 0.001",
    ),
    "sticky by something else": (
        "aliases: [{name: a, model: tiny, sticky: 'header:X-User'}]",
        "gateway.aliases[0].sticky",
        "'header:X-User' is not one of tenant",
        "lower case",
    ),
    "fallback of no model": ("fallbacks: {x: [tiny]}", "gateway.fallbacks.x", "no model 'x'", "big, third, tiny"),
    "fallback to no model": ("fallbacks: {tiny: [bigg]}", "gateway.fallbacks.tiny[0]", "no model 'bigg'", "write big"),
    "fallback to nothing": ("fallbacks: {tiny: []}", "gateway.fallbacks.tiny", "empty", "name a model"),
    "fallback to itself": ("fallbacks: {tiny: [tiny]}", "gateway.fallbacks.tiny", "tiny -> tiny", "take tiny out"),
    "fallbacks in a circle": (
        "fallbacks: {tiny: [big], big: [third], third: [tiny]}",
        "gateway.fallbacks.tiny",
        "tiny -> big -> third -> tiny is a circle",
        "take tiny out of the list of third",
    ),
    "fallback of an alias": (
        "aliases: [{name: a, model: tiny}], fallbacks: {a: [big]}",
        "gateway.fallbacks.a",
        "'a' is an alias",
        "the model that it stands for",
    ),
    "part in per cent": ("queue: {headroom_ratio: '50%'}", "gateway.queue.headroom_ratio", "not a number", "write 0.5"),
    "collector by another word": (
        "tracing: {endpoint: 'http://a:1', url: x}",
        "gateway.tracing.url",
        "no field 'url'",
        "write endpoint",
    ),
    "rule to no model": ("rules: [{to: x}]", "gateway.rules[0].to", "no model 'x'", "known: big"),
    "rule for no tenant": (
        "auth: keys, tenants: [{name: team}], rules: [{to: tiny, tenants: [teem]}]",
        "gateway.rules[0].tenants[0]",
        "no tenant 'teem'",
        "write team",
    ),
    "rule for no tag": ("rules: [{to: tiny, tags: [gold]}]", "gateway.rules[0].tags[0]", "no tag", "leave it out"),
    "rule without a target": ("rules: [{model: tiny}]", "gateway.rules[0].to", "to is missing", "write to: NAME"),
    "rule with bounds that cross": (
        "rules: [{to: tiny, min_context_tokens: 9, max_context_tokens: 8}]",
        "gateway.rules[0].max_context_tokens",
        "8 is less than min_context_tokens, 9",
        "write 9",
    ),
    "header in capitals": (
        "rules: [{to: tiny, headers: {X-A: b}}]",
        "gateway.rules[0].headers",
        "'X-A' is not a header's name in lower case",
        "write x-a",
    ),
    "log size without a unit": ("logs: {max_bytes: '5'}", "gateway.logs.max_bytes", "not an amount", "100MiB"),
    "collector with a password": (
        "tracing: {endpoint: 'http://u:p@a:4318'}",
        "gateway.tracing.endpoint",
        "address holds a password",
        "OTEL_EXPORTER_OTLP_HEADERS",
    ),
    "collector that is no address": ("tracing: {endpoint: 'a:4318'}", "gateway.tracing.endpoint", "not http", "4318"),
    "Redis twice": ("redis: {url: 'redis://h', url_env: U}", "gateway.redis", "one of url", "redis://HOST"),
    "Redis with a password in the file": (
        "redis: {url: 'redis://:hunter2@h/0'}",
        "gateway.redis.url",
        "the file holds a password",
        "url_file",
    ),
    "Redis by another scheme": (
        "redis: {url: 'http://h'}",
        "gateway.redis.url",
        "'http' is not the scheme",
        "redis://",
    ),
    "provider without a field": (
        "sign_in: {issuer: 'https://id.a', console_urls: ['https://llm.a'], groups: [{group: g, role: viewer}]}",
        "gateway.sign_in.client_id",
        "client_id is missing",
        "",
    ),
    "provider that is not encrypted": (
        sign_in(issuer="http://id.a"),
        "gateway.sign_in.issuer",
        "encrypted",
        "https://id.a",
    ),
    "address of the provider's document": (
        sign_in(issuer="https://id.a/x/.well-known/openid-configuration"),
        "gateway.sign_in.issuer",
        "the provider's document",
        "write https://id.a/x",
    ),
    "secret of the client in the file": (
        sign_in(more="client_secret: hunter2"),
        "gateway.sign_in.client_secret",
        "no field 'client_secret'",
        "client_secret_env",
    ),
    "two secrets of the client": (
        sign_in(more="client_secret_env: A, client_secret_file: /b"),
        "gateway.sign_in",
        "two secrets",
        "leave one",
    ),
    "console with a path": (
        sign_in(console="https://llm.a/console"),
        "gateway.sign_in.console_urls[0]",
        "not an origin",
        "write https://llm.a",
    ),
    "console that is not encrypted": (
        sign_in(console="http://llm.a:8000"),
        "gateway.sign_in.console_urls[0]",
        "not encrypted",
        "https://llm.a:8000",
    ),
    "scopes without openid": (
        sign_in(more="scopes: [groups]"),
        "gateway.sign_in.scopes",
        "openid is missing",
        "write [openid, groups]",
    ),
    "group without a right": (
        sign_in(groups="{group: g}"),
        "gateway.sign_in.groups[0]",
        "neither a role nor a tenant",
        "role: viewer",
    ),
    "role that does not exist": (
        sign_in(groups="{group: g, role: admin}"),
        "gateway.sign_in.groups[0].role",
        "'admin' is not one of",
        "",
    ),
    "group for no tenant": (
        f"auth: keys, tenants: [{{name: team}}], {sign_in(groups='{group: g, tenant: teem}')}",
        "gateway.sign_in.groups[0].tenant",
        "no tenant 'teem'",
        "write team",
    ),
    "provider by another word": ("oidc: {}", "gateway.oidc", "no field 'oidc'", "write sign_in"),
    "way back by another word": (
        sign_in(more="redirect_uri: 'https://a/b'"),
        "gateway.sign_in.redirect_uri",
        "no field",
        "write console_urls",
    ),
}


def problems(gateway: str) -> tuple[Problem, ...]:
    names = "[builtin:tiny, {name: big, source: builtin:tiny}, {name: third, source: builtin:tiny}]"
    with pytest.raises(UserInputError) as caught:
        load_fleet(f"{{models: {names}, gateway: {{{gateway}}}}}", "fleet.yaml")
    return caught.value.problems


@pytest.mark.parametrize(("gateway", "where", "what", "hint"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_refused_with_its_place_and_a_way_out(gateway: str, where: str, what: str, hint: str) -> None:
    (problem,) = problems(gateway)
    assert problem.where == where
    assert what in problem.what
    assert hint in problem.hint


def test_a_password_is_never_repeated() -> None:
    for url in ("redis://:hunter2@h/0", "hunter2", "http://u:hunter2@h"):
        (problem,) = problems(f"redis: {{url: '{url}'}}")
        assert "hunter2" not in f"{problem}{problem.hint}"


def test_mistakes_between_parts_are_told_beside_mistakes_elsewhere() -> None:
    with pytest.raises(UserInputError) as caught:
        load_fleet("{models: [{source: builtin:tiny, replicas: -1}], gateway: {rules: [{to: x}]}}", "fleet.yaml")
    assert {problem.where for problem in caught.value.problems} == {"models[0].replicas", "gateway.rules[0].to"}


def test_the_secret_of_a_client_is_never_repeated() -> None:
    (problem,) = problems(sign_in(more="client_secret: hunter2"))
    assert "hunter2" not in f"{problem}{problem.hint}"
