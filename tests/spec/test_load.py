"""What a fleet file means: defaults, short forms, names, YAML's anchors and scalars."""

from __future__ import annotations

import subprocess
import sys

import pytest

from longboat.core.errors import UserInputError
from longboat.spec.files.load import fleet_from, load_fleet, read_source
from longboat.spec.types.fleet import API_VERSION, EngineSpec, SplitSpec


@pytest.mark.parametrize(
    "text",
    [
        "builtin:tiny",
        "models: [builtin:tiny]",
        "models: [{source: builtin:tiny}]",
        "apiVersion: longboat/v1\nname: longboat\nmodels:\n- {name: tiny, source: builtin:tiny, engine: vllm}",
        '{"models": [{"source": "builtin:tiny", "engine": {"kind": "vllm"}, "replicas": 1}]}',
    ],
)
def test_short_and_long_forms_mean_the_same(text: str) -> None:
    assert load_fleet(text, "fleet.yaml") == read_source("builtin:tiny", folder="/").whole()


def test_defaults_are_one_replica_on_one_rank_behind_a_local_gateway() -> None:
    fleet = load_fleet("builtin:tiny", "fleet.yaml")
    model = fleet.models[0]
    assert (fleet.name, fleet.api_version) == ("longboat", API_VERSION)
    assert (fleet.gateway.host, fleet.gateway.port, fleet.gateway.processes) == ("127.0.0.1", 8000, 1)
    assert (model.replicas, model.split, model.context) == (1, SplitSpec(tensor=1, pipeline=1), None)
    assert (model.resources.cpus, model.resources.gpus, model.resources.memory_bytes) == (1.0, None, 0)
    assert model.engine == EngineSpec(kind="vllm", startup="auto")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("builtin:tiny", "tiny"),
        ("builtin:random-100m", "random-100m"),
        ("hf:Qwen/Qwen3-0.6B", "Qwen3-0.6B"),
        ("/models/Qwen3-0.6B/", "Qwen3-0.6B"),
        ("/models/my model (v2)", "my-model-v2"),
        ("/models/qwen@v2", "qwen-v2"),
        ("hf:Qwen/Qwen3-0.6B@v2", "Qwen3-0.6B"),
        ("/models/" + "x" * 100, "x" * 63),
    ],
)
def test_name_follows_from_the_source(source: str, name: str) -> None:
    assert read_source(source, folder="/").whole().models[0].name == name


def test_whole_numbers_stand_for_fractions_but_not_the_other_way() -> None:
    fleet = load_fleet("models: [{source: builtin:tiny, resources: {cpus: 2, gpus: 0}}]", "fleet.yaml")
    assert (fleet.models[0].resources.cpus, fleet.models[0].resources.gpus) == (2.0, 0.0)


@pytest.mark.parametrize(("text", "size"), [("4GiB", 4 << 30), ("4096 MiB", 4 << 30), ("1.5GB", 1_500_000_000)])
def test_memory_is_read_with_its_unit(text: str, size: int) -> None:
    fleet = fleet_from({"models": [{"source": "builtin:tiny", "resources": {"memory": text}}]}, "x", folder="/")
    assert fleet.models[0].resources.memory_bytes == size


def test_anchors_and_merges_share_settings() -> None:
    text = """
models:
  - &base {source: builtin:tiny, name: one, replicas: 3, resources: {cpus: 0.5}}
  - {<<: *base, name: two, replicas: 1}
"""
    one, two = load_fleet(text, "fleet.yaml").models
    assert (one.name, one.replicas, two.name, two.replicas) == ("one", 3, "two", 1)
    assert two.resources == one.resources


@pytest.mark.parametrize("word", ["yes", "no", "on", "1:30", "2024-01-01", "0x10", "1_000", "010"])
def test_words_that_old_yaml_reads_as_something_else_are_text(word: str) -> None:
    text = f"models: [{{source: builtin:tiny, engine: {{args: [{word}]}}}}]"
    assert load_fleet(text, "fleet.yaml").models[0].engine.args == (word,)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_hosts_need_no_word_about_auth(host: str) -> None:
    assert fleet_from({"models": ["builtin:tiny"], "gateway": {"host": host}}, "x", folder="/").gateway.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.example.com", "127.0.0.1.example.com"])
