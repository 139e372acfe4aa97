"""The demo: two real vLLM replicas of the built-in model behind one address, as `make demo` runs it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from fleet.fleet_lab import FleetLab, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(600)]

DEMO = Path(__file__).parents[2] / "examples" / "demo.yaml"


@pytest.fixture(scope="module")
def demo(lab: FleetLab) -> Iterator[str]:
    """The demo, staying up; what it printed until it was ready."""
    if not os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON"):
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    file = lab.folder / "demo.yaml"
    file.write_text(re.sub(r"port: \d+", f"port: {lab.port}", DEMO.read_text()))
    log = lab.folder / "demo.log"
    with log.open("w") as output:
        process = lab.popen("demo", str(file), stdout=output)
    wait_until("the demo is up", lambda: "Ctrl-C" in log.read_text() or process.poll() is not None, 500)
    yield log.read_text()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=90)


def test_the_demo_ends_with_a_streamed_answer_and_stays_up(demo: str, lab: FleetLab) -> None:
    assert "> What is Longboat?" in demo
    answer = demo.partition("> What is Longboat?")[2]
    assert "Longboat" in answer.partition("Ctrl-C")[0]
    replicas = lab.replicas("tiny")
    assert len(replicas) == 2
    assert {rank["started_by"] for replica in replicas for rank in replica["ranks"]} == {"zygote"}


def test_the_time_to_ready_is_kept_in_its_parts(demo: str, lab: FleetLab) -> None:
    assert re.search(r"^tiny \S+ ready  .*starting \d+\.\d · .*warming \d+\.\d", demo, re.MULTILINE)
    (times,) = lab.status()["starts"]["tiny"].values()
    assert {"starting", "warming"} <= times["phase_s"].keys()
    assert sum(times["phase_s"].values()) <= times["total_s"] + 0.01
    assert "READY IN" in lab.must("status", "--why")


def test_the_printed_curl_line_works(demo: str, lab: FleetLab) -> None:
    import subprocess

    line = next(line.strip() for line in demo.splitlines() if line.strip().startswith("curl "))
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.rstrip().endswith("data: [DONE]")


def test_the_openai_client_talks_to_a_real_model(demo: str, lab: FleetLab) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{lab.port}/v1", api_key="none", timeout=60, max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    messages = [{"role": "user", "content": "What is Longboat?"}]
    whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=100, temperature=0)  # type: ignore[arg-type]
    chunks = client.chat.completions.create(  # type: ignore[call-overload]
        model="tiny", messages=messages, max_tokens=100, temperature=0, stream=True
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].finish_reason == "stop"
    assert streamed == whole.choices[0].message.content
    assert "Longboat" in streamed
    completion = client.completions.create(model="tiny", prompt="Many rowers", max_tokens=8, temperature=0)
    assert completion.choices[0].text


def test_a_client_that_leaves_frees_the_engine(demo: str, lab: FleetLab) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{lab.port}/v1", api_key="none", timeout=60, max_retries=0)
    stream = client.completions.create(
        model="tiny", prompt="row", max_tokens=400, stream=True, extra_body={"ignore_eos": True, "min_tokens": 400}
    )
    next(iter(stream))
    stream.close()
    wait_until("no engine is busy", lambda: lab.status()["gateways"][0]["in_flight"] == 0, 30)


def test_a_replica_that_died_is_replaced_from_the_zygote(demo: str, lab: FleetLab) -> None:
    victim = lab.replicas("tiny")[0]
    os.kill(victim["ranks"][0]["pid"], signal.SIGKILL)
    assert [lab.ask("tiny")[0] for _ in range(10)] == [200] * 10
    wait_until("it is replaced", lambda: victim["replica"] not in [r["replica"] for r in lab.replicas("tiny")], 60)
    wait_until("two are ready", lambda: len(lab.replicas("tiny")) == 2, 120)
    assert not lab.processes(LONGBOAT_GANG=f"tiny/{victim['replica']}")
