"""Tests of SGLang's adapter: command lines against golden files, and the reading of arguments, logs and metrics.

``LONGBOAT_UPDATE_GOLDEN=1 pytest tests/engines/test_sglang.py`` rewrites the golden files.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from engines.test_vllm import gang
from longboat.core.plan import AdapterRoom, EngineMemory, GangPlan, RankResources
from longboat.core.states import Phase
from longboat.engines.contract import EngineCounters, EngineEnvironment, EngineLoad
from longboat.engines.sglang.adapter import SglangAdapter
from longboat.engines.sglang.flags import ARGUMENTS, OWNED_FLAGS

GOLDEN = Path(__file__).parent / "golden"
ENVIRONMENT = EngineEnvironment(
    kind="sglang",
    python="/env/bin/python",
    distribution="sglang",
    version="0.5.23",
    platform="cpu",
    fingerprint="f00d",
)
CUDA = replace(ENVIRONMENT, platform="cuda")
CASES = {
    "cpu-single": (gang(), ENVIRONMENT),
    "cpu-tiny": (replace(gang(), source="builtin:tiny", context_tokens=None), ENVIRONMENT),
    "cpu-tensor2-two-nodes": (gang(tensor=2, nodes=2), ENVIRONMENT),
    "cuda-tensor2-pipeline2-two-nodes": (gang(tensor=2, pipeline=2, nodes=2, gpus=1.0), CUDA),
    "cuda-data4-tensor4-two-nodes": (gang(tensor=4, data=4, nodes=2, gpus=1.0), CUDA),
    "cuda-hub-model": (replace(gang(gpus=1.0), source="hf:org/name", model_path="org/name"), CUDA),
}


def lines_of(plan: GangPlan, environment: EngineEnvironment) -> str:
    """Return every rank's command, one flag per line, as a reviewer wants to see it."""
    text = []
    for rank in plan.ranks:
        command = SglangAdapter().command(plan, rank.node_rank, environment, "/overlay")
        text.append(f"# rank {rank.node_rank}")
        text += [f"{name}={value}" if value is not None else f"unset {name}" for name, value in command.env.items()]
        text += [" ".join(command.argv).replace(" --", " \\\n    --"), ""]
    return "\n".join(text)


def words_of(plan: GangPlan, environment: EngineEnvironment = ENVIRONMENT) -> tuple[str, ...]:
    return SglangAdapter().command(plan, 0, environment, "/overlay").argv


