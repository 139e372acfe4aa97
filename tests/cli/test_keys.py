"""`longboat keys` on a fleet without Ray, and on a file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cli.cli_builders import gateway, report
from cli.cli_process import Done
from cli.fake_cluster import FakeSession
from longboat.cli.fleet import down
from longboat.cli.fleet.deployment import idle_keys
from longboat.cli.keys.commands import _change
from longboat.cli.shared import cluster_at_hand
from longboat.cluster.counts.by_hand import read_holds
from longboat.cluster.fleet.adapters import running_fleet, values_with_adapters, with_adapter
from longboat.cluster.fleet.applications import ServeApplications
from longboat.cluster.fleet.deployed import controller_values, document_with, key_book_in, values_with_keys
from longboat.cluster.fleet.serve_config import serve_document
from longboat.cluster.protocol.messages import FleetReport, keys_digest
from longboat.cluster.protocol.names import CONTROLLER_APP
from longboat.cluster.ray import fleet_orders
from longboat.cluster.ray.adapter_changes import remove_adapter
from longboat.cluster.ray.count_changes import change_hold
from longboat.cluster.ray.key_changes import change_keys, fleet_key_book, keys_path, remove_key, wait_for_gateways
from longboat.core.policy import KeyRecord, TenantPolicy
from longboat.gateway.limits.keys import new_key
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.keys_file import KeyBook, load_keys, save_keys
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of
from longboat.spec.types.adapters import AdapterSpec

MODELS = "[{source: builtin:tiny, adapters: {slots: 8}}]"
TENANTS = "[{name: search}, {name: batch}]"
FLEET = load_fleet(f"{{models: {MODELS}, gateway: {{auth: keys, tenants: {TENANTS}}}}}", "x")
ADAPTER = AdapterSpec(name="legal", source="/legal", revision="1" * 16)
OLD = KeyBook(salt="salt", keys=(KeyRecord(key_id="old", tenant="batch", sha256="1" * 64),))


class Cluster(FakeSession):
    """A fleet whose gateways know at once what Serve is told."""

    def __init__(self, book: KeyBook | None = OLD, *, up: bool = True) -> None:
        super().__init__({})
        self.lose_next_write = False
        if up:
            policy = policy_of(FLEET.gateway, book.keys, book.salt) if book else policy_of(FLEET.gateway)
            self._take(serve_document(FLEET, (), dump_fleet(FLEET), policy=policy))
        self.rest = SimpleNamespace(details=self.serve.details, put=self.put, url=self.serve.url)  # type: ignore[assignment]
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
        told = {"policy_digest": "p", "keys_digest": keys_digest(key.key_id for key in self.book().keys)}
        made = report(gateways=(gateway(policy_digest="p"),))
        return FleetReport(**{**{name: getattr(made, name) for name in made.__slots__}, **told})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(cluster_at_hand, "connect", lambda: made)
    return made


Run = Callable[..., Done]


@pytest.mark.parametrize("keys", [[{"key_id": "a", "tenant": "t", "sha256": 1}], [{"key_id": 5}], "x", None])
def test_keys_of_a_fleet_that_cannot_be_read_are_an_error_with_a_hint(
    longboat: Run, cluster: Cluster, keys: object
) -> None:
    values = controller_values(cluster.apps.all())
    cluster.put(document_with(cluster.apps.all(), {**values, "policy": {**values["policy"], "keys": keys}}))
    done = longboat("keys", "list")
    assert done.returncode == 3 and "the running fleet's keys cannot be read" in done.stderr
    assert "longboat up FILE" in done.stderr and "Traceback" not in done.stderr


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
        {
            "key_id": "old",
            "tenant": "batch",
            "has_tenant": True,
            "created_s": 0.0,
            "expires_s": None,
            "expired": False,
            "note": "",
        }
    ]
    assert "batch" in longboat("keys", "list").stdout


def test_keys_of_a_tenant_that_left_the_file_are_named(longboat: Run, cluster: Cluster) -> None:
    values = controller_values(cluster.apps.all())
    text = str(values["text"]).replace("name: batch", "name: night")
    cluster.put(document_with(cluster.apps.all(), {**values, "text": text}))
    assert "batch (not in the fleet file)" in longboat("keys", "list").stdout
    (row,) = json.loads(longboat("keys", "list", "--json").stdout)
    assert not row["has_tenant"]
    policy = policy_of(load_fleet(text, "x").gateway, cluster.book().keys)
    (line,) = idle_keys(policy)
    assert line.startswith("~ keys of batch open nothing: the file has no such tenant")
    assert idle_keys(replace(policy, tenants=(TenantPolicy(name="batch"),))) == []


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
    done = longboat("keys", "revoke", key, "--file", str(file))
    assert (done.returncode, key in done.stderr) == (2, False)
    assert f"→ write {row['key_id']} for this one" in done.stderr
    done = longboat("keys", "revoke", row["key_id"], "--file", f"{file}x")
    assert (done.returncode, f"there is no key file {file}x" in done.stderr) == (2, True)
    longboat("keys", "revoke", row["key_id"], "--file", str(file))
    assert json.loads(longboat("keys", "list", "--json", "--file", str(file)).stdout) == []


@pytest.mark.parametrize("days", ["inf", "1e300", "0", "-1", "nan", "36501"])
def test_a_key_that_ends_at_no_possible_time_is_refused(longboat: Run, tmp_path: Path, days: str) -> None:
    file = tmp_path / "keys.json"
    done = longboat("keys", "create", "--tenant", "a", "--file", str(file), "--expires", days)
    assert done.returncode == 2
    assert "--expires" in done.stderr
    assert "36500" in done.stderr
    assert not file.exists()


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


def test_gateways_do_not_know_of_a_revocation_because_they_know_as_many_keys(cluster: Cluster) -> None:
    """The gateways of this cluster still know the key ``old``; Serve has not passed on the change to another one."""
    _, other = new_key("search", now_s=1.0)
    assert wait_for_gateways(cluster, KeyBook(salt="salt", keys=(other,)), 0.1) == (0, 1)
    assert wait_for_gateways(cluster, OLD, 5.0) == (1, 1)


def orders_of(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the controller's orders change this cluster."""
    monkeypatch.setattr(fleet_orders, "ControllerSession", lambda *_: cluster)


