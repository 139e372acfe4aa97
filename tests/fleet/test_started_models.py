"""Models that an operator starts in the console of a real fleet, and what a later `up` makes of them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from fleet.fleet_lab import FleetLab, fleet_in_new_folder, wait_until
from longboat.gateway.limits.keys import new_admin_key

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

OPERATOR, OPERATOR_RECORD = new_admin_key("hand", "operator")
VIEWER, VIEWER_RECORD = new_admin_key("eye", "viewer")
ADMINS = ", ".join(f"{{name: {r.name}, role: {r.role}, sha256: {r.sha256}}}" for r in (OPERATOR_RECORD, VIEWER_RECORD))
GATEWAY = f"admin: [{ADMINS}], aliases: [{{name: chat, model: a}}]"
A = "{name: a, source: 'builtin:tiny', engine: {kind: fake, options: {max_num_seqs: 4}}, resources: {cpus: 0.1}}"
FILE = f"name: started\nmodels: [{A}]"
FORM = {"source": "builtin:tiny", "name": "b", "engine": "fake", "cpus": 0.1}


@dataclass
class Person:
    """Somebody at the console of a fleet."""

    lab: FleetLab
    key: str
    cookie: str = ""
    csrf: str = ""
    said: dict[str, Any] = field(default_factory=dict)

    def sign_in(self) -> Person:
        self.post("sign-in", {"key": self.key})
        self.csrf = self.get("session")["csrf"]
        return self

    def get(self, path: str) -> Any:
        return json.loads(self._send(path, None)[1])

    def post(self, path: str, body: object = None) -> int:
        """Return the status; ``said`` is the document."""
        status, data = self._send(path, json.dumps(body or {}).encode())
        self.said = json.loads(data)
        return status

    @property
    def refusal(self) -> str:
        return str(self.said["error"]["message"])

    def _send(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", "Cookie": self.cookie, "x-csrf-token": self.csrf}
        request = urllib.request.Request(f"http://127.0.0.1:{self.lab.port}/console/api/{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=200) as answer:
                self.cookie = (answer.headers.get("set-cookie") or self.cookie).partition(";")[0]
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@pytest.fixture(scope="module")
def lab() -> Iterator[FleetLab]:
    with fleet_in_new_folder(own_home=True) as fleet:
        fleet.must("up", fleet.write(FILE, gateway=GATEWAY), "--detach", timeout_s=240)
        yield fleet


@pytest.fixture(scope="module")
def operator(lab: FleetLab) -> Person:
    return Person(lab, OPERATOR).sign_in()


def processes(lab: FleetLab) -> tuple[object, ...]:
    """What a restart of the gateway or of a replica of ``a`` would change."""
    status = lab.status()
    ranks = [rank["pid"] for replica in status["replicas"] if replica["model"] == "a" for rank in replica["ranks"]]
    return [gateway["pid"] for gateway in status["gateways"]], ranks


def shown(operator: Person) -> dict[str, Any]:
    return dict((operator.get("live/fleet")["data"]["view"] or {}).get("started", {}))


def test_model_that_is_started_serves_and_nothing_else_restarts(lab: FleetLab, operator: Person) -> None:
    assert operator.post("scale?model=a", {"replicas": 2}) == 200, operator.said
    wait_until("a has two replicas", lambda: len(lab.replicas("a")) == 2)
    before = processes(lab)
    assert operator.post("start-model", FORM) == 200, operator.said
    assert operator.said["started"] == "b" and operator.said["entry"].startswith("{name: b, source: 'builtin:tiny'")
    wait_until("b answers", lambda: lab.answers("b"))
    assert processes(lab) == before and lab.answers("chat")
    wait_until("the console shows who started it", lambda: shown(operator).get("b", {}).get("by") == "hand, console")


def test_model_without_room_is_refused_with_the_planners_words(operator: Person) -> None:
    assert operator.post("start-model", {**FORM, "name": "c", "replicas": 900}) == 400
    assert "c: " in operator.refusal and "Hint: " in operator.refusal and "models[" not in operator.refusal
    assert operator.post("start-model", {**FORM, "name": "chat"}) == 400
    assert operator.post("start-model", FORM) == 400
    assert "already has a model b" in operator.refusal


def test_only_an_operator_on_the_page_starts_models(lab: FleetLab, operator: Person) -> None:
    viewer = Person(lab, VIEWER).sign_in()
    assert viewer.post("start-model", {**FORM, "name": "c"}) == 403
    forged = Person(lab, OPERATOR, cookie=operator.cookie, csrf="guessed")
    assert forged.post("start-model", {**FORM, "name": "c"}) == 403
    assert not lab.replicas("c")


def test_up_says_that_its_file_lacks_the_model_and_changes_nothing(lab: FleetLab) -> None:
    done = lab.cli("up", lab.write(FILE, gateway=GATEWAY), "--detach")
    assert done.returncode == 2
    assert "the file lacks b, which was started by hand, console on " in done.stderr
    assert "--end-started" in done.stderr
    assert lab.answers("b")


def test_model_that_was_started_is_ended(lab: FleetLab, operator: Person) -> None:
    before = processes(lab)
    assert operator.post("end-model?model=a") == 400
    assert "only the file ends it" in operator.refusal
    assert operator.post("end-model?model=b") == 200, operator.said
    wait_until("b is unknown", lambda: lab.ask("b")[0] == 404)
    assert processes(lab) == before
    assert operator.post("scale?model=a", {"replicas": "auto"}) == 200, operator.said
    assert "nothing to change" in lab.must("up", lab.write(FILE, gateway=GATEWAY), "--detach")


def test_file_that_has_the_model_takes_it_over(lab: FleetLab, operator: Person) -> None:
    assert operator.post("start-model", FORM) == 200, operator.said
    wait_until("b answers", lambda: lab.answers("b"))
    (replica,) = lab.replicas("b")
    path = lab.write(f"name: started\nmodels: [{A}, {operator.said['entry']}]", gateway=GATEWAY)
    assert "from now on the file has it" in lab.must("up", path, "--detach")
    assert [one["replica"] for one in lab.replicas("b")] == [replica["replica"]]
    assert operator.post("end-model?model=b") == 400
    assert "nothing to change" in lab.must("up", path, "--detach")


def admin(lab: FleetLab, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """A call of the admin API as the operator: its status and document."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {OPERATOR}"}
    data = None if body is None else json.dumps(body).encode()
    url = f"http://127.0.0.1:{lab.port}/admin/v1/{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=200) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_admin_api_starts_and_ends_models(lab: FleetLab) -> None:
    status, found = admin(lab, "POST", "models", {**FORM, "name": "d"})
    assert (status, found.get("started")) == (200, "d"), found
    wait_until("d answers", lambda: lab.answers("d"))
    status, found = admin(lab, "DELETE", "models/a")
    assert status == 400 and "only the file ends it" in found["error"]["message"]
    assert admin(lab, "DELETE", "models/d") == (200, {"ended": "d"})
    wait_until("d is unknown", lambda: lab.ask("d")[0] == 404)


