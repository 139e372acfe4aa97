"""The plan of steps: what is left to do on hosts in any state, why, and that nothing is left afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from host_facts import ENGINE, TEXT, WANTED, after, bare, hosts_file, two

from longboat.hosts.plan.facts import HostFacts
from longboat.hosts.plan.steps import Kind, plan_hosts
from longboat.hosts.plan.wanted import Wanted
from longboat.hosts.remote.actions import ACTIONS
from longboat.hosts.remote.bring_up import fleet_text
from longboat.spec.files.load import read_files

BARE = [Kind.FOLDERS, Kind.UV, Kind.RELEASE, Kind.LAUNCHER, Kind.SWITCH, Kind.TOKEN, Kind.UNIT, Kind.START]


def kinds(facts: dict[str, HostFacts], wanted: Wanted = WANTED, text: str = TEXT) -> list[list[Kind]]:
    return [[step.kind for step in plan.steps] for plan in plan_hosts(hosts_file(text), facts, wanted)]


def test_bare_hosts_take_every_step() -> None:
    assert kinds(two()) == [BARE, BARE]


def test_user_units_need_lingering() -> None:
    text = TEXT.replace("sudo: true", "sudo: false")
    assert Kind.LINGER in kinds(two(), text=text)[0]
    assert Kind.LINGER not in kinds(two(lingers=True), text=text)[0]


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("sudo: true", "sudo: false")])
@pytest.mark.parametrize("wanted", [WANTED, replace(WANTED, engines=(ENGINE,), fleet="f", is_bundle=True)])
def test_second_run_has_nothing_to_do(text: str, wanted: Wanted) -> None:
    file = hosts_file(text)
    assert kinds(after(file, two(), wanted), wanted, text) == [[], []]


def test_host_that_died_half_way_takes_what_is_left() -> None:
    done = after(hosts_file(), two(), WANTED)
    cut = replace(done["two"], current="", active="", enabled=False, digests={"uv": "uv-digest"}, releases=frozenset())
    left = [step for step in BARE if step not in (Kind.FOLDERS, Kind.UV)]
    assert kinds({"one": done["one"], "two": cut}) == [[], left]


def test_another_release_is_installed_beside_the_old_one_and_the_node_restarts() -> None:
    done = after(hosts_file(), two(), WANTED)
    plans = plan_hosts(hosts_file(), done, replace(WANTED, release="bbbb", version="0.2.0"))
    for plan in plans:
        assert [step.kind for step in plan.steps] == [Kind.RELEASE, Kind.SWITCH, Kind.RESTART, Kind.TIDY]
        assert plan.steps[0].why == "0.1.0 is installed"
        assert plan.steps[2].why == "its release changed"


def test_upgrade_that_was_cut_before_a_restart_is_finished() -> None:
    wanted = replace(WANTED, release="bbbb")
    old, new = after(hosts_file(), two(), WANTED)["two"], after(hosts_file(), two(), wanted)
    assert old.manifest is not None and new["two"].manifest is not None
    for started in (old.manifest.started, ()):
        manifest = replace(new["two"].manifest, started=started)
        cut = replace(new["two"], releases=frozenset(("aaaa", "bbbb")), manifest=manifest)
        assert kinds(new | {"two": cut}, wanted) == [[], [Kind.RESTART, Kind.TIDY]]


def test_label_changes_one_unit_and_restarts_one_node() -> None:
    done = after(hosts_file(), two(), WANTED)
    labelled = TEXT.replace("[one, two]", "[one, {host: two, labels: {rack: b}}]")
    assert kinds(done, text=labelled) == [[], [Kind.UNIT, Kind.RESTART]]


@pytest.mark.parametrize("active", ["failed", "inactive", "activating"])
def test_node_that_is_stopped_or_in_a_crash_loop_is_started(active: str) -> None:
    done = after(hosts_file(), two(), WANTED)
    assert kinds(done | {"two": replace(done["two"], active=active)}) == [[], [Kind.START]]


def test_another_data_folder_is_made_before_the_unit_names_it() -> None:
    done = after(hosts_file(), two(), WANTED)
    text = f"{TEXT}folders: {{data: /srv/data}}\n"
    moved = {name: replace(facts, missing=("/srv/data",)) for name, facts in done.items()}
    steps = [Kind.FOLDERS, Kind.LAUNCHER, Kind.UNIT, Kind.RESTART]
    assert kinds(moved, text=text) == [steps, steps]
    assert plan_hosts(hosts_file(text), moved, WANTED)[1].steps[0].what == "make /srv/data"


def test_changed_fleet_is_served_by_the_head_alone() -> None:
    done = after(hosts_file(), two(), replace(WANTED, fleet="old"))
    assert kinds(done, replace(WANTED, fleet="new")) == [[Kind.FLEET], []]


def test_fleet_travels_with_the_variables_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet.yaml").write_text(
        "name: f\nmodels:\n- name: tiny\n  source: builtin:tiny\n  replicas: ${LB_TEST_NUM:-2}\n"
        "  engine: {kind: fake, env: {ONE: '${LB_TEST_ONE}', TWO: '$${TWO}'}}\n"
    )
    monkeypatch.setenv("LB_TEST_ONE", "here")
    text = fleet_text(hosts_file(f"{TEXT}fleet: fleet.yaml\n"), tmp_path)
    (model,) = read_files([("fleet.yaml", text)], folder="/", variables={}).whole().models
    assert model.engine.env == {"ONE": "here", "TWO": "${TWO}"}


def test_missing_engine_is_installed_for_the_hosts_own_platform() -> None:
    wanted = replace(WANTED, engines=(ENGINE,))
    done = after(hosts_file(), {"one": bare(1), "two": bare(2, driver="550.1", num_gpus=1)}, wanted)
    assert done["two"].engines == {"vllm-0.32.0-cuda"}
    assert kinds(done | {"one": replace(done["one"], engines=frozenset())}, wanted) == [[Kind.ENGINE], []]


def test_unit_runs_as_the_user_and_holds_no_secret() -> None:
    head, worker = plan_hosts(hosts_file(), two(), WANTED)
    assert "User=deploy" in head.unit and "ProtectSystem=full" in head.unit and "Restart=always" in head.unit
    assert "--head" in head.unit and "--storage /users/deploy/.local/share/longboat/head" in head.unit
    assert "--join 10.0.0.1:6379" in worker.unit and "--token-file" in worker.unit
    assert WANTED.token not in head.unit + worker.unit


def test_user_unit_asks_nothing_that_only_the_system_may_do() -> None:
    head = plan_hosts(hosts_file(TEXT.replace("sudo: true", "")), two(), WANTED)[0]
    assert head.layout.unit_file == "/users/deploy/.config/systemd/user/longboat-node.service"
    assert "User=" not in head.unit and "Protect" not in head.unit and "WantedBy=default.target" in head.unit


def test_every_kind_of_step_can_be_taken() -> None:
    assert list(ACTIONS) == list(Kind)