async def test_key_of_the_console_is_the_fleets_and_outlives_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders_of(cluster, monkeypatch)
    _, record = new_key("search", now_s=1.0, note="web")
    order = {"add_key": msgspec.to_builtins(record), "timeout_s": 5}
    told = {"key": {"id": record.key_id, "gateways": 1, "informed": 1}}
    assert await fleet_orders.carry_out(None, order, "") == told  # type: ignore[arg-type]
    assert record in cluster.book().keys and record in (load_keys(keys_path(FLEET.name)) or KeyBook()).keys
    assert await fleet_orders.carry_out(None, {"remove_key": "old", "timeout_s": 5}, "") == {  # type: ignore[arg-type]
        "key": {"id": "old", "gateways": 1, "informed": 1}
    }
    assert cluster.book().keys == (record,)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"add_key": {"key_id": "k", "tenant": "serch", "sha256": "0"}}, "did you mean search"),
        ({"remove_key": "no"}, "ids"),
    ],
    ids=["tenant", "id"],
)
async def test_order_for_a_key_that_cannot_be_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, order: dict[str, Any], words: str
) -> None:
    orders_of(cluster, monkeypatch)
    found = await fleet_orders.carry_out(None, order | {"timeout_s": 5}, "")  # type: ignore[arg-type]
    assert found["status"] == 400 and words in found["hint"]
    assert cluster.book() == OLD


