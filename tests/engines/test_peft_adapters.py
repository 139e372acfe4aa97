"""Adapters made with PEFT: the files that tests write look like them, and vLLM answers as PEFT does."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapter_files import PEFT, make_by_peft, write_adapter
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from longboat.catalog.read_adapter import read_adapter_folder
from longboat.core.plan import AdapterRoom, GangPlan, GangShape, RankPlan, RankResources

NUM_ADAPTERS, NUM_TOKENS, KEY = 4, 16, "a-secret"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (PEFT and ENGINE_PYTHON), reason="LONGBOAT_TEST_PEFT names no folder: make check-adapters"),
]


@pytest.fixture(scope="module")
def made(vllm_node: VllmNode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the adapters and PEFT's answers."""
    folder = tmp_path_factory.mktemp("peft")
    return make_by_peft(ENGINE_PYTHON, vllm_node.tiny, folder, number=NUM_ADAPTERS, tokens=NUM_TOKENS)


def tensors_of(adapter: Path) -> dict[str, tuple[str, list[int]]]:
    with (adapter / "adapter_model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return {name: (one["dtype"], one["shape"]) for name, one in header.items() if name != "__metadata__"}


def test_the_files_of_tests_have_the_names_and_shapes_of_pefts(made: Path, tmp_path: Path) -> None:
    ours, pefts = write_adapter(tmp_path / "ours", 0), made / "ad0"
    assert tensors_of(ours) == tensors_of(pefts)
    told, theirs = (json.loads((one / "adapter_config.json").read_text()) for one in (ours, pefts))
    assert sorted(theirs["target_modules"]) == told["target_modules"]
    same = ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "bias")
    assert {name: told[name] for name in same} == {name: theirs[name] for name in same}


def test_the_planner_reads_an_adapter_of_pefts(made: Path, tmp_path: Path) -> None:
    ours, pefts = (read_adapter_folder(one) for one in (write_adapter(tmp_path / "ours", 0), made / "ad0"))
    assert set(ours.matrices) == set(pefts.matrices)
    assert ours.rank == pefts.rank


def test_vllm_answers_as_peft_does(made: Path, vllm_node: VllmNode, tmp_path: Path) -> None:
    told = json.loads((made / "answers.json").read_text())
    modules = [f"{name}={made / name}" for name in told["answers"]]
    with vllm_node.running(plan(vllm_node, "--lora-modules", *modules), tmp_path / "vllm.log") as url:
        client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=120)
        found = {name: answer(client, name, told["prompt"]) for name in told["answers"]}
    assert found == told["answers"]
    assert len({tuple(tokens) for tokens in found.values()}) == NUM_ADAPTERS


def answer(client: httpx.Client, name: str, prompt: list[int]) -> list[int]:
    asked: dict[str, Any] = {"model": name, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0}
    response = client.post("/v1/completions", json=asked | {"ignore_eos": True, "return_token_ids": True})
    assert response.status_code == 200, response.text
    return list(response.json()["choices"][0]["token_ids"])


def plan(node: VllmNode, *extra_args: str) -> GangPlan:
    """Return a gang of one rank that computes with as many digits as PEFT does here."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rank = RankPlan(node_rank=0, node_id="n0", address="127.0.0.1", interface="lo", ports={"api": port})
    return GangPlan(
        fleet="test",
        model="tiny",
        source="builtin:tiny",
        model_path=str(node.tiny),
        replica="r0",
        generation=1,
        shape=GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources()),
        ranks=(rank,),
        context_tokens=512,
        extra_args=("--dtype", "float32", *extra_args),
        api_key=KEY,
        adapters=AdapterRoom(slots=2, held=NUM_ADAPTERS, rank=8),
    )
