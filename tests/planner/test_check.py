"""Whole fleets against whole clusters: every reason why one cannot start, before it does."""

from __future__ import annotations

from planner_builders import TINY, checked, fleet, node, nodes

from longboat.cli.plan.plan_rows import explain
from longboat.core.errors import Problem
from longboat.planner.fleet.check_fleet import FleetCheck
from longboat.planner.fleet.inputs import PathReport, PlannerInputs, PortReport


def only(plan: FleetCheck) -> Problem:
    (problem,) = plan.problems
    return problem


def test_two_replicas_of_the_smallest_model_fit_on_two_cpus() -> None:
    plan = checked(fleet("models: [{source: builtin:tiny, replicas: 2}]"), PlannerInputs(nodes=nodes(1, cpus=2)))
    assert plan.problems == ()
    assert plan.packing.placed["tiny"] == (("n1",), ("n1",))


def test_more_replicas_than_fit_are_refused_with_the_number_that_does() -> None:
    plan = checked(fleet("models: [{source: builtin:tiny, replicas: 5}]"), PlannerInputs(nodes=nodes(2, cpus=2)))
    problem = only(plan)
    assert problem.where == "models[0].replicas"
    assert "5 replicas of 1 CPU on 1 node each, 4 fit" in problem.what
    assert "the fleet takes 5 CPUs, the cluster has 4 CPUs" in problem.what
    assert problem.hint == "write replicas: 4, or add nodes"


def test_models_that_fit_alone_but_not_together_are_refused() -> None:
    text = "models: [{name: a, source: builtin:tiny, split: {tensor: 2}}, {name: b, source: builtin:tiny}]"
    problem = only(checked(fleet(text), PlannerInputs(nodes=nodes(1, cpus=2))))
    assert problem.where == "models[1].replicas"
    assert "0 fit" in problem.what
    assert "other models" in problem.hint


def test_no_replicas_take_no_room() -> None:
    plan = checked(fleet("models: [{source: builtin:tiny, replicas: 0}]"), PlannerInputs(nodes=nodes(1, cpus=1)))
    assert plan.problems == ()


def test_problems_of_all_models_come_with_their_place() -> None:
    text = """
models:
- {name: a, source: builtin:tiny, split: {tensor: 3}}
- {name: b, source: builtin:tiny, placement: {labels: {zone: x}}}
- {name: c, source: builtin:tiny, resources: {gpus: 1}}
- {name: d, source: builtin:tiny}
"""
    around = PlannerInputs(nodes=nodes(1), facts={"a": TINY})
    plan = checked(fleet(text), around)
    assert [problem.where for problem in plan.problems] == [
        "models[0].split.tensor",
        "models[1].placement.labels.zone",
        "models[2].resources.gpus",
    ]
    assert set(plan.shapes) == {"d"}


def test_cluster_without_nodes_is_one_problem() -> None:
    problem = only(checked(fleet("models: [builtin:tiny, builtin:other]"), PlannerInputs(nodes=())))
    assert (problem.where, problem.what) == ("", "the cluster has no node that is alive")


def test_platform_of_the_engine_decides_about_gpus() -> None:
    around = PlannerInputs(nodes=nodes(1), platforms={"tiny": "cuda"})
    assert only(checked(fleet("builtin:tiny"), around)).where == "models[0].resources.gpus"


def test_path_that_some_nodes_miss_is_refused_by_name() -> None:
    paths = (
        PathReport(node_id="n1", path="/models/a", exists=True),
        PathReport(node_id="n2", path="/models/a", exists=False),
    )
    problem = only(checked(fleet("/models/a"), PlannerInputs(nodes=nodes(2), paths=paths)))
    assert problem.where == "models[0].source"
    assert problem.what == "/models/a is missing on host2 (10.0.0.2)"
    assert "host1 (10.0.0.1) has it" in problem.hint


