"""Values of a wrong type, one at each place of a file: each is a mistake with its place, and nothing else fails."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from longboat.core.errors import UserInputError
from longboat.spec.files.load import fleet_from
from longboat.spec.files.standalone_gateway import alone_from

GATEWAY = {
    "port": 8000,
    "auth": "keys",
    "tenants": [{"name": "b", "tags": ["x"], "models": ["tiny"], "allow_fields": ["priority"], "external": True}],
    "admin": [{"name": "q", "role": "viewer", "secret_env": "S"}],
    "aliases": [{"name": "g", "pools": [{"model": "tiny", "weight": 1}]}],
    "rules": [{"to": "g", "tags": ["x"], "tenants": ["b"], "headers": {"a": "b"}, "fields": {"a": "b"}}],
    "fallbacks": {"tiny": ["cloud"]},
    "overflow": {"tiny": {"to": "cloud"}},
    "prices": {"tiny": {"input_per_million": 1, "output_per_million": 2}},
    "queue": {"preemption": {}},
    "routing": {"policy": "cost"},
    "cors": {"origins": ["https://a"]},
    "sign_in": {
        "issuer": "https://id.a",
        "client_id": "lb",
        "console_urls": ["https://llm.a"],
        "groups": [{"group": "g", "role": "viewer", "tenant": "b"}],
    },
}
CLOUD = {
    "name": "cloud",
    "engine": {
        "kind": "external",
        "urls": ["https://a.example/v1"],
        "limits": {"requests_per_day": 2},
        "price": {"input_per_million": 1, "output_per_million": 2},
        "api_key_env": "K",
    },
}
TINY = {
    "name": "tiny",
    "source": "builtin:tiny",
    "engine": {"kind": "vllm", "args": ["--x"], "env": {"A": "b"}},
    "load": {"users": 1},
    "placement": {"labels": {"a": "b"}},
    "adapters": {"entries": [{"name": "z", "source": "/x", "tenants": ["b"]}]},
    "replicas": {"min": 1, "max": 3, "schedule": [{"cron": "0 8 * * 1", "for": "10h", "min": 2}]},
    "speculative": {"method": "ngram"},
}
FLEET = {"models": [TINY, CLOUD], "gateway": GATEWAY}
ALONE = {"upstreams": [{"model": "tiny", "url": "http://h:1"}], "models": [CLOUD], "gateway": GATEWAY}


def places(value: object) -> Iterator[tuple[str | int, ...]]:
    """Give the place of every value below ``value``."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield (name,)
        yield from ((name, *place) for place in places(item))


def with_value(values: Any, place: tuple[str | int, ...], value: object) -> Any:
    changed = copy.deepcopy(values)
    part = changed
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    return changed


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, [None], [{}], {"a": None}], ids=repr)
@pytest.mark.parametrize(
    ("file", "read"),
    [(FLEET, lambda values: fleet_from(values, "f", folder="/srv")), (ALONE, lambda values: alone_from(values, "f"))],
    ids=["fleet", "gateway by itself"],
)
def test_a_wrong_type_is_a_mistake_of_the_file(
    file: dict[str, Any], read: Callable[[Any], object], value: object
) -> None:
    read(file)
    refused = 0
    for place in places(file):
        try:
            read(with_value(file, place, value))
        except UserInputError as error:
            refused += all(problem.what and problem.where for problem in error.problems)
    assert refused


@pytest.mark.parametrize(
    ("place", "value", "where"),
    [
        (("models", 0, "adapters", "entries", 0, "tenants"), [], "models[0].adapters.entries[0].tenants"),
        (("gateway", "sign_in", "groups"), [], "gateway.sign_in.groups"),
        (("gateway", "sign_in", "console_urls"), [5], "gateway.sign_in.console_urls[0]"),
    ],
    ids=str,
)
def test_an_empty_list_is_a_mistake_and_bad_entries_make_none_empty(
    place: tuple[str | int, ...], value: object, where: str
) -> None:
    with pytest.raises(UserInputError) as caught:
        fleet_from(with_value(FLEET, place, value), "f", folder="/srv")
    (problem,) = caught.value.problems
    assert problem.where == where
    assert value or problem.hint == "write at least 1"


@pytest.mark.parametrize("tags", [None, 5])
def test_tags_of_a_wrong_type_are_the_only_mistake(tags: object) -> None:
    with pytest.raises(UserInputError) as caught:
        fleet_from(with_value(FLEET, ("gateway", "tenants", 0, "tags"), tags), "f", folder="/srv")
    assert [problem.where for problem in caught.value.problems] == ["gateway.tenants[0].tags"]


@pytest.mark.parametrize(
    ("place", "fields", "where", "hint"),
    [
        (("gateway", "routing"), {"polcy": "cost"}, "gateway.routing.polcy", "write policy"),
        (("gateway", "queue", "preemption"), {"zz": 1}, "gateway.queue.preemption.zz", "known here: enabled, "),
        (("gateway", "prices", "tiny"), {"zz": 1}, "gateway.prices.tiny.zz", "known here: input_per_million, "),
        (("gateway", "overflow", "tiny"), {"zz": 1}, "gateway.overflow.tiny.zz", "known here: to, "),
        (("models", 0, "media"), {"zz": 1}, "models[0].media.zz", "known here: domains, "),
        (("models", 0, "adapters"), {"zz": 1}, "models[0].adapters.zz", "known here: slots, "),
        (("models", 0, "adapters", "entries", 0), {"tenant": "b"}, "models[0].adapters.entries[0].tenant", "tenants"),
        (("models", 0, "speculative"), {"metod": "ngram"}, "models[0].speculative.metod", "write method"),
        (("models", 0, "load"), {"ttft_ms": 0}, "models[0].load.ttft_ms", "write more than 0"),
        ((), {"externel": []}, "externel", "known here: apiVersion, name, models, gateway, weights"),
    ],
    ids=str,
)
def test_each_section_has_a_hint_that_leads_somewhere(
    place: tuple[str | int, ...], fields: dict[str, object], where: str, hint: str
) -> None:
    changed = copy.deepcopy(FLEET)
    part: Any = changed
    for name in place:
        part = part.setdefault(name, {}) if isinstance(part, dict) else part[name]
    part |= fields
    with pytest.raises(UserInputError) as caught:
        fleet_from(changed, "f", folder="/srv")
    (problem,) = caught.value.problems
    assert problem.where == where
    assert hint in problem.hint and "greater" not in problem.what
