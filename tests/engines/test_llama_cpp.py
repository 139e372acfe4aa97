"""llama.cpp's adapter: command lines of one host and of a gang, arguments, and what its environment lacks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from longboat.core.errors import ClusterError, TransferError
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.core.states import Phase
from longboat.engines.contract import EngineEnvironment
from longboat.engines.llamacpp import build
from longboat.engines.llamacpp.adapter import LlamaCppAdapter
from longboat.engines.llamacpp.build import build_programs
from longboat.engines.llamacpp.flags import OWNED_FLAGS, TAKEN_FLAGS, check_args
from longboat_llamacpp.flags import SERVER_FLAGS, apply_flags, server_parser

ADAPTER = LlamaCppAdapter()
ENVIRONMENT = EngineEnvironment(
    kind="llama.cpp",
    python="/env/bin/python",
    distribution="xllamacpp",
    version="2026.10.11549",
    platform="cpu",
    fingerprint="f00d",
)


def gang(layers: tuple[int, ...] = (), nodes: int = 1, args: tuple[str, ...] = ()) -> GangPlan:
    shape = GangShape(
        tensor=1, pipeline=max(1, len(layers), nodes), num_nodes=nodes, resources=RankResources(), layers=layers
    )
    ranks = tuple(
        RankPlan(
            node_rank=rank,
            node_id=f"node{rank}",
            address=f"10.0.0.{rank + 1}",
            interface="eth0",
            ports={"api": 9000} if rank == 0 else {"rpc": 9100 + rank},
        )
        for rank in range(nodes)
    )
    return GangPlan(
        fleet="demo",
        model="qwen",
        source="/m/a.gguf",
        model_path="/m/a.gguf",
        replica="r1",
        generation=1,
        shape=shape,
        ranks=ranks,
        context_tokens=2048,
        extra_args=args,
        api_key="secret",
    )


def words(plan: GangPlan, node_rank: int = 0) -> str:
    return " ".join(ADAPTER.command(plan, node_rank, ENVIRONMENT, "/overlay").argv[3:])


def test_one_host_is_one_server() -> None:
    assert words(gang()) == (
        "serve --model /m/a.gguf --alias qwen --host 10.0.0.1 --port 9000 --parallel 4 --threads 1 --ctx-size 8192"
    )


def test_the_key_travels_by_environment_and_to_the_head_only() -> None:
    plan = gang((2, 2), 2)
    head, other = (ADAPTER.command(plan, rank, ENVIRONMENT, "/overlay") for rank in range(2))
    assert "secret" not in " ".join((*head.argv, *other.argv))
    assert head.env["LONGBOAT_ENGINE_API_KEY"] == "secret"
    assert other.env["LONGBOAT_ENGINE_API_KEY"] is None
    assert head.env["PYTHONPATH"] == "/overlay"


@pytest.mark.parametrize(
    ("layers", "nodes", "split", "offloaded"),
    [
        ((1, 3), 2, "4", "4"),
        ((10, 20, 6), 3, "20,7", "27"),
        ((3, 3, 2, 2), 2, "5", "5"),
    ],
)
def test_the_head_keeps_its_layers_and_each_other_host_gets_its_own(
    layers: tuple[int, ...], nodes: int, split: str, offloaded: str
) -> None:
    text = words(gang(layers, nodes))
    assert f"--tensor-split {split} --n-gpu-layers {offloaded} " in text


def test_each_other_host_runs_an_rpc_server_at_its_own_address() -> None:
    plan = gang((1, 1, 2), 3)
    assert "--rpc 10.0.0.2:9101,10.0.0.3:9102 " in words(plan)
    assert words(plan, 2) == "rpc --host 10.0.0.3 --port 9102 --threads 1"
    assert [(port.purpose, port.node_rank) for port in ADAPTER.ports(plan.shape)] == [
        ("api", 0),
        ("rpc", 1),
        ("rpc", 2),
    ]


def test_a_file_of_a_hub_is_fetched_by_the_launcher() -> None:
    plan = replace(gang(), model_path="org/name-GGUF:Q8_0.gguf", context_tokens=None)
    assert "--hf-repo org/name-GGUF --hf-file Q8_0.gguf" in words(plan)
    assert "--kv-unified" in words(plan)


def test_slots_are_the_capacity_and_each_has_the_whole_context() -> None:
    plan = gang(args=("-np", "8"))
    assert ADAPTER.capacity(plan) == 8
    assert "--ctx-size 16384" in words(plan)
    assert ADAPTER.memory(("-np", "8"), "cpu").sequences == 8


@pytest.mark.parametrize(
    ("args", "bits"),
    [((), 16), (("-ctk", "q8_0", "-ctv", "q8_0"), 8), (("-ctk", "q8_0"), 12), (("-ctv", "q5_1"), 11)],
)
def test_keys_and_values_take_half_of_the_cache_each(args: tuple[str, ...], bits: int) -> None:
    assert ADAPTER.memory(args, "cpu").kv_bits == bits


@pytest.mark.parametrize(
    ("args", "where", "what", "hint"),
    [
        (["--api-key", "x"], "[0]", "set by Longboat", "own secret"),
        (["--threads", "2", "-m", "/x"], "[2]", "set by Longboat", "source"),
        (["--rpc", "h:1"], "[0]", "set by Longboat", "split"),
        (["--paralel", "2"], "[0]", "not a flag", "did you mean --parallel?"),
        (["--parallel"], "[0]", "has no value", "--parallel"),
        (["--parallel", "many"], "[0]", "takes a whole number, not 'many'", "--parallel"),
        (["--parallel", "1_0"], "[0]", "takes a whole number, not '1_0'", "--parallel"),
        (["--parallel", "1.5"], "[0]", "takes a whole number, not '1.5'", "--parallel"),
        (["--ubatch-size", "inf"], "[0]", "takes a whole number, not 'inf'", "--ubatch-size"),
        (["--rope-freq-base", "nan"], "[0]", "takes a number, not 'nan'", "--rope-freq-base"),
        (["--parallel", "1000"], "[0]", "the limits are 1 and 256", "--parallel"),
        (["-ctk", "q9"], "[0]", "is 'q9', which llama.cpp does not know", "q8_0"),
        (["--cache-type-v", "Q8_0"], "[0]", "is 'Q8_0'", "q8_0"),
        (["-fa", "yes"], "[0]", "is 'yes'", "on, off, auto"),
        (["--reasoning-format", "deepseek_legacy"], "[0]", "is 'deepseek_legacy'", "deepseek-legacy"),
        (["--chat-template-kwargs", "[1]"], "[0]", "takes a JSON object, not '[1]'", "enable_thinking"),
        (["--chat-template-kwargs", "x"], "[0]", "takes a JSON object, not 'x'", "enable_thinking"),
        (["-ctv", "q8_0", "-fa", "off"], "[2]", "--cache-type-v q8_0 needs Flash Attention", "--flash-attn out"),
        (["-ctv", "q8_0", "-fa", "false"], "[2]", "--flash-attn is false", "--flash-attn out"),
        (["--no-warmup", "yes"], "[0]", "takes no value", "--no-warmup"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_arguments_are_refused(args: list[str], where: str, what: str, hint: str) -> None:
    (problem,) = check_args(args)
    assert problem.where == where
    assert what in problem.what
    assert hint in problem.hint


@pytest.mark.parametrize("value", ["on", "off", "auto", "1", "0", "-1", "true", "false", "enabled", "disabled"])
def test_flash_attention_takes_every_word_of_llama_cpp(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These are the words of its command line, which a model on several hosts gets as they are."""
    kinds = SimpleNamespace(**{f"LLAMA_FLASH_ATTN_TYPE_{kind}": kind for kind in ("ENABLED", "DISABLED", "AUTO")})
    monkeypatch.setitem(sys.modules, "xllamacpp", SimpleNamespace(llama_flash_attn_type=kinds))
    assert check_args(["--flash-attn", value]) == ()
    params = SimpleNamespace()
    apply_flags(params, server_parser().parse_args(["--flash-attn", value]))
    assert params.flash_attn_type in ("ENABLED", "DISABLED", "AUTO")