@pytest.mark.parametrize("name", sorted(CASES))
def test_command_equals_its_golden_file(name: str) -> None:
    golden = GOLDEN / f"sglang-{name}.txt"
    text = lines_of(*CASES[name])
    if os.environ.get("LONGBOAT_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_command_repeats_no_flag_that_the_user_gave() -> None:
    user = ("--max-total-tokens=2000", "--dtype", "bfloat16", "--context-length", "512")
    words = words_of(replace(gang(), extra_args=user))
    assert words[-len(user) :] == user
    assert "--max-total-tokens" not in words
    assert words.count("--dtype") == words.count("--context-length") == 1


def test_nothing_of_a_cpu_is_in_a_command_for_cuda() -> None:
    command = SglangAdapter().command(gang(gpus=1.0), 0, CUDA, "/overlay")
    assert not {"--device", "--attention-backend", "--dtype", "--max-total-tokens"} & set(command.argv)
    assert "SGLANG_USE_CPU_ENGINE" not in command.env


def test_command_shows_the_secret_only_to_the_environment() -> None:
    command = SglangAdapter().command(gang(), 0, ENVIRONMENT, "/overlay")
    assert command.env["LONGBOAT_ENGINE_API_KEY"] == "secret"
    assert command.zygote is not None
    assert not any("secret" in word for word in (*command.argv, *command.zygote.argv))


def test_zygote_is_preloaded_with_a_part_of_the_ranks_environment() -> None:
    command = SglangAdapter().command(gang(), 0, ENVIRONMENT, "/overlay")
    assert command.zygote is not None
    assert command.zygote.argv[1:] == command.argv[3:]
    assert command.zygote.preload_env["SGLANG_USE_CPU_ENGINE"] == "1"


def test_command_gives_each_rank_as_many_threads_as_it_has_cpus() -> None:
    shape = replace(gang().shape, resources=RankResources(num_cpus=4.0))
    command = SglangAdapter().command(replace(gang(), shape=shape), 0, ENVIRONMENT, "")
    assert command.env["OMP_NUM_THREADS"] == "4"


def test_layers_of_each_stage_reach_every_rank() -> None:
    plan = gang(pipeline=2, nodes=2)
    uneven = replace(plan, shape=replace(plan.shape, layers=(26, 38)))
    for rank in (0, 1):
        command = SglangAdapter().command(uneven, rank, ENVIRONMENT, "")
        assert command.env["SGLANG_PP_LAYER_PARTITION"] == "26,38"


@pytest.mark.parametrize(
    ("given", "owner"),
    [
        *((flag, flag) for flag in OWNED_FLAGS),
        *(("--tp", "--tp-size"), ("--tensor-parallel-size=2", "--tp-size"), ("--model", "--model-path")),
        *(("--enable-custom", "--enable-custom-logit-processor"), ("--tensor", "--tp-size")),
        ("--attention-data-parallel-size", "--attn-dp-size"),
    ],
)
def test_flags_that_longboat_sets_are_refused_with_what_to_do(given: str, owner: str) -> None:
    (problem,) = ARGUMENTS.problems(("--page-size", "1", given))
    assert problem.where == "[2]"
    assert problem.hint == OWNED_FLAGS[owner]


def test_other_flags_are_left_to_sglang() -> None:
    assert ARGUMENTS.problems(("--page-size", "1", "--mem-fraction-static=0.8", "--schedule-policy", "fcfs")) == ()
    (problem,) = ARGUMENTS.problems(("page-size",))
    assert "is not a flag" in problem.what


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("16k", 16_000), ("16Ki", 16_384), ("0.5M", 500_000), ("2000", 2000), ("16K", 8192), ("0.5Ki", 8192)],
)
def test_numbers_have_the_units_that_sglang_reads(text: str, tokens: int) -> None:
    assert SglangAdapter().memory(("--max-total-tokens", text), "cpu").cache_tokens == tokens


def test_memory_follows_the_arguments() -> None:
    cpu = SglangAdapter().memory((), "cpu")
    assert (cpu.weight_bits, cpu.kv_bits, cpu.cache_tokens, cpu.graphs) == (32, 32, 8192, False)
    assert SglangAdapter().memory((), "cuda") == EngineMemory(block_tokens=1)
    words = ("--max-total-tokens", "100", "--dtype=bfloat16", "--max-running-requests", "3", "--quantization", "awq")
    given = SglangAdapter().memory(words, "cpu")
    assert (given.cache_tokens, given.weight_bits, given.sequences) == (100, 0, 3)
    assert given.unknown == ("--quantization",)
    assert SglangAdapter().memory(("--load-format", "runai_streamer"), "cuda").unknown == ()
    assert SglangAdapter().memory(("--offload-group-size", "8"), "cuda").unknown == ("--offload-group-size",)
    assert SglangAdapter().memory(("--enable-hicache",), "cuda").unknown == ("--enable-hierarchical-cache",)
    assert SglangAdapter().memory(("--mem-fraction-static", "inf"), "cuda").memory_ratio == 0.0
    assert SglangAdapter().memory(("--load-format", "gguf"), "cuda").unknown == ("--load-format",)
    assert SglangAdapter().memory(("--mem-fraction-static", "0.7"), "cuda").memory_ratio == 0.7


def test_capacity_is_the_users_word_or_the_cpus_default() -> None:
    adapter = SglangAdapter()
    assert adapter.capacity(gang()) == 8
    assert adapter.capacity(gang(gpus=1.0)) is None
    assert adapter.capacity(replace(gang(gpus=1.0), extra_args=("--max-running-requests", "32"))) == 32


