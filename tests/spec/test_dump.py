"""A fleet written out and read again, and the digest that tells whether anything changed."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longboat.spec.dump import dump_fleet, fleet_digest
from longboat.spec.fleet import Fleet
from longboat.spec.load import fleet_from, load_fleet

# A busy machine is no failure.
PATIENT = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

LABEL = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,8}[A-Za-z0-9])?", fullmatch=True)
MODELS = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True),
        "source": st.sampled_from(["builtin:tiny", "hf:a/b", "/models/x: y #z"]),
    },
    optional={
        "replicas": st.integers(0, 1000),
        "context": st.none() | st.integers(1, 10**6),
        "split": st.fixed_dictionaries({}, optional={"tensor": st.integers(1, 32), "pipeline": st.integers(1, 32)}),
        "engine": st.sampled_from(["vllm", "fake"])
        | st.fixed_dictionaries({"args": st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=3)}),
        "resources": st.fixed_dictionaries({}, optional={"cpus": st.floats(0.01, 64), "memory": st.just("4096MiB")}),
        "placement": st.fixed_dictionaries({"labels": st.dictionaries(LABEL, LABEL, max_size=2)}),
    },
)
FLEETS = st.builds(
    lambda models: fleet_from({"models": models}, "x", folder="/"),
    st.lists(MODELS, min_size=1, max_size=3, unique_by=lambda model: model["name"]),
)


@PATIENT
@given(FLEETS)
def test_dump_is_read_back_as_the_same_fleet(fleet: Fleet) -> None:
    assert load_fleet(dump_fleet(fleet), "dump") == fleet


def test_dump_leaves_defaults_out() -> None:
    text = dump_fleet(load_fleet("builtin:tiny", "x"))
    assert text == "apiVersion: longboat/v1\nname: longboat\nmodels:\n- name: tiny\n  source: builtin:tiny\n"


@PATIENT
@given(FLEETS)
def test_digest_ignores_how_the_fleet_is_written(fleet: Fleet) -> None:
    turned = fleet.model_copy(update={"models": tuple(reversed(fleet.models))})
    assert fleet_digest(turned) == fleet_digest(fleet)
    assert fleet_digest(load_fleet(dump_fleet(fleet), "dump")) == fleet_digest(fleet)


def test_digest_tells_fleets_apart() -> None:
    texts = ["builtin:tiny", "models: [{source: builtin:tiny, replicas: 2}]", "{name: a, models: [builtin:tiny]}"]
    assert len({fleet_digest(load_fleet(text, "x")) for text in texts}) == len(texts)
