"""A fleet written out and read again, and the digest that tells whether anything changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.spec.files.dump import dump_fleet, fleet_digest
from longboat.spec.files.load import fleet_from, load_fleet
from longboat.spec.types.fleet import Fleet

ARGUMENT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
LABEL = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,8}[A-Za-z0-9])?", fullmatch=True)
DEGREE = st.integers(1, 32) | st.just("auto")
MODELS = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True),
        "source": st.sampled_from(["builtin:tiny", "hf:a/b", "/models/x: y #z"]),
    },
    optional={
        "replicas": st.integers(0, 1000) | st.just("auto"),
        "context": st.none() | st.integers(1, 10**6),
        "split": st.just("auto") | st.fixed_dictionaries({}, optional={"tensor": DEGREE, "pipeline": DEGREE}),
        "load": st.fixed_dictionaries({}, optional={"users": st.integers(1, 99), "itl_ms": st.just(50.0)}),
        "engine": st.sampled_from(["vllm", "fake"]) | st.fixed_dictionaries({"args": st.lists(ARGUMENT, max_size=3)}),
        "resources": st.fixed_dictionaries({}, optional={"cpus": st.floats(0.01, 64), "memory": st.just("4096MiB")}),
        "placement": st.fixed_dictionaries({"labels": st.dictionaries(LABEL, LABEL, max_size=2)}),
    },
)
FLEETS = st.builds(
    lambda models: fleet_from({"models": models}, "x", folder="/"),
    st.lists(MODELS, min_size=1, max_size=3, unique_by=lambda model: model["name"]),
)


# What a reader of YAML could take for a line's end, for white space to drop, or for something else than text.
AWKWARD = (
    "", " ", "  a  ", "a ", "\ta\t", "a\nb\n\n", "\n a", "a\r\nb", "a\rb", "\x85", "a\x85b", "é\x85", "\u2028",
    "a\u2029\u2028b", "\x01\x1b", "\x7f\x80\x9f", "\xa0", "\ufeff", "\ufeffa", "\ufffe\uffff", "🚣", "\U0010ffff",
    "a " * 99, "a  b" * 50, "yes", "No", "on", "y", "true", "FALSE", "null", "~", "1e3", "1.5e3", "0o7", "0x1f", "017",
    "1_000", "0.10", ".inf", ".nan", "1:30", "2020-01-01", "-", "- a", "a: b", "a #b", "#", "&a", "*a", "!a", "<<", "=",
    "---", "...", "%a", "@a", "'", '"', "\\x85", "{}", "[",
)  # fmt: skip


@pytest.mark.parametrize("argument", AWKWARD, ids=ascii)
def test_awkward_argument_is_read_back_as_it_was(argument: str) -> None:
    model = {"source": "builtin:tiny", "engine": {"args": [argument, f"--name={argument}"]}}
    fleet = fleet_from({"models": [model]}, "x", folder="/")
    again = load_fleet(dump_fleet(fleet), "dump")
    assert again.models[0].engine.args == (argument, f"--name={argument}")
    assert fleet_digest(again) == fleet_digest(fleet)


@given(FLEETS)
def test_dump_is_read_back_as_the_same_fleet(fleet: Fleet) -> None:
    assert load_fleet(dump_fleet(fleet), "dump") == fleet


def test_dump_leaves_defaults_out() -> None:
    text = dump_fleet(load_fleet("builtin:tiny", "x"))
    assert text == "apiVersion: longboat/v1\nname: longboat\nmodels:\n- name: tiny\n  source: builtin:tiny\n"


@given(FLEETS)
def test_digest_ignores_how_the_fleet_is_written(fleet: Fleet) -> None:
    turned = fleet.model_copy(update={"models": tuple(reversed(fleet.models))})
    assert fleet_digest(turned) == fleet_digest(fleet)
    assert fleet_digest(load_fleet(dump_fleet(fleet), "dump")) == fleet_digest(fleet)


def test_digest_tells_fleets_apart() -> None:
    texts = ["builtin:tiny", "models: [{source: builtin:tiny, replicas: 2}]", "{name: a, models: [builtin:tiny]}"]
    assert len({fleet_digest(load_fleet(text, "x")) for text in texts}) == len(texts)
