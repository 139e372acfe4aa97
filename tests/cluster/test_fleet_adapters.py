"""Adapters of a fleet before and while it runs: preflight, the controller's values, files on nodes, what leaves."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapter_files import write_adapter
from longboat.catalog.read_adapter import adapter_revision, read_adapter_folder
from longboat.cluster.fleet.adapters import (
    running_fleet,
    values_with_adapters,
    wanted_adapters,
    with_adapter,
    without_adapter,
    without_adapters,
)
from longboat.cluster.fleet.change_turns import ChangeTurns
from longboat.cluster.fleet.serve_config import ShapedModel, digests_in, serve_document
from longboat.cluster.gang.adapter_keeper import GRACE_S, entries_for
from longboat.cluster.gang.revision import revision_of
from longboat.cluster.node import answers
from longboat.cluster.node.answers import Answers
from longboat.cluster.node.write_turn import writing
from longboat.cluster.preflight.surroundings import UpOptions, checked_plan, this_machine
from longboat.cluster.protocol.model import WantedAdapter, read_model
from longboat.cluster.ray.fleet_orders import carry_out
from longboat.cluster.weights.adapter_copies import AdapterCopies
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.plan import AdapterRoom
from longboat.engines.launch.adapter_store import stage_adapter
from longboat.file_lock import FileLock
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
    text = "models: [{source: builtin:tiny, engine: llama.cpp, adapters: [/a/one]}]"
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


def test_a_copy_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, home = write_adapter(tmp_path / "a", 1), tmp_path / "home"
    revision = adapter_revision(source)
    synced: list[tuple[str, bool]] = []

    def note(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path.name, (home / "adapters" / revision).exists()))

    monkeypatch.setattr(os, "fsync", note)
    kept = Path(stage_adapter(source, revision, home))
    assert sorted(synced) == sorted((name, False) for name in (revision, *(path.name for path in kept.iterdir())))


def copies_of(home: Path) -> set[str]:
    return {path.name for path in (home / "adapters").iterdir() if not path.name.startswith(".")}


def test_copies_that_were_not_used_for_longest_make_room(tmp_path: Path) -> None:
    home = tmp_path / "home"
    sources = [write_adapter(tmp_path / f"a{seed}", seed) for seed in range(6)]
    revisions = [adapter_revision(source) for source in sources]
    size = sum(path.stat().st_size for path in sources[0].iterdir())
    mine, other = (AdapterCopies(home, int(3.5 * size)) for _ in range(2))
    for number in range(3):
        mine.use(str(sources[number]), revisions[number])
    other.use(str(sources[0]), revisions[0])
    mine.use(str(sources[3]), revisions[3])
    assert copies_of(home) == set(revisions[:4])  # all are in use, also beyond the bound
    mine.keep(revisions[3:4])
    for number, revision in enumerate(revisions[:3]):
        os.utime(home / "adapters" / revision, (number, number))
    mine.use(str(sources[4]), revisions[4])
    assert copies_of(home) == {revisions[0], revisions[3], revisions[4]}  # the oldest is another replica's
    other.keep(())
    os.utime(home / "adapters" / revisions[0], (1, 1))
    mine.use(str(sources[5]), revisions[5])
    assert copies_of(home) == set(revisions[3:])
    assert Path(mine.use(str(sources[1]), revisions[1])).is_dir()  # it is copied again


def test_a_copy_that_fails_is_not_pinned(tmp_path: Path) -> None:
    copies, source = AdapterCopies(tmp_path), write_adapter(tmp_path / "a", 1)
    with pytest.raises(UserInputError, match="was asked for"):
        copies.use(str(source), "0" * 16)
    lock = FileLock.taken(tmp_path / "adapters" / ".locks" / ("0" * 16))
    assert lock is not None
    lock.release()


def test_what_killed_copies_left_behind_is_removed(tmp_path: Path) -> None:
    source, kept = write_adapter(tmp_path / "a", 1), tmp_path / "adapters"
    old, young, in_use = kept / ".tmpold", kept / ".tmpyoung", kept / ".tmpbusy"
    for leftover in (old, young, in_use):
        (leftover / "x").mkdir(parents=True)
    (in_use / "x" / "file").write_bytes(b"is written now")
    for path in (old / "x", old, in_use / "x", in_use):
        os.utime(path, (1, 1))
    AdapterCopies(tmp_path).use(str(source), adapter_revision(source))
    assert {path.name for path in kept.iterdir()} >= {".tmpyoung", ".tmpbusy", ".locks", adapter_revision(source)}
    assert not old.exists()


def test_a_full_disk_names_no_setting_of_weights(tmp_path: Path) -> None:
    source = write_adapter(tmp_path / "a", 1)
    with (source / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(shutil.disk_usage(tmp_path).total + 1)  # without taking any room itself
    with pytest.raises(ClusterError, match="too full for an adapter of") as caught:
        AdapterCopies(tmp_path / "home").use(str(source), "0" * 16)
    assert "weights" not in f"{caught.value} {caught.value.hint}"


def test_a_folder_that_cannot_be_looked_at_is_bad_input(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 300)  # the system refuses the name with an error, as a folder without permission
    with pytest.raises(UserInputError, match="cannot be read: File name too long"):
        read_adapter_folder(folder)


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


async def test_a_change_behind_another_one_is_refused_in_its_time_and_never_carried_out() -> None:
    turns, begun, may_end = ChangeTurns(), asyncio.Event(), asyncio.Event()
    done: list[Any] = []

    async def change(order: Mapping[str, Any]) -> dict[str, Any]:
        done.append(order["remove"])
        begun.set()
        await may_end.wait()
        return {"adapter": None, "left_s": order["timeout_s"]}

    first = asyncio.create_task(turns.carry_out(change, {"remove": "a", "timeout_s": 60}))
    await begun.wait()
    refused = await turns.carry_out(change, {"remove": "b", "timeout_s": 0.01})
    assert refused["status"] == 409
    assert "not carried out" in refused["error"]
    third = asyncio.create_task(turns.carry_out(change, {"remove": "c", "timeout_s": 60}))
    may_end.set()
    assert (await first)["left_s"] <= 60
    assert (await third)["left_s"] < 60, "the wait for the turn is part of the client's time"
    assert done == ["a", "c"]


@pytest.mark.parametrize("kind", ["add_key", "remove_key", "count"])
async def test_order_of_a_key_or_a_count_waits_for_no_adapter(kind: str) -> None:
    turns, begun, may_end = ChangeTurns(), asyncio.Event(), asyncio.Event()

    async def change(order: Mapping[str, Any]) -> dict[str, Any]:
        if "remove" in order:
            begun.set()
            await may_end.wait()
        return {"done": kind}

    adapter = asyncio.create_task(turns.carry_out(change, {"remove": "a", "timeout_s": 60}))
    await begun.wait()
    found = await turns.carry_out(change, {kind: "x", "timeout_s": 0.01})
    may_end.set()
    await adapter
    assert found == {"done": kind}


async def test_a_token_that_cannot_be_read_is_the_answer_to_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def report() -> Any:
        raise AssertionError("nothing is asked without the token")

    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path))  # a folder, which cannot be read
    found = await carry_out(report, {"remove": "a", "timeout_s": 1}, "http://127.0.0.1:1")
    assert found["status"] == 503
    assert str(tmp_path) in found["error"]
    assert found["hint"]


async def test_a_controller_that_is_late_is_not_called_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        """A controller's handle whose answers never come."""

        change_fleet = report = property(lambda self: self)

        def remote(self, *args: object) -> asyncio.Future[Any]:
            return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(answers, "_CHANGE_GRACE_S", 0.0)
    monkeypatch.setattr(answers, "_controller", Silent)
    found = await Answers("n", {}).change_fleet({"remove": "a", "timeout_s": 0.01})
    assert (found["status"], found["error"]) == (504, "the fleet's controller did not confirm the change in time")


async def test_an_order_that_gets_no_turn_to_write_in_its_time_is_refused_and_not_made_later() -> None:
    order = {"count": {"model": "m", "verb": "pause", "replicas": None, "by": "x"}, "timeout_s": 0.05}
    with writing():
        found = await asyncio.wait_for(carry_out(None, order, "http://127.0.0.1:9"), 30)  # type: ignore[arg-type]
    assert found["status"] == 503 and "other commands have been changing this fleet" in found["error"]
