"""Tests that the fake adapter writes command lines that the fake server understands."""

from __future__ import annotations

import sys
from typing import Any

import orjson

from longboat.cluster.host.launch import rank_command
from longboat.cluster.protocol.model import EngineSettings, ServedModel
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.core.states import Phase
from longboat.engines.fake import FakeAdapter
from longboat_fake.__main__ import _parser
from longboat_fake.engine.metrics import EngineMetrics


def _plan(num_nodes: int = 1, **changes: Any) -> GangPlan:
    shape = GangShape(tensor=1, pipeline=num_nodes, num_nodes=num_nodes, resources=RankResources())
    ranks = tuple(
        RankPlan(node_rank=rank, node_id=f"n{rank}", address=f"10.0.0.{rank + 1}", interface="eth0")
        for rank in range(num_nodes)
    )
    head = RankPlan(node_rank=0, node_id="n0", address="10.0.0.1", interface="eth0", ports={"api": 81, "master": 82})
    fields: dict[str, Any] = {
        "fleet": "f",
        "model": "tiny",
        "source": "builtin:tiny",
        "model_path": "",
        "replica": "r",
        "generation": 1,
        "shape": shape,
        "ranks": (head, *ranks[1:]),
        "context_tokens": None,
    }
    return GangPlan(**{**fields, **changes})


def test_ports_have_a_master_only_for_several_nodes() -> None:
    assert [port.purpose for port in FakeAdapter().ports(_plan(1).shape)] == ["api"]
    assert [port.purpose for port in FakeAdapter().ports(_plan(2).shape)] == ["api", "master"]


def test_command_of_the_head_is_understood_by_the_server() -> None:
    options = {"ttft_ms": 5, "itl_ms": 1.5, "max_num_seqs": 3, "kv_blocks": 64, "start_s": 0.1}
    command = FakeAdapter().command(_plan(2, options=options, context_tokens=512), 0, None, "")
    assert command.argv[:3] == (sys.executable, "-m", "longboat_fake")
    parsed = _parser().parse_args(command.argv[3:])
    assert (parsed.host, parsed.port, parsed.nnodes, parsed.node_rank, parsed.headless) == ("10.0.0.1", 81, 2, 0, False)
    assert (parsed.ttft_ms, parsed.itl_ms, parsed.max_num_seqs, parsed.kv_blocks) == (5, 1.5, 3, 64)
    assert parsed.max_model_len == 512


def test_command_of_another_rank_is_headless_and_knows_the_master() -> None:
    parsed = _parser().parse_args(FakeAdapter().command(_plan(2), 1, None, "").argv[3:])
    assert (parsed.node_rank, parsed.headless, parsed.master_addr, parsed.master_port) == (1, True, "10.0.0.1", 82)


def test_extra_arguments_come_last() -> None:
    assert FakeAdapter().command(_plan(extra_args=("--itl-ms", "9")), 0, None, "").argv[-2:] == ("--itl-ms", "9")


def test_key_travels_in_the_environment_only() -> None:
    command = FakeAdapter().command(_plan(api_key="s3cret"), 0, None, "")
    assert command.env["LONGBOAT_ENGINE_API_KEY"] == "s3cret"
    assert "s3cret" not in " ".join(command.argv)
    assert FakeAdapter().probe(_plan(api_key="s3cret")).headers["authorization"] == "Bearer s3cret"
    assert FakeAdapter().command(_plan(), 0, None, "").env["LONGBOAT_ENGINE_API_KEY"] is None


def test_probe_asks_for_one_token() -> None:
    probe = FakeAdapter().probe(_plan())
    assert probe.path == "/v1/completions"
    assert orjson.loads(probe.body)["max_tokens"] == 1


def test_phases_are_read_from_the_log() -> None:
    phase_of = FakeAdapter().phase_of
    assert phase_of("phase=loading tiny") == Phase.LOADING
    assert phase_of("phase=warming tiny") == Phase.WARMING
    assert phase_of("phase=serving http://h:1") is None
    assert phase_of("anything else") is None


def test_load_is_read_from_the_metrics_text() -> None:
    metrics = EngineMetrics(model="tiny", prompt_tokens=7, generation_tokens=9)
    text = metrics.text(running=2, waiting=1, kv_used_ratio=0.25, num_blocks=10, block_tokens=32)
    load = FakeAdapter().load(text)
    assert (load.num_running, load.num_waiting, load.kv_cache_used_ratio) == (2, 1, 0.25)
    assert (load.prompt_tokens_total, load.generation_tokens_total) == (7, 9)
    assert FakeAdapter().load("").num_running is None


def test_capacity_is_what_the_server_is_started_with() -> None:
    for plan in (_plan(), _plan(options={"max_num_seqs": 3}), _plan(extra_args=("--max-num-seqs=5",))):
        command = FakeAdapter().command(plan, 0, None, "")
        assert FakeAdapter().capacity(plan) == _parser().parse_args(command.argv[3:]).max_num_seqs


def test_variables_of_the_fleet_file_reach_the_process_and_no_argument() -> None:
    engine = EngineSettings(kind="fake", env={"HF_TOKEN": "a-secret"})
    command, _ = rank_command(ServedModel(name="tiny", source="builtin:tiny", engine=engine), _plan(), 0)
    assert command.env["HF_TOKEN"] == "a-secret"
    assert "a-secret" not in " ".join(command.argv)
    assert "a-secret" not in repr(engine)
