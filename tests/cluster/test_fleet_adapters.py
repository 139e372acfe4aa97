"""Adapters of a fleet before and while it runs: preflight, the controller's values, files on nodes, what leaves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from adapter_files import write_adapter
from longboat.catalog.read_adapter import adapter_revision
from longboat.cluster.fleet.adapter_changes import (
    running_fleet,
    values_with_adapters,
    with_adapter,
    without_adapter,
    without_adapters,
)
from longboat.cluster.fleet.adapters import wanted_adapters
from longboat.cluster.fleet.serve_config import ShapedModel, digests_in, serve_document
from longboat.cluster.gang.adapter_keeper import GRACE_S, entries_for
from longboat.cluster.gang.revision import revision_of
from longboat.cluster.preflight.surroundings import UpOptions, checked_plan, this_machine
from longboat.cluster.protocol.model import WantedAdapter, read_model
from longboat.core.errors import UserInputError
from longboat.core.plan import AdapterRoom
from longboat.engines.launch.adapter_store import stage_adapter
from longboat.spec.diff import diff
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.types.adapters import AdapterSpec
from longboat.spec.types.fleet import Fleet

TEXT = "models: [{source: builtin:tiny, engine: fake, resources: {cpus: 0.1}, adapters: %s}]"


def fleet(adapters: str) -> Fleet:
    return load_fleet(TEXT % adapters, "fleet.yaml")


def planned(adapters: str, running: Fleet | None = None) -> Fleet:
    return checked_plan(fleet(adapters), [this_machine()], options=UpOptions(running=running)).fleet


def refusal(adapters: str) -> tuple[str, str]:
    with pytest.raises(UserInputError) as caught:
        planned(adapters)
    (problem,) = caught.value.problems
    return problem.where, f"{problem.what}; {problem.hint}"


def test_a_plan_pins_revisions_and_makes_room_for_the_highest_rank(tmp_path: Path) -> None:
    one, two = write_adapter(tmp_path / "one", 1), write_adapter(tmp_path / "two", 2, rank=12)
    spec = planned(f"[{one}, {two}]").models[0].adapters
    assert spec is not None
    assert [entry.revision for entry in spec.entries] == [adapter_revision(one), adapter_revision(two)]
    assert (spec.rank, spec.slots, spec.num_held) == (16, 8, 8)


def test_room_that_runs_is_kept_while_it_suffices(tmp_path: Path) -> None:
    small, large = write_adapter(tmp_path / "small", 1), write_adapter(tmp_path / "large", 2, rank=40)
    running = planned(f"[{large}]")
    ranks = [planned(text, running).models[0].adapters for text in (f"[{small}]", "{slots: 8}", f"[{large}]")]
    assert [spec and spec.rank for spec in ranks] == [64, 64, 64]
    assert (alone := planned(f"[{small}]").models[0].adapters) is not None
    assert alone.rank == 8


def test_adapters_that_cannot_be_served_are_refused_before_anything_starts(tmp_path: Path) -> None:
    wide = write_adapter(tmp_path / "wide", 1, rank=20)
    other = write_adapter(tmp_path / "other", 1, modules={"self_attn.q_proj": (64, 64)})
    where = "models[0].adapters.entries[0]"
    assert refusal(f"[{tmp_path}/none]")[0] == f"{where}.source"
    assert refusal(f"{{rank: 16, entries: [{wide}]}}") == (
        f"{where}.source",
        "its rank is 20, the room is for 16; write adapters: {rank: 32}",
    )
    at, words = refusal(f"[{{source: {wide}, revision: 0123456789abcdef}}]")
    assert at == f"{where}.revision"
    assert adapter_revision(wide) in words
    del other  # the fake engine's memory is not planned, so no shape is known


def test_engines_without_adapters_say_which_ones_have_them() -> None:
    text = "models: [{source: builtin:tiny, engine: sglang, adapters: [/a/one]}]"
    with pytest.raises(UserInputError) as caught:
        checked_plan(load_fleet(text, "f"), [this_machine()])
    found = [problem for problem in caught.value.problems if problem.where == "models[0].adapters"]
    assert "vllm" in found[0].hint


def test_a_changed_list_of_adapters_replaces_no_replica(tmp_path: Path) -> None:
    one, two = write_adapter(tmp_path / "one", 1), write_adapter(tmp_path / "two", 2)
    before, after, roomier = planned(f"[{one}]"), planned(f"[{one}, {two}]"), planned(f"{{slots: 9, entries: [{one}]}}")
    assert [model.only_replicas for model in diff(before, after).changed] == [True]
    assert [model.only_replicas for model in diff(before, roomier).changed] == [False]
    digests = [digests_in(document(one)) for one in (before, after, roomier)]
    assert digests[0] == digests[1] != digests[2]


def document(one: Fleet) -> dict[str, object]:
    shapes = checked_plan(one, [this_machine()]).shapes
    return serve_document(one, [ShapedModel(spec=m, shape=shapes[m.name]) for m in one.models], dump_fleet(one))


def test_replicas_are_started_with_the_room_and_not_with_the_list(tmp_path: Path) -> None:
    one = planned(f"{{slots: 2, held: 5, entries: [{write_adapter(tmp_path, 1)}]}}")
    (app,) = [app for app in document(one)["applications"] if "model" in app["args"]]  # type: ignore[attr-defined]
    assert read_model(app["args"]["model"]).adapters == AdapterRoom(slots=2, held=5, rank=8)
    assert "entries" not in app["args"]["model"]["adapters"]


def test_room_for_adapters_is_part_of_the_revision_and_the_adapters_are_not(tmp_path: Path) -> None:
    values = {"name": "m", "source": "builtin:tiny", "engine": {"kind": "fake"}}
    room = {"slots": 2, "held": 2, "rank": 8}
    revisions = [
        revision_of(read_model(values | ({"adapters": told} if told else {})), str(tmp_path), "fake")
        for told in (None, room, room | {"slots": 3}, room | {"rank": 16})
    ]
    assert revisions[0] != revisions[1] == revisions[2] != revisions[3]


def test_changes_of_a_running_fleet(tmp_path: Path) -> None:
    one = planned(f"[{write_adapter(tmp_path / 'one', 1)}]")
    values = {"text": dump_fleet(one), "policy": {"auth": "none"}, "other": 1}
    more = with_adapter(
        one, "tiny", AdapterSpec(name="new", source="/a/new", revision="0" * 16, tenants=("anonymous",))
    )
    changed = values_with_adapters(values, more)
    assert running_fleet(changed) == more
    assert [adapter.name for adapter in wanted_adapters(changed, "tiny") or ()] == ["one", "new"]
    assert changed["policy"]["adapters"][1] == {"name": "new", "model": "tiny", "tenants": ["anonymous"]}
    assert changed["other"] == 1
    assert changed["policy"]["tasks"] == {"tiny": "generate", "one": "generate", "new": "generate"}
    assert changed["policy"]["media"]["new"] == changed["policy"]["media"]["tiny"]
    assert without_adapter(more, "new") == one
    again = with_adapter(more, "tiny", AdapterSpec(name="new", source="/a/new", revision="1" * 16))
    assert [entry.revision for _, entry in again.adapters()][1] == "1" * 16


def test_a_model_with_adapters_of_tenants_stands_alone_without_them(tmp_path: Path) -> None:
    entry = f"{{name: one, source: {write_adapter(tmp_path / 'one', 1)}, tenants: [a]}}"
    told = load_fleet(TEXT % f"[{entry}]" + "\ngateway: {auth: keys, tenants: [{name: a}]}", "f")
    alone = without_adapters(told, "tiny")
    assert not alone.adapters()
    assert alone.models[0].adapters is not None


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [("gone", "x", "there is no model 'gone'"), ("tiny", "tiny", "already the name of a model")],
)
def test_changes_that_cannot_be_are_refused(tmp_path: Path, model: str, name: str, words: str) -> None:
    one = planned(f"[{write_adapter(tmp_path / 'one', 1)}]")
    with pytest.raises(UserInputError, match=words):
        with_adapter(one, model, AdapterSpec(name=name, source="/a/x"))
    with pytest.raises(UserInputError, match="there is no adapter 'two'"):
        without_adapter(one, "two")
    plain = load_fleet("builtin:tiny", "f")
    with pytest.raises(UserInputError, match="without room for adapters"):
        with_adapter(plain, "tiny", AdapterSpec(name="x", source="/a/x"))


def test_an_adapter_that_an_alias_needs_stays(tmp_path: Path) -> None:
    text = TEXT % f"[{write_adapter(tmp_path / 'one', 1)}]" + "\ngateway: {aliases: [{name: best, model: one}]}"
    with pytest.raises(UserInputError, match="there is no model 'one'"):
        without_adapter(load_fleet(text, "f"), "one")


def test_a_controller_without_values_leaves_adapters_as_they_are() -> None:
    assert wanted_adapters({}, "m") is None
    assert wanted_adapters({"text": ""}, "m") == ()


def test_contents_are_kept_under_their_revision(tmp_path: Path) -> None:
    source, home = write_adapter(tmp_path / "a", 1), tmp_path / "home"
    revision = adapter_revision(source)
    kept = Path(stage_adapter(source, revision, home))
    assert kept == home / "adapters" / revision
    write_adapter(source, 2)
    assert adapter_revision(kept) == revision
    assert stage_adapter(source, revision, home) == str(kept)
    with pytest.raises(UserInputError, match="was asked for"):
        stage_adapter(source, "0" * 16, home)
    with pytest.raises(UserInputError, match="cannot be copied"):
        stage_adapter(tmp_path / "none", "0" * 16, home)
    assert [path.name for path in (home / "adapters").iterdir()] == [revision]


def test_what_leaves_the_list_stays_known_for_a_while() -> None:
    def wanted(*keys: str) -> list[WantedAdapter]:
        return [WantedAdapter(name=key[0], source="/s", revision=key[1]) for key in keys]

    first = entries_for(wanted("a1", "b1"), {}, 0.0)
    assert first == {("a", "1"): math.inf, ("b", "1"): math.inf}
    second = entries_for(wanted("a2"), first, 10.0)
    assert second == {("a", "1"): 10.0 + GRACE_S, ("b", "1"): 10.0 + GRACE_S, ("a", "2"): math.inf}
    assert list(second)[-1] == ("a", "2")  # the newest of a name is last
    third = entries_for(wanted("a2", "b1"), second, 20.0)
    assert third == {("a", "1"): 10.0 + GRACE_S, ("a", "2"): math.inf, ("b", "1"): math.inf}
    assert entries_for(wanted("a2"), third, 10.0 + GRACE_S) == {("a", "2"): math.inf, ("b", "1"): 10.0 + 2 * GRACE_S}
