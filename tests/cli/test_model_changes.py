"""Models that the console starts and ends: what they change, what they refuse, and what a later `up` makes of them."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from cli.test_keys import Cluster
from cli.test_taking_down import SHAPE
from longboat.cli.app import app
from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.deployment import deploy, put_fleet
from longboat.cli.fleet.model_changes import add_model, end_started, only_model
from longboat.cli.fleet.teardown import take_down
from longboat.cli.model_orders import commands
from longboat.cli.model_orders.order import StartOrder, answer_bytes, entry_of
from longboat.cluster.fleet.adapters import running_fleet
from longboat.cluster.fleet.deployed import controller_values
from longboat.cluster.fleet.serve_config import ShapedModel, serve_document
from longboat.cluster.fleet.started import StartedModel, asked_fleet, read_started
from longboat.cluster.preflight.checks import PreflightRequest, inspect_node
from longboat.cluster.preflight.surroundings import checked_plan, this_machine
from longboat.cluster.protocol.names import model_app_name
from longboat.cluster.ray.count_changes import change_hold
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.policy import AdminCredential
from longboat.core.topology import Node
from longboat.gateway.api.openapi import openapi_document
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of

FAKE = "{kind: fake, options: {itl_ms: 1}}"
FILE = f"""
name: f
models:
  - {{name: a, source: builtin:tiny, engine: {FAKE}, resources: {{cpus: 0.1}}}}
