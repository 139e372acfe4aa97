"""`longboat keys` on a fleet without Ray, and on a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.cli_builders import gateway, report
from cli.cli_process import Done
from cli.fake_cluster import FakeSession
from longboat.cli.keys.key_store import fleet_key_book, keys_path
from longboat.cli.shared import cluster_at_hand
from longboat.cluster.fleet.applications import ServeApplications
from longboat.cluster.fleet.deployed import controller_values, document_with, key_book_in
from longboat.cluster.fleet.serve_config import serve_document
from longboat.cluster.protocol.messages import FleetReport
from longboat.cluster.protocol.names import CONTROLLER_APP
from longboat.core.policy import KeyRecord
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.keys_file import KeyBook, load_keys, save_keys
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of

FLEET = load_fleet("{models: [builtin:tiny], gateway: {auth: keys, tenants: [{name: search}, {name: batch}]}}", "x")
OLD = KeyBook(salt="salt", keys=(KeyRecord(key_id="old", tenant="batch", sha256="1" * 64),))


class Cluster(FakeSession):
    """A fleet whose gateways know at once what Serve is told."""

    def __init__(self, book: KeyBook | None = OLD, *, up: bool = True) -> None:
        super().__init__({})
        self.lose_next_write = False
        if up:
            policy = policy_of(FLEET.gateway, book.keys, book.salt) if book else policy_of(FLEET.gateway)
            self._take(serve_document(FLEET, (), dump_fleet(FLEET), policy=policy))
        self.rest = SimpleNamespace(details=self.serve.details, put=self.put)  # type: ignore[assignment]
        self.apps = ServeApplications(self.rest)

    def put(self, document: dict[str, Any]) -> None:
        if self.lose_next_write:
            self.lose_next_write = False
            return
        self._take(document)

    def _take(self, document: dict[str, Any]) -> None:
        apps = document["applications"]
        self.serve.apps = {app["name"]: {"status": "RUNNING", "deployed_app_config": app} for app in apps}

    def book(self) -> KeyBook:
        found = key_book_in(controller_values(self.apps.all()))
        assert found is not None
        return found

    def report(self) -> FleetReport:
        told = {"policy_digest": "p", "num_keys": len(self.book().keys)}
        made = report(gateways=(gateway(policy_digest="p"),))
        return FleetReport(**{**{name: getattr(made, name) for name in made.__slots__}, **told})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(cluster_at_hand, "connect", lambda: made)
    return made


Run = Callable[..., Done]


def test_a_key_is_shown_once_and_kept_by_its_digest(longboat: Run, cluster: Cluster) -> None:
    done = longboat("keys", "create", "--tenant", "search", "--note", "web", "--expires", "1.5")
    key = done.stdout.strip()
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    kept, made = cluster.book().keys
    assert kept == OLD.keys[0]
    assert (made.tenant, made.note, made.sha256) == ("search", "web", hashlib.sha256(key.encode()).hexdigest())
    assert made.expires_s is not None
    assert made.expires_s - made.created_s == pytest.approx(1.5 * 86400)
    assert cluster.book().salt == "salt"
    assert load_keys(keys_path(FLEET.name)) == cluster.book()
    assert key not in longboat("keys", "list").stdout + longboat("keys", "list", "--json").stdout


def test_the_list_tells_no_digest(longboat: Run, cluster: Cluster) -> None:
    rows = json.loads(longboat("keys", "list", "--json").stdout)
    assert rows == [
        {"key_id": "old", "tenant": "batch", "created_s": 0.0, "expires_s": None, "expired": False, "note": ""}
    ]
    assert "batch" in longboat("keys", "list").stdout


def test_a_revoked_key_is_gone_everywhere(longboat: Run, cluster: Cluster) -> None:
    assert longboat("keys", "revoke", "old").returncode == 0
    assert cluster.book().keys == ()
    assert load_keys(keys_path(FLEET.name)) == cluster.book()


def test_a_key_that_is_not_there_is_not_revoked(longboat: Run, cluster: Cluster) -> None:
    done = longboat("keys", "revoke", "lb-old-secret")
    assert done.returncode == 2
    assert "secret" not in done.stderr
    assert cluster.book() == OLD


def test_a_key_for_nobody_is_refused(longboat: Run, cluster: Cluster) -> None:
    done = longboat("keys", "create", "--tenant", "serch")
    assert done.returncode == 2
    assert "no tenant 'serch'" in done.stderr
    assert "did you mean search?" in done.stderr
    assert cluster.book() == OLD


def test_a_write_that_another_command_undid_is_made_again(longboat: Run, cluster: Cluster) -> None:
    cluster.lose_next_write = True
    assert longboat("keys", "create", "--tenant", "search").returncode == 0
    assert len(cluster.book().keys) == 2


def test_without_a_fleet_nothing_is_made(longboat: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_at_hand, "connect", lambda: Cluster(up=False))
    for words in (["create", "--tenant", "search"], ["list"], ["revoke", "old"]):
        done = longboat("keys", *words)
        assert done.returncode == 3
        assert "no fleet is up" in done.stderr
        assert done.stdout == ""


def test_a_file_of_keys_needs_no_cluster(longboat: Run, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key = longboat("keys", "create", "--tenant", "anyone", "--file", str(file)).stdout.strip()
    (row,) = json.loads(longboat("keys", "list", "--json", "--file", str(file)).stdout)
    assert key.split("-")[1] == row["key_id"]
    longboat("keys", "revoke", row["key_id"], "--file", str(file))
    assert json.loads(longboat("keys", "list", "--json", "--file", str(file)).stdout) == []


def test_a_fleet_that_comes_up_again_has_its_keys(longboat: Run) -> None:
    save_keys(keys_path(FLEET.name), OLD)
    assert fleet_key_book(Cluster(up=False), FLEET.name) == OLD


def test_a_fleet_that_is_up_is_right_about_its_keys(longboat: Run) -> None:
    save_keys(keys_path(FLEET.name), KeyBook(salt="other"))
    assert fleet_key_book(Cluster(), FLEET.name) == OLD
    assert load_keys(keys_path(FLEET.name)) == OLD


def test_a_new_fleet_gets_a_salt_that_stays(longboat: Run) -> None:
    first = fleet_key_book(Cluster(up=False), "new")
    assert len(first.salt) == 32
    assert fleet_key_book(Cluster(up=False), "new") == first


def test_the_controller_is_told_of_keys_without_being_deployed_anew() -> None:
    apps = Cluster().apps.all()
    document = document_with(apps, controller_values(apps))
    (app,) = document["applications"]
    assert app == apps[CONTROLLER_APP]["deployed_app_config"]


def test_a_fleet_that_asks_for_no_keys_leaves_no_file(longboat: Run) -> None:
    assert fleet_key_book(Cluster(up=False), "open", asks_for_keys=False) == KeyBook()
    assert not keys_path("open").exists()
    assert fleet_key_book(Cluster(), FLEET.name, asks_for_keys=False) == OLD
