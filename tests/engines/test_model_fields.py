"""Fields of a model that engines may lack, and what they become on an engine's command line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from engines.test_llama_cpp_in_fleets import BOTH, planned, refused
from longboat.cluster.gang.revision import revision_of
from longboat.cluster.protocol.model import EngineSettings, ServedModel
from longboat.engines.fleet_checks import engine_problems
from longboat.engines.model_arguments import arguments_of
from longboat.engines.registry import adapter_for
from longboat.spec.files.load import load_fleet
from longboat.spec.types.fleet import ModelSpec
from longboat_vllm.resume.carry import CarriedRequest
from longboat_vllm.resume.repeated import RepeatedTokens

NGRAM = "{method: ngram, tokens: 4}"


def model(text: str) -> ModelSpec:
    return load_fleet(f"models: [{{source: builtin:tiny, {text}}}]", "fleet.yaml").models[0]


def problems(text: str) -> list[tuple[str, str, str]]:
    found = engine_problems(load_fleet(f"models: [{{source: builtin:tiny, {text}}}]", "fleet.yaml"))
    return [(problem.where, problem.what, problem.hint) for problem in found]


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp", "tgi", "fake"])
def test_engine_without_speculation_refuses_it_and_names_one_that_has_it(engine: str) -> None:
    ((where, what, hint),) = problems(f"engine: {engine}, speculative: {NGRAM}")
    assert where == "models[0].speculative"
    assert what == f"{engine} cannot do this: method: ngram"
    assert hint == "leave it out, or write an engine that can: vllm"


@pytest.mark.parametrize(("field", "value"), [("data", "2"), ("expert", "true")])
def test_engine_that_divides_neither_requests_nor_experts_says_so(field: str, value: str) -> None:
    found = problems(f"engine: llama.cpp, split: {{{field}: {value}}}")
    assert [(where, what) for where, what, _ in found] == [
        (f"models[0].split.{field}", f"llama.cpp cannot do this: {field}: {value}")
    ]
    assert found[0][2].endswith("or write an engine that can: vllm, sglang")
    assert not problems(f"engine: vllm, split: {{{field}: {value}}}")


@pytest.mark.parametrize("flag", ["--data-parallel-size=2", "-dp=2", "--enable-expert-parallel", "--spec-method=ngram"])
def test_flags_of_typed_fields_are_refused_with_the_field(flag: str) -> None:
    ((where, _, hint),) = problems(f"engine: {{args: ['{flag}']}}")
    assert where == "models[0].engine.args[0]"
    assert any(field in hint for field in ("split.data", "split.expert", "speculative"))


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_experts_are_not_divided_on_processors(engine: str, platform: str) -> None:
    missing = adapter_for(engine).unable_on.get(platform, {})
    assert ("expert" in missing) is (platform == "cpu")
    assert ("data" in missing) is (platform == "cpu" and engine == "sglang")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (NGRAM, {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}),
        ("{method: ngram, lookup: 5}", {"prompt_lookup_max": 5, "num_speculative_tokens": 3}),
        ("{method: draft, model: 'hf:a/b'}", {"method": "draft_model", "model": "a/b"}),
        ("{method: eagle3, model: /m, tokens: 2}", {"method": "eagle3", "model": "/m", "num_speculative_tokens": 2}),
        ("{method: mtp, tokens: 1}", {"method": "mtp", "num_speculative_tokens": 1}),
    ],
)
def test_speculation_is_an_argument_of_vllm(written: str, told: dict[str, Any]) -> None:
    *args, last = arguments_of(model(f"speculative: {written}, engine: {{args: [--seed=1]}}"))
    flag, _, text = last.partition("=")
    assert (args, flag) == (["--seed=1"], "--speculative-config")
    assert told.items() <= json.loads(text).items()


def test_only_proposals_of_weights_make_the_memory_unknown() -> None:
    adapter = adapter_for("vllm")
    for written, unknown in ((NGRAM, ()), ("{method: mtp}", ("--speculative-config",))):
        told = adapter.memory(arguments_of(model(f"speculative: {written}")), "cuda")
        assert told is not None
        assert told.unknown == unknown


def test_speculation_is_another_revision() -> None:
    def revision(text: str) -> str:
        engine = EngineSettings(kind="vllm", args=arguments_of(model(text)))
        return revision_of(ServedModel(name="m", source="s", engine=engine), "org/name", "vllm 0.32.0")

    assert (
        len({revision("replicas: 1"), revision(f"speculative: {NGRAM}"), revision("speculative: {method: mtp}")}) == 3
    )


class Output:
    """An output of vLLM with one choice."""

    def __init__(self, *token_ids: int) -> None:
        self.outputs = [self]
        self.index, self.token_ids = 0, token_ids


def test_repeated_tokens_are_compared_as_they_come() -> None:
    repeated = RepeatedTokens(CarriedRequest(mode="replay", prior=[[1, 2, 3, 4]]), 0)
    for tokens in ((1,), (2, 3), (4, 9), (7,)):
        repeated.check(Output(*tokens), is_delta=True)
    with pytest.raises(ValueError, match="differ"):
        RepeatedTokens(CarriedRequest(mode="replay", prior=[[1, 2]]), 0).check(Output(1, 5), is_delta=False)
    RepeatedTokens(CarriedRequest(mode="carried", prior=[[1, 2]]), 0).check(Output(3), is_delta=True)


def test_experts_on_processors_are_refused_before_anything_starts() -> None:
    here = replace(BOTH, lacks={str(name): hint for name, hint in adapter_for("vllm").unable_on["cpu"].items()})
    entry = "{source: 'builtin:tiny-moe', name: t, engine: vllm, split: {data: 2, expert: %s}}"
    found = refused(entry % "true", here)
    assert {problem.where for problem in found} == {"models[0].split.expert"}
    assert "vllm there cannot divide whole experts" in found[0].what
    assert "write expert: false" in found[0].hint
    assert planned(entry % "false", here).shapes["t"].data == 2