def test_every_taken_flag_is_one_of_the_server_s() -> None:
    assert set(TAKEN_FLAGS) | {"--ctx-size"} == {names[0] for names in SERVER_FLAGS}
    assert not set(TAKEN_FLAGS) & set(OWNED_FLAGS)
    words = {None: "switch", str: "text", int: "number", float: "fraction"}
    kinds = {names[0]: words[kind] for names, (kind, _) in SERVER_FLAGS.items()}
    assert {flag: kinds[flag] for flag in TAKEN_FLAGS} == TAKEN_FLAGS


def test_logs_show_the_phase() -> None:
    assert ADAPTER.phase_of("longboat: loading /m/a.gguf") is Phase.LOADING
    assert ADAPTER.phase_of("0.00 I srv    load_model: initializing, n_slots = 4") is Phase.WARMING
    assert ADAPTER.phase_of("anything") is None


def test_without_the_built_programs_there_is_one_node_only(tmp_path: Path) -> None:
    environment = replace(ENVIRONMENT, python=str(tmp_path / "python"))
    assert "g++" in ADAPTER.lacking(environment)["nodes"]
    for name in ("llama-server", "ggml-rpc-server"):
        (tmp_path / name).touch()
    assert ADAPTER.lacking(environment) == {}


def test_without_a_compiler_nothing_is_built_and_that_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    steps: list[str] = []
    build_programs(tmp_path, steps.append)
    assert steps == ["no C++ compiler here (c++, g++ or clang++): llama.cpp serves on one node, and not over several"]


def test_source_that_does_not_arrive_in_time_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (slow := tmp_path / "python").write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(build, "_FETCH_DEADLINE_S", 0.2)
    with pytest.raises(TransferError, match="did not arrive within") as caught:
        build._fetched(tmp_path, slow)
    assert "package index" in caught.value.hint


def test_a_build_that_hangs_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hanging := tmp_path / "cmake").write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(build, "_BUILD_DEADLINE_S", 0.2)
    with pytest.raises(ClusterError, match="cmake did not end within"):
        build._run([str(hanging)], lambda _: None)


def test_a_build_that_fails_is_told_with_its_last_lines(tmp_path: Path) -> None:
    (failing := tmp_path / "ninja").write_text("#!/bin/sh\nfor n in $(seq 40); do echo line $n; done\nexit 3\n")
    failing.chmod(0o755)
    seen: list[str] = []
    with pytest.raises(ClusterError) as caught:
        build._run([str(failing)], seen.append)
    assert caught.value.message.splitlines() == ["ninja failed:", *(f"line {n}" for n in range(26, 41))]
    assert len(seen) == 40