def test_open_hosts_need_auth_none(host: str) -> None:
    gateway = {"host": host}
    with pytest.raises(UserInputError, match="open to other machines"):
        fleet_from({"models": ["builtin:tiny"], "gateway": gateway}, "x", folder="/")
    fleet = fleet_from({"models": ["builtin:tiny"], "gateway": gateway | {"auth": "none"}}, "x", folder="/")
    assert fleet.gateway.auth == "none"


def test_values_given_are_not_changed() -> None:
    data = {"models": [{"source": "builtin:tiny", "engine": "fake"}]}
    fleet_from(data, "x", folder="/")
    assert data == {"models": [{"source": "builtin:tiny", "engine": "fake"}]}


def test_fleet_cannot_be_changed() -> None:
    fleet = load_fleet("builtin:tiny", "fleet.yaml")
    with pytest.raises(ValueError, match="frozen"):
        fleet.models[0].replicas = 2


def test_only_given_options_reach_the_fake_engine() -> None:
    text = "models: [{source: builtin:tiny, engine: {kind: fake, options: {ttft_ms: 5, kv_blocks: 10}}}]"
    assert load_fleet(text, "fleet.yaml").models[0].engine.given_options == {"ttft_ms": 5.0, "kv_blocks": 10}


def test_options_of_the_file_are_those_of_the_fake_engine() -> None:
    from longboat.engines.fake import FAKE_OPTIONS
    from longboat.spec.types.fleet import OptionsSpec

    assert set(OptionsSpec.model_fields) == set(FAKE_OPTIONS)


DEEP = ['"- " * 100_000 + "a"', '"[" * 100_000', '"? " * 100_000', '"a: {" * 50_000']


@pytest.mark.parametrize("text", DEEP)
def test_deep_nesting_is_refused_and_does_not_end_the_process(text: str) -> None:
    code = f"""
from longboat.core.errors import UserInputError
from longboat.spec.files.load import load_fleet
try:
    load_fleet({text}, "fleet.yaml")
except UserInputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "nested deeper" in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{to}: &{to} [{', '.join([f'*{of}'] * 9)}]\n" for of, to in zip("abcdefg", "bcdefgh", strict=True)),
        "#" * 1_000_001,
    ],
    ids=["an anchor inside itself", "a billion laughs", "a large file"],
)
def test_hostile_files_are_refused(text: str) -> None:
    with pytest.raises(UserInputError):
        load_fleet(text, "fleet.yaml")


def test_auto_is_kept_until_it_is_decided() -> None:
    (model,) = load_fleet("models: [{source: builtin:tiny, split: auto, replicas: auto}]", "x").models
    assert (model.split, model.replicas, model.is_decided) == ("auto", "auto", False)
    with pytest.raises(ValueError, match="replicas of tiny are not decided"):
        _ = model.num_replicas
    with pytest.raises(ValueError, match="split of tiny is not decided"):
        _ = model.ranks


@pytest.mark.parametrize("split", ["{tensor: auto}", "{tensor: 2, pipeline: auto}", "{pipeline: 2, tensor: auto}"])
def test_auto_in_a_part_of_the_split_leaves_it_undecided(split: str) -> None:
    (model,) = load_fleet(f"models: [{{source: builtin:tiny, split: {split}}}]", "x").models
    assert not model.is_decided
    assert not model.split_is_decided
    with pytest.raises(ValueError, match="split of tiny is not decided"):
        _ = model.ranks


def test_numbers_are_decided() -> None:
    text = "models: [{source: builtin:tiny, split: {pipeline: 2, layers: [3, 1]}, replicas: 3}]"
    (model,) = load_fleet(text, "x").models
    assert model.is_decided
    assert (model.num_replicas, model.ranks.layers) == (3, (3, 1))
