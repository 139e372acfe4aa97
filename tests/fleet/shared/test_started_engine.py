"""Models of real vLLM that an operator starts and ends without the fleet file: by command and through the admin API."""

from __future__ import annotations

import json
import os
import shutil
import threading
from typing import Any

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from fleet.test_started_models import GATEWAY as GATEWAY_OF_FAKES
from fleet.test_started_models import A, admin
from longboat.builtin import ensure
from longboat.folders import home_folder

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

LONG_TOKENS = 400


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    if not os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON"):
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    lab.must("up", lab.write(f"name: t\nmodels: [{A}]", gateway=GATEWAY_OF_FAKES), "--detach", timeout_s=240)
    return lab


def test_command_starts_a_real_model_and_returns_when_it_answers(up: FleetLab) -> None:
    words = ("builtin:tiny", "--context", "512", "--cpus", "0.5", "--json")
    found = json.loads(up.must("start", *words, timeout_s=600))
    assert (found["started"], found["ready"]) == ("tiny", True)
    status, choice = up.ask("tiny", max_tokens=8)
    assert status == 200 and choice["text"], choice
    assert up.answers("a")


def test_requests_that_run_end_before_the_model_does(up: FleetLab) -> None:
    found: list[tuple[int, Any]] = []
    (replica,) = up.replicas("tiny")

    def ask_until_it_is_unknown() -> None:
        while not found or found[-1][0] == 200:
            found.append(up.ask("tiny", max_tokens=LONG_TOKENS, ignore_eos=True, timeout_s=240.0))

    clients = [threading.Thread(target=ask_until_it_is_unknown) for _ in range(4)]
    for client in clients:
        client.start()
    wait_until("requests are answered", lambda: len(found) >= len(clients))
    assert up.must("stop", "tiny") == "tiny is ending: its running requests have 20 s\n"
    for client in clients:
        client.join(240)
    assert {status for status, _ in found} == {200, 404}, found
    assert all(choice["finish_reason"] == "length" for status, choice in found if status == 200), found
    wait_until("its engine is gone", lambda: not up.processes(LONGBOAT_GANG=f"tiny/{replica['replica']}"))
    assert up.answers("a")


def test_admin_api_starts_and_ends_a_real_model(up: FleetLab) -> None:
    form = {"source": "builtin:tiny", "name": "second", "context": 512, "cpus": 0.5}
    status, found = admin(up, "POST", "models", form)
    assert status == 200, found
    wait_until("second answers", lambda: up.answers("second"), 400)
    assert admin(up, "DELETE", "models/second") == (200, {"ended": "second"})
    wait_until("second is unknown", lambda: up.ask("second")[0] == 404)


def test_model_that_does_not_start_says_why_and_stays_until_it_is_stopped(up: FleetLab) -> None:
    broken = up.folder / "broken"
    shutil.copytree(ensure("builtin:tiny", home_folder()), broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModelForCausalLM"]}))
    done = up.cli("start", str(broken), "--context", "512", "--cpus", "0.5", timeout_s=600)
    assert done.returncode not in (0, 2), (done.stdout, done.stderr)
    assert "broken does not start" in done.stderr and "longboat stop broken ends it" in done.stderr, done.stderr
    assert up.answers("a")
    assert up.must("stop", "broken") == "broken is ending: its running requests have 20 s\n"
    wait_until("nothing of it is left", lambda: "broken" not in up.status()["wanted"])
