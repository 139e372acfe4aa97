"""Live decisions are the twin's: what the controller saw decides the same again in a scaler that only has its looks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from longboat.cluster.counts.keeper import CountKeeper
from longboat.core.scaling import (
    Latency,
    ModelObservation,
    Objective,
    Quantiles,
    ScaledModel,
    SloTarget,
    StartingReplica,
)
from longboat.core.states import Phase, RankState, ReplicaState
from longboat.gateway.records.metrics import ITL_BOUNDS_S, REQUEST_BOUNDS_S
from longboat.scaling.scaler import Scaler

BEGIN_S = 1_000_000.0
STRICT, LAX = Objective(priority=0, ttft_ms=400.0, itl_ms=40.0), Objective(ttft_ms=8000.0, itl_ms=200.0)


def fleet(*objectives: Objective) -> list[ScaledModel]:
    """Two models on eight cards: one with the objectives, and one that goes after it."""
    return [
        ScaledModel(name="m", target=SloTarget(objectives=objectives), max_replicas=8, takes={"card": 1.0}, priority=0),
        ScaledModel(name="other", target=SloTarget(objectives=(LAX,)), max_replicas=8, takes={"card": 1.0}),
    ]


def histogram(bounds: tuple[float, ...], value_s: float, count: int) -> list[float]:
    """Buckets of a gateway, with the sum of the values."""
    at = next(number for number, bound in enumerate(bounds) if value_s <= bound)
    return [*(float(count) if number == at else 0.0 for number in range(len(bounds) + 1)), count * value_s]


def counters(at: int, *, answers: bool = False) -> dict[str, Any]:
    """What a gateway counted until a second: ten requests each second from a quarter on, twice as many from half on.

    answers: whether it knows the newest responses one by one
    """
    ended = 10 * max(0, at - 30) + 10 * max(0, at - 60)
    classes = {
        "0": {
            "ttft": histogram(REQUEST_BOUNDS_S, 0.3, ended // 5),
            "itl": histogram(ITL_BOUNDS_S, 0.03, 20 * ended),
        },
        "2": {
            "ttft": histogram(REQUEST_BOUNDS_S, 2.0, ended - ended // 5),
            "itl": histogram(ITL_BOUNDS_S, 0.03, 80 * ended),
        },
    }
    tokens = {"prompt_tokens": 900 * ended, "cached_tokens": 100 * ended, "completion_tokens": 150 * ended}
    counted = {"ended": ended, "arrived": ended + 40, "in_flight": 40, "waiting": 5, "classes": classes, **tokens}
    if answers:
        newest = [[100 + 50 * one, 20 + 9 * one, 0.1 * one, 0.002 * one] for one in range(min(ended, 32))]
        numbers = {"0": ended // 5, "2": ended}
        counted["answers"] = {"m": {name: {"number": one, "newest": newest} for name, one in numbers.items()}}
    return counted


def live(models: list[ScaledModel], *, answers: bool = False) -> tuple[dict[str, Any], list[dict[str, int]]]:
    """The looks of a controller for two minutes, as JSON has them, and the counts that it put in force."""
    keeper, in_force, counts = CountKeeper(), {"m": 1, "other": 1}, []
    keeper.take(models, {})
    keeper.found(in_force)
    for at in range(120):
        counted = counters(at, answers=answers)
        keeper.tally.hear("node", {"1": {"m": counted, "other": counted}}, float(at))
        states = [ready(model, number) for model, count in in_force.items() for number in range(count)]
        for change in keeper.look(states, BEGIN_S + at, partial=False, nodes=[{"card": 8.0}]):
            keeper.applied(change, BEGIN_S + at)
            in_force[change.model] = change.replicas
        counts.append(dict(in_force))
    return json.loads(json.dumps(keeper.history.document())), counts


def ready(model: str, number: int) -> ReplicaState:
    rank = RankState(node_rank=0, node_id="n", address="", hostname="host")
    return ReplicaState(
        model=model,
        replica=f"{model}{number}",
        generation=1,
        phase=Phase.READY,
        ranks=(rank,),
        phase_s={"loading": 5.0},
    )


def seen_again(document: dict[str, Any]) -> ModelObservation:
    """An observation from its JSON."""
    latencies = tuple(
        Latency(**{**one, **{key: Quantiles(**one[key]) if one[key] else None for key in ("ttft_ms", "itl_ms")}})
        for one in document["latencies"]
    )
    starting = tuple(StartingReplica(**one) for one in document["starting"])
    lengths = tuple(map(tuple, document["lengths"]))
    return ModelObservation(**{**document, "latencies": latencies, "starting": starting, "lengths": lengths})


@pytest.mark.parametrize("answers", [False, True], ids=["sums", "answers"])
@pytest.mark.parametrize("objectives", [(LAX,), (STRICT, LAX)], ids=["one-class", "two-classes"])
def test_twins_scaler_decides_from_the_looks_what_was_decided_live(
    objectives: tuple[Objective, ...], answers: bool
) -> None:
    models = fleet(*objectives)
    document, counts = live(models, answers=answers)
    assert document["is_whole"]
    twin = Scaler(models, counts=document["counts"])
    for look, in_force in zip(document["looks"], counts, strict=True):
        twin.observe(look["at_s"], [seen_again(one) for one in look["seen"]])
        decided = {one.model: one.replicas for one in twin.decide(look["at_s"], look["room"])}
        assert decided == look["replicas"] == in_force
    assert counts[-1]["m"] > 1, "the load asked for more"


def test_strict_objective_of_one_class_asks_for_more_and_each_class_is_judged_by_its_own() -> None:
    lax_first, strict_first = (replace(one, itl_ms=None) for one in (LAX, STRICT))
    (lax, lax_counts), (strict, strict_counts) = live(fleet(lax_first)), live(fleet(strict_first, lax_first))
    assert strict_counts[-1]["m"] > lax_counts[-1]["m"]
    late = [{one["priority"]: one["late"] for one in look["seen"][0]["latencies"]} for look in strict["looks"]]
    told = [classes for classes in late if len(classes) == 2]
    assert told
    assert all(classes[0] > 0 and classes[2] == 0 for classes in told), "0.3 s lie in a bucket that 0.4 s cut"
    assert all(one["late"] == 0 for look in lax["looks"] for one in look["seen"][0]["latencies"])


def test_scaler_knows_the_lengths_and_late_responses_that_gateways_know_one_by_one() -> None:
    (document, _) = live(fleet(STRICT, LAX), answers=True)
    seen = [look["seen"][0] for look in document["looks"] if len(look["seen"][0]["latencies"]) == 2]
    last = seen[-1]
    assert len({tuple(one) for one in last["lengths"]}) > 10
    assert {one["priority"]: (one["judged"], one["late"]) for one in last["latencies"]} == {0: (4, 4), 2: (20, 0)}
    assert all(one["itl_mean_ms"] is None and one["itl_ms"]["p50"] < 64.0 for one in last["latencies"])


def test_a_class_without_an_objective_is_late_for_none() -> None:
    (document, _) = live(fleet(replace(STRICT, itl_ms=None)))
    late = [{one["priority"]: one["late"] for one in look["seen"][0]["latencies"]} for look in document["looks"]]
    told = [classes for classes in late if len(classes) == 2]
    assert told
    assert all(classes[0] is not None and classes[2] is None for classes in told)


def test_late_first_tokens_are_not_all_that_is_late_where_other_tokens_have_a_limit() -> None:
    """Few late first tokens took the room away, and the limit between tokens was missed."""
    (document, _) = live(fleet(LAX))
    counted = {one["late"] for look in document["looks"] for one in look["seen"][0]["latencies"]}
    assert counted == {None}


def test_streams_of_which_none_ended_since_the_last_look_stop_no_decision() -> None:
    """A gateway counts the times between tokens as they pass, and the first token with the end of its response."""
    keeper = CountKeeper()
    keeper.take(fleet(LAX), {})
    keeper.found({"m": 1, "other": 1})
    states = [ready(model, 0) for model in ("m", "other")]
    for at, ended in enumerate([0, 50, 100, 100, 100]):
        classes = {
            "1": {
                "ttft": histogram(REQUEST_BOUNDS_S, 0.3, ended),
                "itl": histogram(ITL_BOUNDS_S, 0.03, 90 * (at + 1)),
            }
        }
        counted = {"ended": ended, "prompt_tokens": 900 * ended, "completion_tokens": 150 * ended, "classes": classes}
        keeper.tally.hear("node", {"1": {"m": counted}}, float(at))
        keeper.look(states, BEGIN_S + at, partial=False)
    (latency,) = keeper.history.document()["looks"][-1]["seen"][0]["latencies"]
    assert latency["ended"] == 0 and 0.0 < latency["itl_ms"]["p50"] < 60.0
    assert latency["itl_mean_ms"] == pytest.approx(30.0), "the gateway's sum says it"