gateway: {{auth: keys, aliases: [{{name: chat, model: a}}]}}
"""
FLEET = load_fleet(FILE, "x")
ENTRY = {"name": "b", "source": "builtin:tiny", "engine": "fake", "resources": {"cpus": 0.1}}
MARK = StartedModel(by="ops, console", since_s=1_795_600_000.0)
ADMIN = AdminCredential(name="ops", role="operator", sha256="0" * 64)


class Running(Cluster):
    """A fleet of one model that runs on this machine as its node."""

    def __init__(self) -> None:
        super().__init__(up=False)
        policy = policy_of(FLEET.gateway, (), "salt", admins=(ADMIN,), served=FLEET.served())
        plan = checked_plan(FLEET, self.nodes())
        shaped = [ShapedModel(spec=model, shape=plan.shapes[model.name]) for model in plan.fleet.models]
        text = dump_fleet(FLEET)
        self._take(serve_document(FLEET, shaped, text, policy=policy, planned={"asked": text}))

    def nodes(self) -> tuple[Node, ...]:
        return (this_machine(),)

    def inspect(self, node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
        return {node_id: inspect_node(request) for node_id in node_ids}

    def expect(self, document: str, timeout_s: float = 0.0) -> None:
        assert self.values()["text"] == document

    def report(self) -> Any:
        found = super().report()
        return type(found)(
            **{**{name: getattr(found, name) for name in found.__slots__}, "document": self.values()["text"]}
        )

    def values(self) -> dict[str, Any]:
        return controller_values(self.apps.all())


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))


@pytest.fixture
def cluster() -> Running:
    return Running()


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def start(cluster: Running, price: dict[str, Any] | None = None, **change: object) -> None:
    add_model(cluster, only_model({**ENTRY, **change}, price), MARK, quiet())


def up(cluster: Running, text: str = FILE, **options: bool) -> str:
    """Run the part of `longboat up` that changes the fleet; return what it prints."""
    fleet, said = load_fleet(text, "fleet.yaml"), quiet()
    known = {"asked": fleet, "asked_text": dump_fleet(fleet), "admins": (ADMIN,), **options}
    deploy(cluster, Applied(fleet=fleet, text=dump_fleet(fleet), **known), said)  # type: ignore[arg-type]
    assert isinstance(said.file, io.StringIO)
    return said.file.getvalue()


def test_started_model_is_in_the_running_fleet_and_marked(cluster: Running) -> None:
    before = cluster.values()
    start(cluster)
    values = cluster.values()
    assert running_fleet(values).names == asked_fleet(values).names == ("a", "b")
    assert read_started(values) == {"b": MARK} and read_started(before) == {}
    assert set(cluster.apps.deployed_models()) == {"a", "b"}


def test_up_says_that_it_took_the_place_of_a_change_made_while_it_was_planned(cluster: Running) -> None:
    inspect, others = cluster.inspect, [FILE.replace("name: chat", "name: talk")]

    def inspect_late(*asked: Any) -> Mapping[str, Any]:
        if others:
            up(cluster, others.pop())
        return inspect(*asked)

    cluster.inspect = inspect_late  # type: ignore[method-assign]
    words = "another command changed the fleet while this one was planned: this file took the place of that change"
    assert words in up(cluster, FILE.replace("name: chat", "name: speak")).splitlines()
    assert words not in up(cluster, FILE)


PRICE = {"input_per_million": 0.5, "output_per_million": 1.5, "currency": "EUR"}


def test_price_of_a_started_model_holds_until_the_model_ends(cluster: Running) -> None:
    before = cluster.values()
    start(cluster, PRICE)
    values = cluster.values()
    assert values["policy"]["prices"] == {"b": PRICE}
    assert running_fleet(values).gateway.prices == asked_fleet(values).gateway.prices
    end_started(cluster, "b")
    after = cluster.values()
    assert not after["policy"].get("prices")
    assert (after["text"], after["planned"]["asked"]) == (before["text"], before["planned"]["asked"])


def test_price_in_another_currency_than_the_limits_of_money_is_refused(cluster: Running) -> None:
    prices = "prices: {a: {input_per_million: 1, output_per_million: 2}}"
    up(cluster, FILE.replace("auth: keys", f"auth: keys, {prices}, tenants: [{{name: t, money_per_day: 5}}]"))
    before = cluster.values()
    with pytest.raises(UserInputError, match="one currency"):
        start(cluster, PRICE)
    assert cluster.values() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [({"currency": "euro"}, "price.currency"), ({"input_per_million": -1}, "price.input_per_million")],
    ids=["currency", "below zero"],
)
def test_price_that_cannot_be_is_named(cluster: Running, change: dict[str, Any], words: str) -> None:
    with pytest.raises(UserInputError) as caught:
        start(cluster, {**PRICE, **change})
    assert words in caught.value.message and "gateway" not in caught.value.message and caught.value.hint


def test_nothing_else_changes_when_a_model_is_started(cluster: Running) -> None:
    change_hold(cluster, "a", "pause", by="x")
    before, app = cluster.values(), cluster.apps.deployed_models()["a"]
    start(cluster)
    values = cluster.values()
    assert cluster.apps.deployed_models()["a"]["args"] == app["args"]
    assert [values["policy"][part] for part in ("admins", "salt", "keys", "aliases")] == [
        before["policy"][part] for part in ("admins", "salt", "keys", "aliases")
    ]
    assert values["holds"] == before["holds"] and values["gateway"] == before["gateway"]


def test_numbers_of_replicas_that_the_load_decided_stay_declared_as_they_are(cluster: Running) -> None:
    up(cluster, FILE.replace("resources:", "replicas: {min: 0, max: 5, target_ongoing_requests: 4}, resources:"))
    (override,) = cluster.serve.apps[model_app_name("a")]["deployed_app_config"]["deployments"]
    override["num_replicas"] = 4  # declared when four ran; now the model sleeps
    before = dict(cluster.apps.deployed_models()["a"])
    start(cluster)
    assert cluster.apps.deployed_models()["a"] == before
    end_started(cluster, "b")
    assert cluster.apps.deployed_models()["a"] == before


def test_model_that_was_started_ends_and_leaves_the_fleet_as_it_was(cluster: Running) -> None:
    before = cluster.values()
    start(cluster)
    end_started(cluster, "b")
    after = cluster.values()
    assert (after["text"], after["planned"]["asked"]) == (before["text"], before["planned"]["asked"])
    assert "b" not in after["policy"]["tasks"] and set(cluster.apps.deployed_models()) == {"a"}
    assert read_started(after) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a"}, "already has a model a"),
        ({"name": "chat"}, "chat"),
        ({"name": "a/b"}, "cannot stand in a URL"),
        ({"replicas": 5000}, "more than the limit, 1000"),
        ({"replicas": 900}, "b: replicas"),
        ({"resources": {"cpus": 1000.0}}, "b: resources"),
        ({"source": "somewhere"}, "source"),
        ({"source": "builtin:nothing"}, "b: source"),
        ({"engine": "vlm"}, "engine"),
        ({"placement": {"labels": {"zone": "moon"}}}, "b: placement"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_model_that_cannot_be_is_refused_in_the_words_of_up(
    cluster: Running, change: dict[str, Any], words: str
) -> None:
    before = cluster.values()
    with pytest.raises(UserInputError) as caught:
        start(cluster, **change)
    assert words in caught.value.message and "models[" not in caught.value.message
    assert caught.value.hint
    assert cluster.values() == before


def test_model_of_the_file_is_not_ended(cluster: Running) -> None:
    with pytest.raises(UserInputError, match="only the file ends it"):
        end_started(cluster, "a")
    with pytest.raises(UserInputError, match="no model 'c'"):
        end_started(cluster, "c")


def test_change_that_another_command_made_meanwhile_is_not_overwritten(cluster: Running) -> None:
    start(cluster)
    text = cluster.values()["text"]
    late = Applied(fleet=FLEET, text=dump_fleet(FLEET))
    with pytest.raises(ClusterError, match="another command changed"):
        put_fleet(cluster, late, policy_of(FLEET.gateway), {"a": SHAPE}, {}, base="another text")
    assert cluster.values()["text"] == text


# a later `up`


def test_up_from_a_file_that_lacks_the_model_is_refused_with_what_to_write(cluster: Running) -> None:
    start(cluster)
    before = cluster.values()
    with pytest.raises(UserInputError) as caught:
        up(cluster)
    assert "the file lacks b, which was started by ops, console on 2026-" in caught.value.message
    entry = caught.value.hint.partition("- ")[2].partition(" to keep it")[0]
    assert load_fleet(f"models: [{entry}]", "x").models == running_fleet(before).models[1:]
    assert "--end-started" in caught.value.hint
    assert cluster.values() == before


def test_up_from_a_file_that_lacks_the_model_names_its_price_too(cluster: Running) -> None:
    start(cluster, PRICE)
    with pytest.raises(UserInputError) as caught:
        up(cluster)
    price = caught.value.hint.partition("below gateway.prices ")[2].partition("; --end-started")[0]
    mine = FILE.replace("gateway:", f"  - {json.dumps(ENTRY)}\ngateway:").replace(
        "auth: keys", f"auth: keys, prices: {{{price}}}"
    )
    said = up(cluster, mine)
    assert "from now on the file has it" in said and cluster.values()["policy"]["prices"] == {"b": PRICE}


def test_model_that_was_started_while_an_up_planned_is_not_ended_by_it(cluster: Running) -> None:
    planned = Applied(fleet=FLEET, text=dump_fleet(FLEET))
    start(cluster)
    before = cluster.values()
    with pytest.raises(UserInputError, match="the file lacks b, which was started"):
        put_fleet(cluster, planned, policy_of(FLEET.gateway), {"a": SHAPE}, {})
    assert cluster.values() == before


def test_started_model_ends_in_a_fleet_with_a_model_that_has_no_replicas(cluster: Running) -> None:
    none = {**ENTRY, "name": "none", "replicas": 0}
    up(cluster, FILE.replace("gateway:", f"  - {json.dumps(none)}\ngateway:"))
    start(cluster)
    end_started(cluster, "b")
    assert running_fleet(cluster.values()).names == ("a", "none")


def test_up_from_a_file_that_has_the_model_takes_it_over(cluster: Running) -> None:
    start(cluster)
    app = cluster.apps.deployed_models()["b"]
    said = up(cluster, FILE.replace("gateway:", f"  - {json.dumps(ENTRY)}\ngateway:"))
    assert "b: started by ops, console" in said and "from now on the file has it" in said
    assert read_started(cluster.values()) == {} and cluster.apps.deployed_models()["b"]["args"] == app["args"]
    assert "- b" in up(cluster)


def test_up_that_is_to_end_started_models_says_which(cluster: Running) -> None:
    start(cluster)
    said = up(cluster, end_started=True)
    assert "- b" in said and "the file does not have it" in said
    assert running_fleet(cluster.values()).names == ("a",) and read_started(cluster.values()) == {}


def test_models_that_one_up_added_go_with_it_and_started_ones_stay(
    cluster: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = FILE.replace("gateway:", f"  - {json.dumps({**ENTRY, 'name': 'mine'})}\ngateway:")
    up(cluster, mine)
    start(cluster)
    fleet = load_fleet(mine, "x")
    monkeypatch.delattr(Running, "inspect")  # nodes may not answer any more
    monkeypatch.setattr(Running, "nodes", None)
    take_down(cluster, Applied(fleet=fleet, text="", added=("mine",)), quiet())
    assert running_fleet(cluster.values()).names == asked_fleet(cluster.values()).names == ("a", "b")
    assert set(cluster.apps.deployed_models()) == {"a", "b"} and read_started(cluster.values()) == {"b": MARK}


# the commands


@pytest.fixture
def at_hand(cluster: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    monkeypatch.setattr(commands, "connect", lambda: contextlib.nullcontext(cluster))
    return cluster


GIVEN = ["start", "builtin:tiny", "--name", "b", "--engine", "fake", "--cpus", "0.1"]


def test_command_starts_a_model_and_another_one_ends_it(at_hand: Running) -> None:
    said = CliRunner().invoke(app, [*GIVEN, "--no-wait"], catch_exceptions=False).stdout
    assert said.startswith("b: TP1 PP1; ") and "write into the fleet file: - {name: b, " in said
    assert "b is starting" in said and set(read_started(at_hand.values())) == {"b"}
    assert (
        CliRunner().invoke(app, ["stop", "b"], catch_exceptions=False).stdout
        == "b is ending: its running requests have 20 s\n"
    )
    assert running_fleet(at_hand.values()).names == ("a",)


@pytest.mark.parametrize(("text", "price"), [("0.5/1.5/EUR", PRICE), ("0.5/1.5", {**PRICE, "currency": "USD"})])
def test_command_gives_a_model_a_price(at_hand: Running, text: str, price: dict[str, Any]) -> None:
    said = CliRunner().invoke(app, [*GIVEN, "--no-wait", "--price", text], catch_exceptions=False).stdout
    assert at_hand.values()["policy"]["prices"] == {"b": price}
    assert "into its gateway's prices: b: {input_per_million: 0.5, output_per_million: 1.5" in said


def test_command_prints_one_document(at_hand: Running) -> None:
    found = json.loads(CliRunner().invoke(app, [*GIVEN, "--no-wait", "--json"], catch_exceptions=False).stdout)
    assert (found["started"], found["ready"]) == ("b", False) and found["entry"].startswith("{name: b, ")
    assert json.loads(CliRunner().invoke(app, ["stop", "b", "--json"]).stdout) == {"ended": "b"}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["start", "builtin:tiny", "--name", "a"], "already has a model a"),
        (["start", "builtin:tiny", "--name", "b" * 300], "name: expected `str` of length <= 256"),
        (["start", "builtin:nothing"], "builtin:nothing"),
        (["start", "builtin:tiny", "--price", "cheap"], "price: 'cheap' is not two numbers"),
        (["start", "builtin:tiny", "--price", "1/x"], "price: '1/x' is not two numbers"),
        (["start", "builtin:tiny", "--price", "1/-2"], "price.output_per_million: expected `float` >= 0.0"),
        (["start", "builtin:tiny", "--price", "1/nan"], "price.output_per_million"),
        (["stop", "a"], "only the file ends it"),
        (["stop", "c"], "there is no model 'c'"),
    ],
    ids=["taken", "long", "unknown", "word", "half", "negative", "no number", "of the file", "none"],
)
def test_command_that_cannot_be_carried_out_says_why_and_changes_nothing(
    at_hand: Running, words: list[str], what: str
) -> None:
    before = at_hand.values()
    with pytest.raises(UserInputError) as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert what in caught.value.message and caught.value.hint
    assert at_hand.values() == before


# orders of the page


def test_openapi_document_has_the_fields_of_an_order() -> None:
    operation = openapi_document()["paths"]["/admin/v1/models"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert {*schema["properties"], "by"} == set(StartOrder.__struct_fields__)
    limits = msgspec.json.schema(StartOrder)["$defs"]["StartOrder"]["properties"]
    for name, field in schema["properties"].items():
        known = limits[name].get("anyOf", [limits[name]])[0]
        assert {part: field.get(part) for part in ("minimum", "maximum", "maxLength")} == {
            part: known.get(part) for part in ("minimum", "maximum", "maxLength")
        }, name


def test_form_becomes_an_entry_of_the_fleet_file() -> None:
    entry = entry_of(StartOrder(source="hf:Qwen/Qwen3-0.6B", by="x", engine="sglang", context=4096, replicas=2))
    fleet = load_fleet(json.dumps({"models": [entry]}), "x")
    (model,) = fleet.models
    assert (model.name, model.engine.kind, model.context, model.replicas) == ("Qwen3-0.6B", "sglang", 4096, 2)
    assert model.split == "auto"


@pytest.mark.parametrize(
    "order",
    [
        b"",
        b"[]",
        b'{"order": "start"}',
        b'{"order": "start", "source": "builtin:tiny", "by": "x", "args": ["--x"]}',
        b'{"order": "start", "source": "builtin:tiny", "by": "x", "env": {"A": "b"}}',
        b'{"order": "start", "source": "builtin:tiny", "by": "x", "environment": "/tmp/evil"}',
        b'{"order": "start", "source": "builtin:tiny", "by": "x", "replicas": 0}',
        b'{"order": "other"}',
        b"\xff",
    ],
)
def test_order_with_another_field_is_refused(order: bytes) -> None:
    found = json.loads(answer_bytes(order))
    assert found["status"] == 400 and "the form cannot be read" in found["error"]
