"""Updates: when they are done, when they go on without room, when they are taken back; and what is then deployed."""

from __future__ import annotations

from typing import Any

from longboat.cluster.fleet.rollout_values import document_after, with_rollouts
from longboat.cluster.fleet.rollouts import FAILURES, PLACE_S, SERVED_S, Rollouts, Step, StepKind, read_rollouts
from longboat.cluster.fleet.serve_config import ShapedModel, digests_in, serve_document
from longboat.cluster.protocol.messages import Announcement
from longboat.cluster.protocol.names import model_app_name
from longboat.core.plan import GangShape, RankResources
from longboat.core.states import Phase, ReplicaState
from longboat.spec.files.load import load_fleet

VALUES = {
    "updates": {"m": {"replicas": 2, "ready_s": 100.0}},
    "rollouts": {"m": {"digest": "new", "previous": {}, "surge": True}},
}


def state(replica: str, phase: Phase = Phase.READY, digest: str = "new") -> ReplicaState:
    return ReplicaState(model="m", replica=replica, generation=1, phase=phase, digest=digest, detail="no such flag")


def started() -> Rollouts:
    rollouts = Rollouts()
    rollouts.take(read_rollouts(VALUES), 0.0)
    return rollouts


def kinds(rollouts: Rollouts, now_s: float, *states: ReplicaState) -> list[StepKind]:
    return [step.kind for step in rollouts.steps(states, now_s)]


OLD = (state("a", digest="old"), state("b", digest="old"))


def test_an_update_is_done_when_only_new_replicas_are_left() -> None:
    new = (state("c"), state("d"))
    assert kinds(started(), 1.0, *new, state("a", Phase.DRAINING, "old")) == []
    assert kinds(started(), 1.0, *new, state("a", Phase.GONE, "old")) == [StepKind.DONE]


def test_an_update_whose_replicas_fail_is_taken_back_with_the_reason() -> None:
    rollouts = started()
    for number in range(FAILURES):
        assert kinds(rollouts, 1.0, *OLD) == []
        rollouts.hear(
            Announcement(state=state(f"c{number}", Phase.FAILED), slot=0, log_tail=("error: --nonsense", "")), 1.0
        )
        rollouts.hear(Announcement(state=state(f"c{number}", Phase.FAILED), slot=0), 1.0)
    (step,) = rollouts.steps(OLD, 1.0)
    assert (step.kind, step.model, step.digest) == (StepKind.TAKE_BACK, "m", "new")
    assert "no such flag" in step.why


def test_replicas_that_served_and_are_lost_later_take_nothing_back() -> None:
    rollouts = started()
    for number, failed_s in enumerate((3600.0, 5000.0, 7000.0)):
        rollouts.hear(Announcement(state=state(f"c{number}"), slot=0), 10.0)
        rollouts.hear(Announcement(state=state(f"c{number}", Phase.FAILED), slot=0), failed_s)
    assert kinds(rollouts, 20.0, *OLD) == []


def test_replicas_that_fail_as_soon_as_they_serve_take_the_update_back() -> None:
    rollouts = started()
    for number in range(FAILURES):
        rollouts.hear(Announcement(state=state(f"c{number}"), slot=0), 10.0)
        rollouts.hear(Announcement(state=state(f"c{number}", Phase.FAILED), slot=0), 10.0 + SERVED_S / 2)
    assert kinds(rollouts, 50.0, *OLD) == [StepKind.TAKE_BACK]


def test_an_update_of_all_replicas_that_have_room_is_done() -> None:
    rollouts = started()
    assert kinds(rollouts, 50.0, state("c")) == []
    assert kinds(rollouts, 79.0, state("c")) == [], "the second one may still find a place"
    assert kinds(rollouts, 151.0, state("c"), state("d", Phase.LOADING)) == [StepKind.TAKE_BACK]
    assert kinds(rollouts, 151.0, state("c"), state("a", Phase.GONE, "old")) == [StepKind.DONE]


def test_an_update_with_a_failure_is_not_done_for_want_of_places() -> None:
    rollouts = started()
    assert kinds(rollouts, 50.0, state("c")) == []
    rollouts.hear(Announcement(state=state("d", Phase.FAILED), slot=0), 60.0)
    assert kinds(rollouts, 151.0, state("c"), state("d", Phase.FAILED)) == [StepKind.TAKE_BACK]


def test_an_update_waits_for_old_replicas_that_drain_and_for_what_gets_their_places() -> None:
    rollouts = started()
    leaving, gone = state("a", Phase.DRAINING, "old"), state("a", Phase.GONE, "old")
    assert kinds(rollouts, 50.0, state("c")) == []
    assert kinds(rollouts, 151.0, state("c"), leaving) == []
    assert kinds(rollouts, 240.0, state("c"), state("d", Phase.LOADING), gone) == []
    assert kinds(rollouts, 252.0, state("c"), state("d", Phase.LOADING), gone) == [StepKind.TAKE_BACK]