def test_probe_asks_for_one_token_with_the_key() -> None:
    probe = SglangAdapter().probe(gang())
    assert probe.path == "/v1/completions"
    assert json.loads(probe.body)["max_tokens"] == 1
    assert probe.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("[2026-11-22 19:29:20] Load weight begin. avail mem=11.98 GB", Phase.LOADING),
        ("[2026-11-22 19:29:21] Load weight end. elapsed=0.44 s, type=Qwen3ForCausalLM, dtype=...", Phase.WARMING),
        ("[2026-11-22 19:29:21] KV Cache is allocated. #tokens: 8192, K size: 0.00 GB", Phase.WARMING),
        ("[2026-11-22 19:29:01] server_args={'model_path': '/m'}", None),
    ],
)
def test_phase_is_read_from_the_log(line: str, phase: Phase | None) -> None:
    assert SglangAdapter().phase_of(line) is phase


METRICS = """
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="x",pp_rank="0",tp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="x",pp_rank="1",tp_rank="0"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="x"} 2.0
sglang:token_usage{engine_type="unified",model_name="x"} 0.25
sglang:max_total_num_tokens{model_name="x"} 8192.0
sglang:prompt_tokens_total{model_name="x"} 5.0
sglang:generation_tokens_total{model_name="x"} 1.2e+03
sglang:inter_token_latency_seconds_sum{model_name="x"} 2.5
sglang:inter_token_latency_seconds_count{model_name="x"} 100.0
sglang:time_to_first_token_seconds_sum{model_name="x"} 0.5
sglang:time_to_first_token_seconds_count{model_name="x"} 2.0
"""


def test_load_and_counters_are_read_from_the_metrics() -> None:
    adapter = SglangAdapter()
    assert adapter.load(METRICS) == EngineLoad(
        num_running=3, num_waiting=2, kv_cache_used_ratio=0.25, prompt_tokens_total=5, generation_tokens_total=1200
    )
    assert adapter.counters(METRICS) == EngineCounters(
        kv_blocks=8192, block_tokens=1, itl_s=2.5, num_itl=100, ttft_s=0.5, num_ttft=2, prompt_tokens=5,
        generation_tokens=1200,
    )  # fmt: skip
    assert adapter.load("") == EngineLoad()


@pytest.mark.parametrize(("environment", "backend"), [(ENVIRONMENT, True), (CUDA, False)])
def test_room_for_adapters_becomes_flags(environment: EngineEnvironment, backend: bool) -> None:
    plan = replace(gang(tensor=2, nodes=2), adapters=AdapterRoom(slots=4, held=9, rank=32))
    words = " ".join(words_of(plan, environment))
    assert "--enable-lora --max-loras-per-batch 5 --max-loaded-loras 9 --max-lora-rank 32 --lora-target-" in words
    assert ("--lora-backend torch_native" in words) == backend
    few = replace(gang(), adapters=AdapterRoom(slots=4, held=4, rank=32))
    assert "--max-loras-per-batch 5 --max-loaded-loras 5" in " ".join(words_of(few))
    assert "--enable-lora" not in words_of(gang())


@pytest.mark.parametrize("flag", ["--enable-lora", "--lora-paths=a=/b", "--max-lora-rank"])
def test_flags_of_adapters_are_refused_in_arguments(flag: str) -> None:
    (problem,) = SglangAdapter().argument_problems((flag,))
    assert "adapters:" in problem.hint


@pytest.mark.parametrize(
    ("args", "is_offline"),
    [
        ((), True),
        (("--tokenizer-path", "/tokenizers/a"), True),
        (("--tokenizer-path", "org/tokenizer"), False),
        (("--speculative-draft-model=org/draft",), False),
    ],
)
def test_what_a_hub_has_may_be_fetched_beside_a_models_folder(args: tuple[str, ...], is_offline: bool) -> None:
    command = SglangAdapter().command(replace(gang(), extra_args=args), 0, ENVIRONMENT, "")
    assert command.env.get("HF_HUB_OFFLINE") == ("1" if is_offline else None)