async def test_orders_that_wait_leave_the_controllers_own_threads_to_what_they_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    informed = threading.Event()
    change = {"count": lambda _session, _order: {"informed": informed.wait(5)}}
    monkeypatch.setattr(fleet_orders, "_CHANGES", change)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(5))  # as Serve does
    order = {"count": {}, "timeout_s": 5}
    orders = [asyncio.create_task(fleet_orders.carry_out(None, order, "")) for _ in range(6)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.to_thread(informed.set)
    assert await asyncio.gather(*orders) == [{"informed": True}] * 6


def scale(cluster: Cluster) -> None:
    change_hold(cluster, "tiny", "scale", asked=2, by="x")


def take_adapter_out(cluster: Cluster) -> None:
    cluster.expect = lambda _: None  # type: ignore[attr-defined]
    remove_adapter(cluster, "legal", 5.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [scale, take_adapter_out], ids=["count", "adapter"])
def test_change_that_began_before_a_revocation_puts_no_key_back(
    longboat: Run, cluster: Cluster, change: Callable[[Cluster], None]
) -> None:
    values = controller_values(cluster.apps.all())
    wanted = values_with_adapters(values, with_adapter(running_fleet(values), "tiny", ADAPTER))
    cluster._take(document_with(cluster.apps.all(), wanted))
    revoking = threading.Thread(target=lambda: remove_key(cluster, "old"))
    put = cluster.put

    def late_put(document: dict[str, Any]) -> None:
        """Write what was read before the revocation began."""
        cluster.rest.put = put  # type: ignore[method-assign]
        revoking.start()
        revoking.join(0.5)  # it waits for this write; a revocation that does not is done by now
        put(document)

    cluster.rest.put = late_put  # type: ignore[method-assign]
    change(cluster)
    revoking.join(20)
    values = controller_values(cluster.apps.all())
    assert cluster.book().keys == ()
    assert (read_holds(values).get("tiny") is not None) is (change is scale)
    assert ("legal" in values["text"]) is (change is scale)


async def test_key_order_that_another_machine_undoes_is_carried_out_once_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders_of(cluster, monkeypatch)
    undone = undoing(cluster, times=1)
    order = {"remove_key": "old", "timeout_s": 0.3}
    found = await fleet_orders.carry_out(None, order, "")  # type: ignore[arg-type]
    assert found["key"]["id"] == "old" and undone == [1]
    assert cluster.book().keys == ()


@pytest.mark.parametrize("kind", ["add_key", "remove_key"])
async def test_key_order_that_is_undone_each_time_is_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    orders_of(cluster, monkeypatch)
    undoing(cluster, times=9)
    _, record = new_key("search", now_s=1.0)
    order = {kind: msgspec.to_builtins(record) if kind == "add_key" else "old", "timeout_s": 0.3}
    found = await fleet_orders.carry_out(None, order, "")  # type: ignore[arg-type]
    assert found["status"] == 503 and "another machine undid it" in found["error"] and "try again" in found["hint"]


def undoing(cluster: Cluster, *, times: int) -> list[int]:
    """Have another machine put the old keys back while the controller waits for the gateways; return when it did."""
    undone: list[int] = []
    report = cluster.report

    def undo() -> FleetReport:
        if len(undone) < times and cluster.book() != OLD:
            undone.append(len(undone) + 1)
            cluster._take(document_of(cluster, OLD))
        return report()

    cluster.report = undo  # type: ignore[method-assign]
    return undone


def test_change_that_the_file_cannot_take_is_made_all_the_same(
    longboat: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(os, "fsync", full)
        book = change_keys(cluster, lambda book: KeyBook(salt=book.salt))
    assert book.keys == () == cluster.book().keys
    assert "No space left on device" in caplog.text and "longboat down writes it" in caplog.text
    assert load_keys(keys_path(FLEET.name)) is None


def test_down_keeps_the_keys_that_consoles_made_and_revoked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    path = keys_path(FLEET.name)
    save_keys(path, OLD)
    _, record = new_key("search", now_s=1.0)
    cluster._take({"applications": [*document_of(cluster, KeyBook(salt="salt", keys=(record,)))["applications"]]})
    ended: list[Any] = []
    monkeypatch.setattr(down, "end_fleet", ended.append)
    down.end_cluster(lambda: cluster, None, "", lambda: None)  # type: ignore[arg-type, return-value]
    assert ended == [cluster] and load_keys(path) == KeyBook(salt="salt", keys=(record,))


def document_of(cluster: Cluster, book: KeyBook) -> dict[str, Any]:
    """Return Serve's document in which the fleet has other keys, as another machine's command writes it."""
    apps = cluster.apps.all()
    return document_with(apps, values_with_keys(controller_values(apps), book))


def test_commands_that_change_one_file_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def create(number: int) -> None:
        record = KeyRecord(key_id=f"k{number}", tenant="search", sha256="1" * 64)

        def slowly_added(book: KeyBook) -> KeyBook:
            time.sleep(0.02)
            return replace(book, keys=(*book.keys, record))

        _change(path, slowly_added, lambda session: book_of_nothing)

    book_of_nothing = KeyBook()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(8)))
    kept = load_keys(path)
    assert kept is not None and {key.key_id for key in kept.keys} == {f"k{number}" for number in range(8)}
