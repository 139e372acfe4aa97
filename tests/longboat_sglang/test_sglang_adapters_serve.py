"""Real SGLang with more LoRA adapters than it has room for: each answers as it does alone, and clients name none."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapter_files import write_adapter
from engines.carried_stream import journalled
from engines.sglang_node import SGLANG_PYTHON, SglangNode
from engines.test_vllm_serves import plan_on_loopback
from longboat.core.plan import AdapterRoom
from longboat.engines.contract import ADAPTERS_PATH

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no environment of SGLang"),
]
KEY = {"authorization": "Bearer a-secret"}
NAMES = ("red", "blue", "green", "grey", "pink")


@pytest.fixture(scope="module")
def engine(sglang_node: SglangNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the address of an engine with room for two adapters at once and four in memory, and five adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(NAMES):
        write_adapter(folder / name, seed)
    room = AdapterRoom(slots=2, held=4, rank=8)
    plan = replace(plan_on_loopback(sglang_node.tiny, pipeline=1, num_nodes=1), adapters=room)
    with sglang_node.running(plan, folder / "replica.log") as url:
        yield url, folder


def tell(engine: tuple[str, Path], *names: str, revision: str = "1") -> dict[str, Any]:
    url, folder = engine
    entries = [{"name": name, "revision": revision, "path": str(folder / name)} for name in names]
    answer = httpx.post(f"{url}{ADAPTERS_PATH}", json={"adapters": entries}, headers=KEY, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ask(engine: tuple[str, Path], name: str = "", revision: str = "1", **more: object) -> tuple[int, str]:
    """Status, and the text of the answer or what was wrong."""
    chosen = {"x-longboat-adapter": f"{name}@{revision}"} if name else {}
    body = {"model": name or "tiny", "prompt": "A boat is ", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    url = f"{engine[0]}/v1/completions"
    answer = httpx.post(url, json={**body, **more}, headers={**KEY, **chosen}, timeout=120)
    return answer.status_code, answer.json()["choices"][0]["text"] if answer.status_code == 200 else answer.text


def test_each_adapter_answers_as_it_does_alone(engine: tuple[str, Path]) -> None:
    told = tell(engine, *NAMES)
    assert told["known"] == sorted(f"{name}@1" for name in NAMES)
    assert told["problems"] == {}
    assert len(told["held"]) == 4
    alone = {name: ask(engine, name) for name in ("", *NAMES)}
    assert {status for status, _ in alone.values()} == {200}
    assert len({text for _, text in alone.values()}) == len(NAMES) + 1
    rounds = ["", *NAMES] * 4
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda name: ask(engine, name), rounds)) == [alone[name] for name in rounds]


def test_a_client_names_no_adapter_by_its_body(engine: tuple[str, Path]) -> None:
    tell(engine, "red")
    plain = ask(engine)
    assert ask(engine, lora_path="red@1") == plain
    assert ask(engine, model="tiny:red@1") == plain
    assert ask(engine, "red") != plain


def test_a_stream_of_an_adapter_is_replayed_exactly(engine: tuple[str, Path]) -> None:
    tell(engine, *NAMES)
    body = {
        "model": "red",
        "prompt": "A boat is ",
        "max_tokens": 24,
        "ignore_eos": True,
        "temperature": 1.2,
        "stream": True,
    }
    ask_red = partial(journalled, engine[0], "/v1/completions", body, seed=5, key="a-secret", adapter="red@1")
    whole = ask_red()
    assert len(whole.ids[0]) == 24
    assert ask_red(prior=[whole.ids[0][:9]], mode="replay").ids == whole.ids
    other = journalled(engine[0], "/v1/completions", body, seed=5, key="a-secret", adapter="blue@1")
    assert other.ids != whole.ids


def test_contents_of_one_name_stay_apart(engine: tuple[str, Path]) -> None:
    tell(engine, "red")
    first = ask(engine, "red")
    url, folder = engine
    both = [
        {"name": "red", "revision": revision, "path": str(folder / name)}
        for revision, name in (("1", "red"), ("2", "pink"))
    ]
    httpx.post(f"{url}{ADAPTERS_PATH}", json={"adapters": both}, headers=KEY, timeout=60).raise_for_status()
    assert ask(engine, "red") == first
    assert ask(engine, "red", "2") != first
    tell(engine, "red", revision="2")
    assert ask(engine, "red")[0] == 503
    tell(engine, "red")  # it is still loaded
    assert ask(engine, "red") == first


def test_what_cannot_be_loaded_is_told(engine: tuple[str, Path]) -> None:
    told = tell(engine, "red", "none")
    assert told["known"] == ["red@1"]
    assert set(told["problems"]) == {"none@1"}
    assert ask(engine, "none")[0] == 503
    assert httpx.post(f"{engine[0]}{ADAPTERS_PATH}", json={"adapters": []}, timeout=60).status_code in (401, 403)
