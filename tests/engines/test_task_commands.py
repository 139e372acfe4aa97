"""Tasks and media of models, as engines get them: arguments, readiness requests, and what engines are refused for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from test_vllm import ENVIRONMENT, gang, words_of

from longboat.core.media import MediaRules
from longboat.core.tasks import POOLING_TASKS, Task
from longboat.engines.fleet_checks import engine_problems
from longboat.engines.registry import adapter_for
from longboat.engines.vllm.adapter import VllmAdapter
from longboat.spec.files.load import load_fleet


@pytest.mark.parametrize(
    ("task", "words", "path"),
    [
        ("generate", (), "/v1/completions"),
        ("embed", ("--runner", "pooling", "--convert", "embed"), "/v1/embeddings"),
        ("rerank", ("--runner", "pooling", "--convert", "classify"), "/score"),
        ("classify", ("--runner", "pooling", "--convert", "classify"), "/classify"),
        ("reward", ("--runner", "pooling"), "/pooling"),
    ],
)
def test_vllm_serves_each_task_and_is_asked_for_it(task: Task, words: tuple[str, ...], path: str) -> None:
    plan = replace(gang(), task=task)
    found = words_of(plan)
    assert tuple(word for word in found if word in {"--runner", "pooling", "--convert", "embed", "classify"}) == words
    probe = VllmAdapter().probe(plan)
    assert probe.path == path
    assert json.loads(probe.body)["model"] == plan.model


def test_settings_of_chats_are_left_out_for_other_tasks() -> None:
    tiny = replace(gang(), source="builtin:tiny")
    assert "--tool-call-parser" in words_of(tiny)
    assert "--tool-call-parser" not in words_of(replace(tiny, task="embed"))


def test_sglang_makes_embeddings() -> None:
    environment = replace(ENVIRONMENT, kind="sglang", distribution="sglang")
    command = adapter_for("sglang").command(replace(gang(), task="embed"), 0, environment, "/overlay")
    assert "--is-embedding" in command.argv


def problems(model: str) -> list[tuple[str, str, str]]:
    fleet = load_fleet(f"models: [{{source: builtin:tiny, {model}}}]", "fleet.yaml")
    return [(problem.where, problem.what, problem.hint) for problem in engine_problems(fleet)]


@pytest.mark.parametrize("task", POOLING_TASKS)
def test_other_engines_are_refused_with_those_that_can(task: str) -> None:
    assert problems(f"task: {task}") == []
    ((where, what, hint),) = problems(f"task: {task}, engine: tgi")
    assert (where, what) == ("models[0].task", f"tgi cannot do this: task: {task}")
    assert "vllm" in hint
    assert ("sglang" in hint) == (task == "embed")


def test_flags_of_tasks_and_media_are_fields_of_the_file() -> None:
    for flag, field in (("--runner", "task"), ("--convert", "task"), ("--allowed-media-domains", "media")):
        ((_, _, hint),) = problems(f"engine: {{args: [{flag}, x]}}")
        assert f"the model's {field} instead" in hint


def test_only_engines_that_fetch_by_the_rules_take_domains() -> None:
    assert problems("media: {domains: [images.example.com]}") == []
    ((where, _, hint),) = problems("engine: sglang, media: {domains: [images.example.com]}")
    assert where == "models[0].media.domains"
    assert "data URLs" in hint


def test_vllm_fetches_from_nowhere_unless_the_file_names_hosts() -> None:
    none = VllmAdapter().command(gang(), 0, ENVIRONMENT, "")
    assert none.argv[none.argv.index("--allowed-media-domains") + 1] == "nowhere.invalid"
    rules = MediaRules(domains=("a.example.com", "*.b.example.com"), max_bytes=3 * 2**20 + 1, max_pixels=99)
    command = VllmAdapter().command(replace(gang(), media=rules), 0, ENVIRONMENT, "")
    at = command.argv.index("--allowed-media-domains") + 1
    assert command.argv[at : at + 2] == rules.domains
    assert command.argv[at + 2].startswith("--")
    assert command.env["VLLM_MEDIA_CONNECTOR"] == "longboat"
    assert command.env["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    assert command.env["VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB"] == "4"
    assert command.env["VLLM_MAX_IMAGE_PIXELS"] == "99"
    assert json.loads(command.env["LONGBOAT_MEDIA"] or "")["domains"] == list(rules.domains)
