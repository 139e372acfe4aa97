"""Twenty LoRA adapters on two replicas of real vLLM with room for eight: right answers under load and kills.

``make check-adapters`` has PEFT make the adapters, and shows that vLLM answers with PEFT's as PEFT does.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapter_files import PEFT, make_by_peft, write_adapter
from fleet.fleet_lab import FleetLab, wait_until
from fleet.load import num_resumed
from fleet.paced_steps import paced_vllm
from longboat.builtin.models import ensure

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

PYTHON = os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON", "")
NUM_ADAPTERS, NUM_CLIENTS, MAX_TOKENS = 20, 6, 24
PAUSE_S = 2.0
"""Between a client's requests while a replica starts."""
NAMES = tuple(f"ad{number}" for number in range(NUM_ADAPTERS))
ALL_NAMES = (*NAMES, "late")
FLEET = """name: t
models:
  - name: a
    source: builtin:tiny
    engine: %s
    context: 512
    replicas: 2
    resources: {cpus: 0.5}
    adapters: {slots: 8, entries: [%s]}"""


@dataclass
class Clients:
    """Clients that stream answers of all adapters in turn, each compared with the adapter's answer alone."""

    url: str
    alone: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    num_streams: int = 0
    pause_s: float = 0.0  # between two requests of a client
    at_work: dict[str, str] = field(default_factory=dict)  # an answer that is under way → the replica that began it
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def stream(self, model: str, seed: int) -> str:
        """The text of a whole answer. Raises OSError or AssertionError where it is not whole."""
        drawn = {"temperature": 0.8, "seed": seed} if seed % 2 else {"temperature": 0}
        asked = {
            "model": model,
            "prompt": "A boat is long when ",
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            **drawn,
        }
        body = json.dumps({**asked, "stream": True}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=240) as answer:
            self.at_work[f"{model}/{seed}"] = answer.headers["x-longboat-replica"]
            events = [line.decode().strip()[6:] for line in answer if line.startswith(b"data: ")]
        self.at_work.pop(f"{model}/{seed}", None)
        assert events and events[-1] == "[DONE]", f"no end: {events[-1:]}"
        documents = [json.loads(event) for event in events[:-1]]
        assert not [document for document in documents if "error" in document], documents[-1]
        assert {document["model"] for document in documents} == {model}
        return "".join(choice["text"] for document in documents for choice in document["choices"])

    def learn(self, models: tuple[str, ...]) -> None:
        """Ask for each answer alone, one after the other."""
        self.alone |= {f"{model}/{seed}": self.stream(model, seed) for model in models for seed in (0, 1)}

    def begin(self) -> None:
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(NUM_CLIENTS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(300)

    def wait_for(self, num_more: int) -> None:
        """Wait until so many more answers came."""
        until = self.num_streams + num_more
        wait_until(f"{num_more} more answers", lambda: self.num_streams >= until, 300)

    def _client(self, number: int) -> None:
        keys = list(self.alone)
        while not self._over.is_set():
            key = keys[number % len(keys)]
            number += NUM_CLIENTS + 1
            model, _, seed = key.partition("/")
            try:
                if (text := self.stream(model, int(seed))) != self.alone[key]:
                    self.wrong.append(f"{time.monotonic():.1f} {key}: {text!r}, alone {self.alone[key]!r}")
            except urllib.error.HTTPError as error:
                self.wrong.append(f"{key}: {error.code} {error.read()[:300]!r}")
            except (OSError, AssertionError, ValueError) as error:
                self.wrong.append(f"{key}: {error!r}")
            self.num_streams += 1
            self._over.wait(self.pause_s)


@pytest.fixture(scope="module")
def up(lab: FleetLab, tmp_path_factory: pytest.TempPathFactory) -> FleetLab:
    if not PYTHON:
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    folder = tmp_path_factory.mktemp("adapters")
    paths = made_by_peft(folder) if PEFT else [write_adapter(folder / name, at) for at, name in enumerate(ALL_NAMES)]
    file = lab.write(FLEET % (paced_vllm(), ", ".join(map(str, paths[:-1]))))
    lab.must("up", file, "--detach", timeout_s=600)
    lab.env["LATE_ADAPTER"] = str(paths[-1])
    return lab


def made_by_peft(folder: Path) -> list[Path]:
    """Return adapters of all names that PEFT made."""
    make_by_peft(PYTHON, ensure("builtin:tiny", folder), folder, number=len(ALL_NAMES), tokens=1)
    return [(folder / f"ad{at}").rename(folder / name) for at, name in enumerate(ALL_NAMES)]


def test_prompt_logprobs_are_refused_and_cost_no_replica(up: FleetLab) -> None:
    """vLLM's engine core would end of them."""
    before = sorted(replica["generation"] for replica in up.replicas("a"))
    for more in ({"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}):
        for model in ("a", NAMES[0]):
            status, why = up.ask(model, **more)
            assert (status, "prompt_logprobs" in str(why)) == (400, True)
    with ThreadPoolExecutor(4) as clients:
        assert [one[0] for one in clients.map(lambda name: up.ask(name, timeout_s=60), NAMES[:4])] == [200] * 4
    assert sorted(replica["generation"] for replica in up.replicas("a")) == before


def test_answers_are_right_while_adapters_come_and_go_and_replicas_die(up: FleetLab) -> None:
    clients = Clients(f"http://127.0.0.1:{up.local_port}")
    clients.learn(("a", *NAMES))
    resumed_before = num_resumed(up.local_port)
    assert len(set(clients.alone.values())) > NUM_ADAPTERS, "the adapters do not change the answers"
    before = sorted(replica["replica"] for replica in up.replicas("a"))
    clients.begin()
    try:
        clients.wait_for(NUM_ADAPTERS)
        up.must("adapters", "add", "a", up.env["LATE_ADAPTER"])
        assert clients.stream("late", 0)
        assert sorted(replica["replica"] for replica in up.replicas("a")) == before, "a replica was replaced"
        up.must("adapters", "remove", "late")
        assert up.ask("late")[0] == 404
        for replica in before:
            kill(up, replica, clients)
            clients.wait_for(NUM_CLIENTS)
    finally:
        clients.end()
    resumed = num_resumed(up.local_port) - resumed_before
    print(f"{clients.num_streams} answers of {len(clients.alone)} kinds, {resumed:.0f} resumed")
    assert clients.wrong == [], "\n".join(clients.wrong)
    assert resumed, "no answer was under way when replicas died"


def kill(up: FleetLab, name: str, clients: Clients) -> None:
    """Kill a replica's engine while it answers, and wait until another one serves all adapters in its place."""
    state = next(replica for replica in up.replicas("a") if replica["replica"] == name)
    wait_until("it is at work", lambda: name in list(clients.at_work.values()))
    os.kill(state["ranks"][0]["pid"], signal.SIGKILL)
    clients.pause_s = PAUSE_S
    time.sleep(1.0)

    def is_back() -> bool:
        ready = up.replicas("a")
        return len(ready) == 2 and all(one["replica"] != name and len(one["adapters"]) == NUM_ADAPTERS for one in ready)

    wait_until("two replicas serve all adapters again", is_back, 300)
    clients.pause_s = 0.0
