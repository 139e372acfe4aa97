"""Keys and tenants on a fleet of fake engines: who is let in, and that no change restarts anything."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from fleet.fleet_lab import FleetLab, fleet_in_new_folder, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

FILE = """
name: keyed
models:
  - name: a
    source: builtin:tiny
    engine: {{kind: fake, options: {{max_num_seqs: 4}}}}
    resources: {{cpus: 0.1}}
gateway:
  port: {port}
  auth: keys
  tenants: [{{name: search, requests_per_minute: {limit}}}, {{name: batch}}]
  aliases: [{{name: chat, model: a}}]
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[FleetLab]:
    """With a home folder of its own: keys outlive fleets."""
    with fleet_in_new_folder(own_home=True) as fleet:
        yield fleet


def apply(lab: FleetLab, limit: int) -> str:
    path = lab.folder / "fleet.yaml"
    path.write_text(FILE.format(port=lab.port, limit=limit))
    return lab.must("up", str(path), "--detach", timeout_s=240)


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> FleetLab:
    assert "longboat keys create --tenant search" in apply(lab, 1000)
    return lab


def ask(lab: FleetLab, key: str, model: str = "a") -> int:
    """Status of a completion that is asked for with this key."""
    body = json.dumps({"model": model, "prompt": "row", "max_tokens": 3}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"http://127.0.0.1:{lab.port}/v1/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def create(lab: FleetLab, tenant: str) -> str:
    return lab.must("keys", "create", "--tenant", tenant).strip()


def running(lab: FleetLab) -> tuple[object, ...]:
    """What a restart would change."""
    status = lab.status()
    return (
        [gateway["pid"] for gateway in status["gateways"]],
        [rank["pid"] for replica in status["replicas"] for rank in replica["ranks"]],
    )


def test_a_key_works_when_its_command_returns_and_not_after_its_end(up: FleetLab) -> None:
    before = running(up)
    assert ask(up, "lb-none-none") == 401
    key = create(up, "search")
    assert (ask(up, key), ask(up, key, "chat")) == (200, 200)
    up.must("keys", "revoke", key.split("-")[1])
    assert ask(up, key) == 401
    assert running(up) == before


def test_limits_change_in_flight(up: FleetLab) -> None:
    key = create(up, "search")
    before = running(up)
    assert "~ gateway.tenants.search.requests_per_minute: 1000 -> 1" in apply(up, 1)
    wait_until("the limit is there", lambda: ask(up, key) == 429)
    assert running(up) == before
    assert "requests_per_minute: 1 -> 1000" in apply(up, 1000)
    assert ask(up, key) == 200


def test_usage_is_told_by_tenant_and_model(up: FleetLab) -> None:
    assert ask(up, create(up, "batch")) == 200

    def rows() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(up.must("usage", "--json"))["days"]
        return [row for row in found if row["tenant"] == "batch"]

    wait_until("the usage is counted", rows)
    (row,) = rows()
    assert (row["model"], row["requests"]) == ("a", 1)
    assert "batch" in up.must("usage")


def test_status_says_who_may_use_the_models(up: FleetLab) -> None:
    text = up.must("status")
    assert "auth: keys" in text
    assert "search" in text
    (gateway,) = up.status()["gateways"]
    assert gateway["problem"] == ""


def test_keys_and_usage_outlive_their_fleet_and_their_machine(up: FleetLab) -> None:
    """What ``backup`` saved while the fleet ran brings it back in an empty home folder."""
    key, saved, elsewhere = create(up, "search"), up.folder / "saved.tar.gz", up.folder / "restored"
    assert "keys/keyed.json" in up.must("backup", str(saved))
    assert up.cli("restore", str(saved)).returncode == 3, "a node that runs writes to these files"
    up.stop_watching()
    up.must("down")
    up.env["LONGBOAT_HOME"] = str(up.folder / "another home")
    assert "new" in up.must("restore", str(saved), "--to", str(elsewhere))
    up.must("up", str(elsewhere / "keyed.yaml"), "--detach", timeout_s=240)
    assert ask(up, key) == 200
    days = json.loads(up.must("usage", "--json"))["days"]
    assert [row["requests"] for row in days if row["tenant"] == "batch"] == [1]
