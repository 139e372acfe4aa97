"""``longboat simulate --record`` at a live gateway before a fake engine, and the file that it wrote in the twin."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from cli.test_gateway_run import DEADLINE_S, Run
from engines.fake_process import PLAIN, fake_engine
from longboat.cli.app import app

COMMAND = (sys.executable, "-c", "from longboat.cli.app import main; main()")
SYSTEM = "You know every harbour of the coast, and you answer in short sentences. " * 12
OUTPUT_TOKENS = 12
FLEET = """
apiVersion: longboat/v1
name: demo
models:
  - name: m
    source: builtin:tiny
    engine: fake
    replicas: 2
    context: 4096
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway before an engine."""
    env = {"LONGBOAT_RUN": str(tmp_path_factory.mktemp("run")), "LONGBOAT_HOME": str(tmp_path_factory.mktemp("home"))}
    with fake_engine("--itl-ms", "2") as engine:
        run = Run((f"--upstream=m={engine.url}", "--port=0"), env)
        try:
            yield f"http://127.0.0.1:{run.port}"
        finally:
            with run.process as process:
                process.kill()


def ask(client: httpx.Client, messages: list[dict[str, str]]) -> str:
    """Return the answer of the engine, and add it to the conversation."""
    body = {"model": "m", "messages": messages, "max_tokens": OUTPUT_TOKENS}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    messages.append(answer.json()["choices"][0]["message"])
    return str(messages[-1]["content"])


def talk(url: str, user: int) -> list[str]:
    """Return what was said in a conversation of two turns."""
    with httpx.Client(base_url=url, timeout=DEADLINE_S, verify=PLAIN) as client:
        messages = [{"role": "system", "content": SYSTEM}]
        said = []
        for turn in range(2):
            said.append(f"Question {turn} of user {user}: where does the blue ferry land?")
            messages.append({"role": "user", "content": said[-1]})
            said.append(ask(client, messages))
        return said


def recorded(url: str, path: Path, users: int) -> list[str]:
    """Record conversations by the command, end it as Ctrl-C does, and return what was said in them."""
    words = ("simulate", "--record", str(path), "--url", url)
    with subprocess.Popen(
        [*COMMAND, *words], stderr=subprocess.PIPE, text=True, env=os.environ, start_new_session=True
    ) as command:
        try:
            assert command.stderr is not None
            assert command.stderr.readline().startswith(f"recording into {path}")
            with ThreadPoolExecutor(users) as pool:
                said = [text for texts in pool.map(lambda user: talk(url, user), range(users)) for text in texts]
            command.send_signal(signal.SIGINT)
            told = command.stderr.read()
            assert command.wait(DEADLINE_S) == 0, told
            assert f"{2 * users} requests in {path}" in told
        finally:
            command.kill()
    return said


def simulated(tmp_path: Path, trace: Path) -> dict[str, Any]:
    """Return the row of the twin that plays a trace."""
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    options = ("--step-time", "base_s=0.01,prompt_token_s=5e-5", "--kv-tokens", "20000", "--json")
    result = CliRunner().invoke(app, ["simulate", "--fleet", str(fleet), "--trace", str(trace), *options])
    assert result.exit_code == 0, result.output
    row: dict[str, Any] = json.loads(result.stdout)["policies"][0]
    return row


def test_a_recording_has_sizes_times_and_prefixes_and_plays_in_the_twin(gateway: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    users = 3
    said = recorded(gateway, path, users)
    text = path.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert path.stat().st_mode & 0o777 == 0o600
    assert not [words for words in (*said, SYSTEM) if words in text or words[:20] in text]
    assert [row["time_s"] for row in rows] == sorted(row["time_s"] for row in rows)
    assert {row["output_tokens"] for row in rows} == {OUTPUT_TOKENS}
    firsts, seconds = turns(rows)
    assert len(firsts) == len(seconds) == users
    for second in seconds:
        before = [names(first) for first in firsts]
        assert sum(shared(names(second), first) > shared(before[0], before[1]) for first in before) == 1
    row = simulated(tmp_path, path)
    assert row["requests"] == 2 * users and row["cached_share"] > 0.3


def turns(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Divide the rows into those of first and of second turns: the latter are longer."""
    ordered = sorted(rows, key=lambda row: int(row["prompt_tokens"]))
    return ordered[: len(rows) // 2], ordered[len(rows) // 2 :]


def names(row: dict[str, Any]) -> list[bytes]:
    """Return the names of a prompt's blocks."""
    text = base64.b64decode(row["blocks"])
    return [text[at : at + 8] for at in range(0, len(text), 8)]


def shared(one: list[bytes], other: list[bytes]) -> int:
    """Return how many leading blocks are equal."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
