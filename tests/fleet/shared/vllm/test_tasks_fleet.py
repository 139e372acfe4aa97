"""Models of all tasks on real vLLM, beside each other in a fleet: paths, usage, quotas, and a death under load."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fleet.fleet_lab import FleetLab, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
FLEET = """name: t
models:
  - &base {name: e, source: 'builtin:tiny-embed', task: embed, replicas: 2, resources: {cpus: 0.2},
      engine: {environment: %s}}
  - {<<: *base, name: r, source: 'builtin:tiny-rerank', task: rerank, replicas: 1}
  - {<<: *base, name: c, source: 'builtin:tiny-classify', task: classify, replicas: 1}
  - {<<: *base, name: w, source: 'builtin:tiny', task: reward, replicas: 1}"""
GATEWAY = "{aliases: [{name: ada, model: e}, {name: judge, model: c}]"
LIMITED = ", tenants: [{name: anonymous, tokens_per_minute: 60}]"
TEXTS = [f"text number {number} about ships and oars" for number in range(8)]


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    lab.must("up", file(lab), "--detach", timeout_s=800)
    return lab


def file(lab: FleetLab, more: str = "") -> str:
    """A fleet file with aliases. more: settings of the gateway"""
    path = Path(lab.write(FLEET % Path(PYTHON).parent.parent))
    path.write_text(path.read_text().replace("gateway: {", f"gateway: {GATEWAY}{more}, "))
    return str(path)


def post(up: FleetLab, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{up.local_port}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def vector(up: FleetLab, text: str) -> list[float]:
    status, answer = post(up, "/v1/embeddings", {"model": "e", "input": text})
    assert status == 200, answer
    return list(answer["data"][0]["embedding"])


def test_texts_are_embedded_and_ranked(up: FleetLab) -> None:
    one, other = vector(up, TEXTS[0]), vector(up, TEXTS[1])
    assert len(one) == len(other) == 64
    assert one != other
    status, ranks = post(up, "/rerank", {"model": "r", "query": "oars", "documents": TEXTS[:3]})
    assert status == 200, ranks
    assert sorted(rank["index"] for rank in ranks["results"]) == [0, 1, 2]
    status, scores = post(up, "/score", {"model": "r", "text_1": "oars", "text_2": TEXTS[:2]})
    assert status == 200, scores
    assert len(scores["data"]) == 2


def test_a_path_of_another_task_is_refused_before_an_engine_is_asked(up: FleetLab) -> None:
    chat = {"model": "e", "messages": [{"role": "user", "content": "Hello"}]}
    status, answer = post(up, "/v1/chat/completions", chat)
    assert status == 404
    assert "makes embeddings; it does not generate text" in answer["error"]["message"]
    status, answer = post(up, "/v1/embeddings", {"model": "r", "input": "Hello"})
    assert status == 404
    assert "Models that have /v1/embeddings: e." in answer["error"]["message"]


def test_texts_are_classified_and_rewarded(up: FleetLab) -> None:
    for model in ("c", "judge"):
        status, found = post(up, "/classify", {"model": model, "input": TEXTS[:2]})
        assert status == 200, found
        assert [len(one["probs"]) for one in found["data"]] == [3, 3]
        assert all(abs(sum(one["probs"]) - 1) < 1e-3 for one in found["data"])
    status, found = post(up, "/pooling", {"model": "w", "input": TEXTS[0]})
    assert status == 200, found
    assert len(found["data"]) == 1
    assert found["data"][0]["data"]


@pytest.mark.parametrize("model", ["e", "ada"])
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}),
        ("/classify", {"input": "Hello"}),
    ],
)
def test_an_alias_is_refused_as_its_model_is(up: FleetLab, model: str, path: str, asked: dict[str, Any]) -> None:
    status, answer = post(up, path, {"model": model, **asked})
    assert status == 404, answer
    assert "makes embeddings" in answer["error"]["message"]
    assert len(vector(up, TEXTS[0])) == 64


def test_prompt_tokens_are_counted(up: FleetLab) -> None:
    before = settled_usage(up)
    reported = 0
    for _ in range(3):
        _, answer = post(up, "/v1/embeddings", {"model": "e", "input": TEXTS})
        reported += answer["usage"]["prompt_tokens"]
    assert reported > 3 * len(TEXTS)
    wait_until("usage is written", lambda: used(up) == before + reported)


def settled_usage(up: FleetLab) -> int:
    """What is counted once earlier requests are: it is written each second."""
    counts = [-1]
    while len(counts) < 3 or counts[-1] != counts[-2]:
        counts.append(used(up))
    return counts[-1]


def used(up: FleetLab) -> int:
    rows = json.loads(up.must("usage", "--json"))["days"]
    return sum(row["prompt_tokens"] for row in rows if row["model"] == "e")


def test_the_status_says_why_nothing_resumes(up: FleetLab) -> None:
    assert {replica["resume_detail"] for replica in up.replicas("e")} == {
        "embed: nothing is streamed, another replica repeats a lost request"
    }


def test_a_replica_that_dies_under_load_fails_no_request(up: FleetLab) -> None:
    expected = {text: vector(up, text) for text in TEXTS}
    wrong: list[str] = []
    asked = [0]
    over = threading.Event()

    def client(text: str) -> None:
        while not over.is_set():
            asked[0] += 1
            try:
                found = vector(up, text)
            except (AssertionError, OSError) as error:
                wrong.append(f"{text}: {error!r}"[:300])
            else:
                wrong.extend([] if close(found, expected[text]) else [f"{text}: another vector"])

    threads = [threading.Thread(target=client, args=(text,)) for text in TEXTS]
    for thread in threads:
        thread.start()
    wait_until("requests run", lambda: asked[0] > 100)
    victim = up.replicas("e")[0]["ranks"][0]["pid"]
    os.kill(victim, 9)
    wait_until("it is replaced", lambda: is_replaced(up, victim), 240)
    over.set()
    for thread in threads:
        thread.join(120)
    assert wrong == []


def is_replaced(up: FleetLab, victim: int) -> bool:
    pids = [rank["pid"] for replica in up.replicas("e") for rank in replica["ranks"]]
    return len(pids) == 2 and victim not in pids


def close(one: list[float], other: list[float]) -> bool:
    """Whether both are one vector: sums differ in their last bits with the requests that are computed together."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-4


def test_tokens_of_all_tasks_count_for_the_quota(up: FleetLab) -> None:
    """It comes last: the limit stays."""
    up.must("up", file(up, LIMITED), "--detach")
    bodies = [
        ("/v1/embeddings", {"model": "ada", "input": TEXTS[0]}),
        ("/rerank", {"model": "r", "query": "oars", "documents": TEXTS[:2]}),
        ("/classify", {"model": "c", "input": TEXTS[0]}),
        ("/pooling", {"model": "w", "input": TEXTS[0]}),
    ]

    def found() -> dict[str, int]:
        return {path: post(up, path, body)[0] for path, body in bodies for _ in range(6)}

    wait_until("each path is refused", lambda: set(found().values()) == {429})
    rows = json.loads(up.must("usage", "--json"))["days"]
    assert {row["model"] for row in rows if row["prompt_tokens"]} >= {"e", "r", "c", "w"}