def test_failures_of_the_old_kind_take_nothing_back() -> None:
    rollouts = started()
    for number in range(FAILURES):
        rollouts.hear(Announcement(state=state(f"a{number}", Phase.FAILED, "old"), slot=0), 1.0)
    assert kinds(rollouts, 1.0, *OLD) == []


def test_an_update_that_goes_on_for_too_long_without_progress_is_taken_back() -> None:
    rollouts = started()
    loading = state("c", Phase.LOADING)
    assert kinds(rollouts, 99.0, *OLD, loading) == []
    assert kinds(rollouts, 101.0, *OLD, loading) == [StepKind.TAKE_BACK]
    assert kinds(rollouts, 102.0, *OLD, state("c")) == []
    assert kinds(rollouts, 190.0, *OLD, state("c"), state("d", Phase.LOADING)) == []


def test_without_a_place_for_one_more_it_goes_one_by_one() -> None:
    assert kinds(started(), PLACE_S - 1, *OLD) == []
    assert kinds(started(), PLACE_S + 1, *OLD) == [StepKind.ONE_BY_ONE]
    assert kinds(started(), PLACE_S + 1, *OLD, state("c", Phase.PLACING)) == []
    failing = started()
    failing.hear(Announcement(state=state("c", Phase.FAILED), slot=0), 1.0)
    assert kinds(failing, PLACE_S + 1, *OLD) == [], "more room would not help"
    leaving = state("b", Phase.DRAINING, "old")
    assert kinds(started(), PLACE_S + 1, OLD[0], leaving) == [], "its place will be free"


def fleet_document(args: str, told: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    text = f"models: [{{name: m, source: 'builtin:tiny', engine: {{kind: fake, args: [{args}]}}, replicas: 2}}]"
    fleet = load_fleet(text, "x")
    resources = RankResources(num_cpus=1.0)
    shape = GangShape(tensor=1, pipeline=1, num_nodes=1, resources=resources)
    document = serve_document(fleet, [ShapedModel(spec=fleet.models[0], shape=shape)], text)
    return with_rollouts(document, told, before, "http://dashboard")


def running(document: dict[str, Any]) -> dict[str, Any]:
    return {app["name"]: {"status": "RUNNING", "deployed_app_config": app} for app in document["applications"]}


def app_of(document: dict[str, Any]) -> dict[str, Any]:
    return next(app for app in document["applications"] if app["name"] == model_app_name("m"))


def told_by(document: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = document["applications"][0]["deployments"][0]["user_config"]
    return values


def updated() -> tuple[dict[str, Any], dict[str, Any]]:
    """The fleet before an update, and while it goes on."""
    first = fleet_document("", {}, {})
    return first, fleet_document("--x", told_by(first), {"m": app_of(first)})


def test_a_first_start_is_no_update() -> None:
    first, second = updated()
    assert told_by(first)["rollouts"] == {}
    assert list(told_by(second)["rollouts"]) == ["m"]
    assert read_rollouts(told_by(second))[0].digest == digests_in(second)["m"]


def test_taking_back_deploys_what_ran_before_and_tells_why() -> None:
    first, second = updated()
    digest = digests_in(second)["m"]
    after = document_after(running(second), Step(kind=StepKind.TAKE_BACK, model="m", digest=digest, why="it broke"))
    assert after is not None
    assert app_of(after) == app_of(first)
    values = after["applications"][-1]["deployments"][0]["user_config"]
    assert (values["rollouts"], values["taken_back"]) == ({}, {"m": [digest, "it broke"]})
    assert document_after(running(after), Step(kind=StepKind.DONE, model="m", digest=digest)) is None


def test_a_second_update_on_top_of_one_that_is_under_way_goes_back_to_what_worked() -> None:
    first, second = updated()
    third = fleet_document("--y", told_by(second), {"m": app_of(second)})
    assert told_by(third)["rollouts"]["m"]["previous"] == app_of(first)
    assert told_by(fleet_document("", told_by(second), {"m": app_of(second)}))["rollouts"] == {}


def test_one_by_one_changes_no_more_than_the_surge() -> None:
    _, second = updated()
    step = Step(kind=StepKind.ONE_BY_ONE, model="m", digest=digests_in(second)["m"])
    after = document_after(running(second), step)
    assert after is not None
    starting = running(second)
    starting[model_app_name("m")]["deployments"] = {"d": {"replicas": [{"state": "STARTING", "node_id": "n"}]}}
    assert document_after(starting, step) is None, "it has a place, and is only slow"
    assert [o["max_surge_percent"] for o in app_of(after)["deployments"]] == [0]
    assert {**app_of(after), "deployments": 0} == {**app_of(second), "deployments": 0}
    rollout = read_rollouts(after["applications"][-1]["deployments"][0]["user_config"])[0]
    assert not rollout.surge