def test_commands_start_and_stop_models(lab: FleetLab) -> None:
    words = ("builtin:tiny", "--name", "e", "--engine", "fake", "--cpus", "0.1")
    found = json.loads(lab.must("start", *words, "--replicas", "2", "--json", timeout_s=240))
    assert (found["started"], found["ready"]) == ("e", True)
    assert lab.answers("e") and len(lab.replicas("e")) == 2
    assert "e: started by " in lab.must("status")
    again = lab.cli("start", *words)
    assert again.returncode == 2 and "already has a model e" in again.stderr
    assert lab.must("stop", "e") == "e is ending: its running requests have 20 s\n"
    wait_until("e is unknown", lambda: lab.ask("e")[0] == 404)
    gone = lab.cli("stop", "e")
    assert gone.returncode == 2 and "there is no model 'e'" in gone.stderr


def test_command_is_refused_with_the_planners_words(lab: FleetLab) -> None:
    done = lab.cli("start", "builtin:tiny", "--name", "broken", "--cpus", "0.1", "--context", "100000", timeout_s=240)
    assert done.returncode == 2 and "broken: context" in done.stderr, done.stderr
    assert all(replica["model"] != "broken" for replica in lab.status()["replicas"])


def test_up_ends_started_models_where_it_is_asked_to(lab: FleetLab, operator: Person) -> None:
    assert operator.post("start-model", {**FORM, "name": "c"}) == 200, operator.said
    wait_until("c answers", lambda: lab.answers("c"))
    done = lab.must("up", lab.write(FILE, gateway=GATEWAY), "--detach", "--end-started")
    assert "- c" in done and "the file does not have it" in done
    wait_until("c is unknown", lambda: lab.ask("c")[0] == 404)
    wait_until("no mark is left", lambda: not shown(operator))
    assert lab.answers("a")
