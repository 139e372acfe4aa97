"""Command lines that divide data and experts, as the parsers of vLLM and SGLang themselves read them."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.sglang_node import SGLANG_PYTHON
from engines.test_vllm import gang
from engines.vllm_node import ENGINE_PYTHON
from longboat.builtin import ensure
from longboat.core.plan import GangPlan
from longboat.engines.contract import EngineAdapter
from longboat.engines.environments.environment import environment_at
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.registry import adapter_for

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

READ_BY_VLLM = """
import dataclasses, json, sys
from longboat_vllm.process.launcher import answer_for_vllm
answer_for_vllm()
import vllm
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
told = []
for words in json.load(sys.stdin):
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    args.model = args.model_tag
    config = vllm.AsyncEngineArgs.from_cli_args(args).create_engine_config(headless=args.headless).parallel_config
    told.append({name: getattr(config, name) for name in NAMES} | {"servers": args.api_server_count})
print(json.dumps(told))
"""
VLLM_NAMES = {
    "tensor_parallel_size",
    "data_parallel_size",
    "data_parallel_size_local",
    "data_parallel_rank",
    "data_parallel_master_ip",
    "data_parallel_rpc_port",
    "data_parallel_hybrid_lb",
    "data_parallel_external_lb",
    "enable_expert_parallel",
    "nnodes",
}
READ_BY_SGLANG = """
import json, sys
from longboat_sglang import without_cuda
without_cuda.prepare()
from sglang.srt.arg_groups.overrides import resolved_view
from sglang.srt.server_args import prepare_server_args
print(json.dumps([
    {name: getattr(resolved_view(prepare_server_args(words)), name) for name in NAMES} for words in json.load(sys.stdin)
]))
"""
SGLANG_NAMES = {"tp_size", "attn_dp_size", "dp_size", "ep_size", "pp_size", "nnodes", "node_rank", "dist_init_addr"}


def read(program: str, names: set[str], adapter: EngineAdapter, plan: GangPlan, folder: Path) -> list[dict[str, Any]]:
    """Return what the engine's own parser makes of each rank's command line, on this machine's processor."""
    python = {"vllm": ENGINE_PYTHON, "sglang": SGLANG_PYTHON}[adapter.kind]
    here = environment_at(adapter.kind, Path(python))
    overlay = str(build_overlay(folder, here))
    commands = [adapter.command(plan, rank.node_rank, here, overlay) for rank in plan.ranks]
    env = {**os.environ, **{name: value for name, value in commands[0].env.items() if value is not None}}
    first = 4 if adapter.kind == "vllm" else 3  # behind ``python -m LAUNCHER``, and ``serve``
    done = subprocess.run(
        [python, "-c", program.replace("NAMES", repr(sorted(names)))],
        input=json.dumps([command.argv[first:] for command in commands]),
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def mixture(folder: Path, **shape: Any) -> GangPlan:
    plan = gang(**shape)
    return replace(plan, source="builtin:tiny-moe", model_path=str(ensure("builtin:tiny-moe", folder)))


@pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python")
def test_vllm_reads_its_part_of_the_ranks(tmp_path: Path) -> None:
    plan = mixture(tmp_path, tensor=2, data=4, nodes=2)
    head, other = read(READ_BY_VLLM, VLLM_NAMES, adapter_for("vllm"), plan, tmp_path)
    alike = {
        "tensor_parallel_size": 2,
        "data_parallel_size": 4,
        "data_parallel_size_local": 2,
        "data_parallel_master_ip": "10.0.0.1",
        "data_parallel_rpc_port": 9002,
        "data_parallel_hybrid_lb": False,
        "data_parallel_external_lb": False,
        "enable_expert_parallel": True,
        "nnodes": 1,
    }
    assert head == {**alike, "data_parallel_rank": 0, "servers": 1}
    assert other == {**alike, "data_parallel_rank": 2, "servers": None}


@pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no environment of SGLang")
def test_sglang_reads_its_part_of_the_ranks(tmp_path: Path) -> None:
    plan = mixture(tmp_path, tensor=2, data=4, nodes=2)
    told = read(READ_BY_SGLANG, SGLANG_NAMES, adapter_for("sglang"), plan, tmp_path)
    alike = {"tp_size": 8, "attn_dp_size": 4, "dp_size": 1, "ep_size": 8, "pp_size": 1, "nnodes": 2}
    assert told == [{**alike, "node_rank": rank, "dist_init_addr": "10.0.0.1:9001"} for rank in (0, 1)]