def test_path_is_needed_only_where_the_labels_allow() -> None:
    machines = (node(1, disk="fast"), node(2))
    paths = (
        PathReport(node_id="n1", path="/models/a", exists=True),
        PathReport(node_id="n2", path="/models/a", exists=False),
    )
    text = "models: [{source: /models/a, placement: {labels: {disk: fast}}}]"
    assert checked(fleet(text), PlannerInputs(nodes=machines, paths=paths)).problems == ()


def test_folder_without_a_model_is_refused_with_the_detail() -> None:
    paths = (PathReport(node_id="n1", path="/models/a", exists=True, detail="no config.json in it"),)
    problem = only(checked(fleet("/models/a"), PlannerInputs(nodes=nodes(1), paths=paths)))
    assert problem.what == "/models/a on host1 (10.0.0.1): no config.json in it"


def test_what_a_node_knows_about_a_remedy_is_its_hint() -> None:
    path, why = "s3://bucket/m", "the storage refuses to give it"
    paths = (PathReport(node_id="n1", path=path, exists=True, detail=why, hint="renew the key"),)
    problem = only(checked(fleet(path), PlannerInputs(nodes=nodes(1), paths=paths)))
    assert (problem.what, problem.hint) == (f"{path} on host1 (10.0.0.1): {why}", "renew the key")


def test_environment_that_is_missing_is_refused() -> None:
    paths = (PathReport(node_id="n1", path="/opt/vllm", exists=False),)
    text = "models: [{source: builtin:tiny, engine: {environment: /opt/vllm}}]"
    problem = only(checked(fleet(text), PlannerInputs(nodes=nodes(1), paths=paths)))
    assert problem.where == "models[0].engine.environment"


def test_unknown_builtin_is_refused_with_the_nearest() -> None:
    around = PlannerInputs(
        nodes=nodes(1), unknown_builtins=frozenset({"builtin:tinny"}), builtin_names=("tiny", "random-1m")
    )
    problem = only(checked(fleet("builtin:tinny"), around))
    assert (problem.where, problem.hint) == ("models[0].source", "write builtin:tiny")


def test_port_in_use_is_refused_with_a_free_one() -> None:
    ports = (PortReport(node_id="n2", port=8000, owner="pid 17"), PortReport(node_id="n1", port=8001))
    problem = only(checked(fleet("builtin:tiny"), PlannerInputs(nodes=nodes(2), ports=ports)))
    assert problem.where == "gateway.port"
    assert problem.what == "port 8000 is in use on host2 (10.0.0.2) (by pid 17)"
    assert "port: 8002" in problem.hint


def test_port_that_cannot_be_listened_on_is_refused_in_the_words_of_the_node() -> None:
    ports = (PortReport(node_id="n1", port=8000, problem="10.9.9.9:8000 cannot be listened on at host1"),)
    problem = only(checked(fleet("builtin:tiny"), PlannerInputs(nodes=nodes(1), ports=ports)))
    assert problem.what == "10.9.9.9:8000 cannot be listened on at host1"


def test_explain_has_a_row_for_each_model_that_has_a_shape() -> None:
    spec = fleet("models: [{source: builtin:tiny, replicas: 2, split: {tensor: 2, pipeline: 2}}, builtin:other]")
    plan = checked(spec, PlannerInputs(nodes=nodes(4, cpus=4)))
    first, second = explain(spec, plan.shapes)
    assert (first.model, first.replicas, first.engine, first.split) == ("tiny", "2", "vllm", "tensor 2, pipeline 2")
    assert (first.nodes, first.per_node) == ("2", "2 CPUs")
    assert (second.split, second.nodes, second.per_node) == ("none", "1", "1 CPU")
    assert second.reason


def test_explain_names_the_bounds_of_a_count_that_follows_the_load() -> None:
    spec = fleet("models: [{source: builtin:tiny, replicas: {min: 0, max: 8, target_ongoing_requests: 4}}]")
    (row,) = explain(spec, checked(spec, PlannerInputs(nodes=nodes(1))).shapes)
    assert row.replicas == "1 (0 to 8)"
