"""How many replicas models are to have, without a cluster: what is counted, measured, asked for and decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from longboat.cli.counts.change import is_done
from longboat.cluster.counts.book import MAX_DECISIONS
from longboat.cluster.counts.by_hand import Hold, checked_hold, read_holds, values_with_hold
from longboat.cluster.counts.cold_starts import ColdStarts
from longboat.cluster.counts.keeper import Change, CountKeeper
from longboat.cluster.counts.tally import Tally, quantiles_of
from longboat.cluster.fleet.count_loop import CountLoop
from longboat.cluster.fleet.placing import Held, Placing
from longboat.cluster.fleet.serve_rest import ServeRest
from longboat.cluster.members.relay_book import order_every_s
from longboat.cluster.protocol.messages import FleetReport, ModelCount
from longboat.cluster.protocol.names import SUPERVISOR_DEPLOYMENT, model_app_name
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.scaling import FixedTarget, Objective, OngoingTarget, ReplicaSpeed, ScaledModel, SloTarget
from longboat.core.states import Phase, RankState, ReplicaState, StartTimes
from longboat.gateway.records.model_counts import counts_by_model

NOW_S = 1_000_000.0
QUICK = OngoingTarget(
    target_ongoing_requests=2,
    upscale_delay_s=0,
    downscale_delay_s=2,
    downscale_to_zero_delay_s=2,
    look_back_period_s=1,
)
ELASTIC = ScaledModel(name="e", target=QUICK, min_replicas=0, max_replicas=4, initial_replicas=1)
FIXED = ScaledModel(name="f", target=FixedTarget(), min_replicas=2, max_replicas=2, initial_replicas=2)


def replica(name: str, model: str = "e", phase: Phase = Phase.READY, **phase_s: float) -> ReplicaState:
    ranks = (RankState(node_rank=0, node_id="n", address="", hostname="host"),)
    return ReplicaState(model=model, replica=name, generation=1, phase=phase, ranks=ranks, phase_s=phase_s)


def hold_nothing(held: Mapping[str, int], bundle: Mapping[str, float]) -> Held:
    raise AssertionError(f"{held} was held")


def deaf(bundles: Sequence[Mapping[str, float]], labels: Sequence[Mapping[str, str]]) -> bool:
    """No autoscaler runs."""
    return False


class Looks:
    """A keeper whose changes are carried out at once, each look a second after the one before."""

    def __init__(self, *models: ScaledModel, **in_force: int) -> None:
        self.keeper, self.now_s = CountKeeper(), NOW_S
        self.values: dict[str, Any] = {}
        self.models, self.in_force = models, in_force
        self.keeper.take(models, self.values)
        self.keeper.found(in_force)

    def hold(self, model: str, hold: Hold) -> None:
        self.values = values_with_hold(self.values, model, hold)
        self.keeper.take(self.models, self.values)
        self.keeper.found(self.in_force)

    def look(self, *states: ReplicaState, partial: bool = False) -> list[Change]:
        self.now_s += 1.0
        changes = self.keeper.look(states, self.now_s, partial=partial)
        for change in changes:
            self.keeper.applied(change, self.now_s)
            self.in_force[change.model] = change.replicas
        return changes

    def looks(self, number: int, *states: ReplicaState) -> list[int]:
        """The counts that so many looks lead to."""
        return [change.replicas for _ in range(number) for change in self.look(*states)]


def test_an_idle_model_loses_its_last_replica_and_a_request_brings_one_back_at_once() -> None:
    looks = Looks(ELASTIC, e=1)
    assert looks.looks(4, replica("r")) == [0]
    assert not looks.keeper.asleep([replica("r")]), "a replica is ready"
    asleep = looks.keeper.asleep([replica("r", phase=Phase.DRAINING)])["e"]
    assert (asleep.paused, asleep.ordered_s) == (False, None)
    assert looks.keeper.woken(["e", "unknown"]) == ["e"]
    assert looks.keeper.woken(["e"]) == [], "no news"
    assert [c.replicas for c in looks.look()] == [1]
    assert looks.keeper.asleep([])["e"].ordered_s == looks.now_s
    assert [d["replicas"] for d in looks.keeper.book.decisions] == [0, 1]


def test_a_new_replica_is_waited_for_before_an_idle_model_sleeps() -> None:
    looks = Looks(ELASTIC, e=1)
    assert not any(looks.look(replica("r", phase=Phase.LOADING)) for _ in range(10))
    assert looks.looks(5, replica("r")) == [0]


def test_a_restarted_controller_keeps_the_counts() -> None:
    looks = Looks(ELASTIC, FIXED, e=3, f=2)
    assert not any(looks.look(partial=True) for _ in range(8)), "it has not heard the replicas"


def test_a_fixed_count_returns_where_serve_has_another() -> None:
    looks = Looks(FIXED, f=3)
    assert [(c.model, c.replicas) for c in looks.look()] == [("f", 2)]


def test_a_paused_model_is_not_woken_and_returns_to_its_count() -> None:
    looks = Looks(FIXED, f=2)
    looks.look()
    looks.hold("f", Hold(paused=True, by="root@h", since_s=5.0))
    assert [c.replicas for c in looks.look()] == [0]
    count = looks.keeper.book.counts["f"]
    assert (count.paused, count.by, count.since_s) == (True, "root@h", 5.0)
    assert count.held_s == 5.0
    assert looks.keeper.asleep([])["f"].paused
    looks.keeper.woken(["f"])
    assert looks.look() == []
    looks.hold("f", Hold())
    assert [c.replicas for c in looks.look()] == [2]
    assert (looks.keeper.book.counts["f"].by, looks.keeper.book.counts["f"].held_s) == ("file", 0.0)


def test_a_count_by_hand_holds_whatever_the_load_is() -> None:
    looks = Looks(ELASTIC, e=1)
    looks.hold("e", Hold(asked=3, by="root@h"))
    assert [c.replicas for c in looks.look(replica("r"))] == [3]
    assert not any(looks.look(replica("r")) for _ in range(5))


def test_holds_are_kept_among_the_controllers_values() -> None:
    hold = Hold(asked=3, by="root@h", since_s=1.0)
    values = values_with_hold({"fleet": "t"}, "m", hold)
    assert read_holds(values) == {"m": hold}
    assert values_with_hold(values, "m", Hold()) == {"fleet": "t", "holds": {}}


@pytest.mark.parametrize(
    ("name", "hold", "hint"),
    [
        ("x", Hold(asked=1), "models: e, f, z"),
        ("z", Hold(asked=1), "replicas: 1"),
        ("f", Hold(asked=0), "longboat pause f"),
        ("e", Hold(asked=5), "ask for 4"),
        ("f", Hold(asked=0, paused=True), "longboat pause f"),
    ],
)
def test_an_impossible_count_is_refused_with_what_works(name: str, hold: Hold, hint: str) -> None:
    none = ScaledModel(name="z", target=FixedTarget(), min_replicas=0, max_replicas=0, initial_replicas=0)
    with pytest.raises(UserInputError) as refused:
        checked_hold({"e": ELASTIC, "f": FIXED, "z": none}, name, hold)
    assert hint in str(refused.value.hint)
    assert checked_hold({"f": FIXED}, "f", Hold(asked=9)) == Hold(asked=9), "a fixed count has no bounds"


def test_load_is_the_difference_of_what_gateways_count() -> None:
    tally = Tally()
    tally.hear("one", {"1": {"m": {"ended": 10, "arrived": 12, "in_flight": 2}}}, 0.0)
    assert tally.take("m").grown == {}, "it was counted before"
    tally.hear("one", {"1": {"m": {"ended": 11, "arrived": 15, "in_flight": 4, "waiting": 1, "parked": 1}}}, 1.0)
    tally.hear("two", {"1": {}}, 1.0)
    tally.hear("two", {"1": {"m": {"ended": 1, "arrived": 1}}}, 2.0)
    found = tally.take("m")
    assert (found.grown["arrived"], found.grown["ended"], found.running, found.waiting) == (4, 2, 2, 2)
    tally.hear("one", {"1": {"m": {"ended": 1, "arrived": 2, "in_flight": 1}}}, 2.0)
    assert tally.take("m").grown == {}, "another process with the same number"
    tally.keep(["two"], 2.0, 1.0)
    assert tally.take("m").running == 0


def test_a_worker_that_misses_reports_or_starts_again_is_no_surge() -> None:
    def worker(ended: int) -> dict[str, Any]:
        return {"m": {"ended": ended, "arrived": ended + 3, "in_flight": 3}}

    tally = Tally()
    tally.hear("n", {"1": worker(750_000), "2": worker(400_000)}, 0.0)
    tally.hear("n", {"2": worker(400_010)}, 1.0)
    found = tally.take("m")
    assert (found.grown["arrived"], found.running) == (10, 6), "the silent one still has its requests"
    tally.hear("n", {"1": worker(750_020), "2": worker(400_020)}, 2.0)
    assert tally.take("m").grown["arrived"] == 30, "both worked on"
    tally.hear("n", {"2": worker(400_020), "3": worker(500_000)}, 3.0)
    assert tally.take("m").grown["arrived"] == 0, "the first report of a process says where it begins"
    tally.hear("n", {"2": worker(400_020), "3": worker(500_001)}, 8.0)
    found = tally.take("m")
    assert (found.grown["arrived"], found.running) == (1, 6), "the first process is gone"
    tally.hear("n", {"2": worker(900_000), "3": worker(900_000)}, 20.0)
    assert tally.take("m").grown == {}, "the node was silent for long"


def test_a_large_fleet_whose_nodes_report_seldom_is_counted() -> None:
    tally = Tally()
    every_s = order_every_s(1000)
    tally.keep(["n"], 0.0, every_s)
    for turn in range(3):
        tally.hear("n", {"1": {"m": {"ended": turn * 10, "arrived": turn * 10}}}, turn * every_s)
    assert tally.take("m").grown["arrived"] == 20


def test_requests_at_a_node_that_reports_no_more_ask_for_nothing() -> None:
    tally = Tally()
    tally.hear("n", {"1": {"m": {"in_flight": 60, "waiting": 50}}}, 0.0)
    tally.keep(["n"], 30.0, 1.0)
    assert tally.take("m").waiting == 50, "it may be late"
    tally.keep(["n"], 61.0, 1.0)
    found = tally.take("m")
    assert (found.waiting, found.running) == (0, 0)


def test_latencies_are_those_of_the_last_look() -> None:
    tally = Tally()
    first = {"m": {"ended": 0, "classes": {"0": {"ttft": [1, 0, 0, 0.1], "itl": [0, 0, 0, 0]}}}}
    tally.hear("one", {"1": first}, 0.0)
    second = {"m": {"ended": 2, "classes": {"0": {"ttft": [1, 10, 0, 9.1], "itl": [0, 0, 0, 0]}}}}
    tally.hear("one", {"1": second}, 1.0)
    target = SloTarget(objectives=(Objective(ttft_ms=50.0, priority=1), Objective(ttft_ms=550.0)))
    (latency,) = tally.take("m").latencies((0.1, 1.0), (0.1, 1.0), target)
    assert (latency.priority, latency.ended, latency.itl_ms) == (0, 10, None)
    assert latency.late == 5, "half of the ten that took 0.1 to 1 s"
    assert latency.ttft_ms is not None and 500 < latency.ttft_ms.p50 < 600
    assert quantiles_of([0, 0, 0, 0.0], (0.1, 1.0)) is None


def known(number: int, *answers: tuple[int, int, float, float | None]) -> dict[str, Any]:
    """A gateway's counters after some responses, with the newest of them."""
    newest = {"1": {"number": number, "newest": [list(one) for one in answers]}}
    ttft = {"ttft": [number, 0, 0, 0.1 * number], "itl": [5 * number, 0, 0, 0.1 * number]}
    return {"m": {"ended": number, "classes": {"1": ttft}, "answers": {"m": newest}}}


def test_responses_that_gateways_know_one_by_one_are_judged_by_both_limits() -> None:
    tally = Tally()
    old = (900, 150, 0.1, 0.03)
    tally.hear("one", {"1": known(4, *[old] * 4)}, 0.0)
    assert tally.take("m").answers is None, "the first report only says where a process begins"
    streams = [(100, 10, 0.1, 0.06), (200, 20, 0.9, 0.02), (300, 30, 0.9, 0.06), (400, 40, 0.1, 0.02)]
    newest = [*streams, (500, 50, 9.0, None)]
    tally.hear("one", {"1": known(9, *[old] * 4, *newest)}, 1.0)
    found = tally.take("m")
    assert found.lengths() == ((100, 10), (200, 20), (300, 30), (400, 40), (500, 50))
    target = SloTarget(objectives=(Objective(ttft_ms=500.0, itl_ms=50.0),))
    (latency,) = found.latencies((0.1, 1.0), (0.1, 1.0), target)
    assert (latency.ended, latency.judged, latency.late, latency.itl_mean_ms) == (5, 4, 3, None), "one was not streamed"
    assert latency.itl_ms is not None and latency.itl_ms.p50 == pytest.approx(60.0)
    tally.hear("one", {"1": known(9, *[old] * 4, *newest)}, 2.0)
    assert tally.take("m").lengths() == (), "none ended since"


def test_more_responses_than_a_gateway_keeps_are_known_by_their_newest() -> None:
    tally = Tally()
    tally.hear("one", {"1": known(0), "2": known(0)}, 0.0)
    many = [(at, 10, 0.1, 0.03) for at in range(32)]
    tally.hear("one", {"1": known(1000, *many), "2": known(2, (7, 7, 0.1, 0.03), (8, 8, 0.1, 0.03))}, 1.0)
    found = tally.take("m")
    (latency,) = found.latencies((0.1, 1.0), (0.1, 1.0), SloTarget(objectives=(Objective(itl_ms=20.0),)))
    assert (latency.ended, latency.judged, latency.late) == (1002, 34, 34)
    assert len(found.lengths()) == 17, "every second one: 32 at most"


def test_a_gateway_that_reports_sums_only_is_read_as_before() -> None:
    tally = Tally()
    for at, number in enumerate((0, 10)):
        counted = known(number)
        del counted["m"]["answers"]
        tally.hear("one", {"1": counted}, float(at))
    found = tally.take("m")
    (latency,) = found.latencies((0.1, 1.0), (0.1, 1.0), SloTarget(objectives=(Objective(ttft_ms=50.0),)))
    assert (found.lengths(), latency.ended, latency.judged, latency.late) == ((), 10, None, 5)
    assert latency.itl_mean_ms == pytest.approx(20.0)


def test_a_cold_start_lasts_from_the_order_to_the_first_token() -> None:
    starts = ColdStarts()
    starts.see([replica("old", loading=2.0, ready=100.0)], NOW_S)
    assert starts.newest("e") == 2.0, "its order was not seen"
    starts.ordered("e", 1, 3, NOW_S)
    assert starts.waiting("e") == (NOW_S, NOW_S)
    starts.see([replica("new", loading=2.0, ready=1.0)], NOW_S + 6.0)
    times = StartTimes(total_s=5.0, phase_s={"loading": 2.0})
    assert (starts.newest("e"), starts.by_node("e")) == (5.0, {"host": times})
    starts.ordered("e", 3, 0, NOW_S + 7.0)
    assert starts.waiting("e") == (), "the other one is not wanted any more"


def test_what_finds_no_room_is_said_with_the_nodes_that_are_missing() -> None:
    looks = Looks(replace(ELASTIC, min_replicas=3))
    looks.keeper.found({"e": 3}, {"e": [{"GPU": 1.0}, {"GPU": 1.0}]})
    node = {"GPU": 4.0, "CPU": 8.0}
    for _ in range(20):
        looks.now_s += 1.0
        looks.keeper.look([replica("r")], looks.now_s, partial=False, nodes=[node])
    count = looks.keeper.book.counts["e"]
    assert (count.wanted, count.unplaced) == (3, 2), "the minimum stays wanted"
    assert count.problem == "2 replicas find no room: needs 1 more node like the largest one"
    assert looks.keeper.book.figures()["e"]["unplaced"] == 2
    looks.now_s += 1.0
    looks.keeper.look([replica(name) for name in "rst"], looks.now_s, partial=False, nodes=[node, node])
    assert looks.keeper.book.counts["e"].problem == ""


def test_what_finds_no_room_is_said_and_asked_for_at_each_look_and_not_once_in_a_delay() -> None:
    model = replace(ELASTIC, target=replace(QUICK, upscale_delay_s=10), min_replicas=1)
    looks = Looks(model)
    looks.keeper.found({"e": 1}, {"e": [{"GPU": 1.0}]})
    found = []
    for second in range(1, 60):
        looks.keeper.tally.hear("n", {"1": {"e": {"in_flight": 8}}}, float(second))
        changes = looks.keeper.look([replica("r")], NOW_S + second, partial=False, nodes=[{"GPU": 1.0}])
        assert not changes
        found.append((looks.keeper.short, looks.keeper.book.counts["e"].problem))
    lacks = ({"e": 4}, "3 replicas find no room: needs 3 more nodes like the largest one")
    first = found.index(lacks)
    assert found == [({}, "")] * first + [lacks] * (59 - first)


def test_what_is_bound_to_a_label_that_no_node_carries_is_said_with_the_label() -> None:
    looks = Looks(replace(ELASTIC, min_replicas=1))
    bound = [{"zone": "a"}, {"zone": "a", "host": "gone"}]
    looks.keeper.found({"e": 1}, {"e": [{"GPU": 1.0}, {"GPU": 1.0}]}, {"e": bound})
    for _ in range(20):
        looks.now_s += 1.0
        looks.keeper.look([], looks.now_s, partial=False, nodes=[{"GPU": 4.0}], labels=[{"zone": "a", "host": "here"}])
    assert looks.keeper.book.counts["e"].problem == "1 replica finds no room: needs a node with host=gone"


def test_two_models_on_two_slots_go_to_the_one_with_work() -> None:
    one, two = (replace(ELASTIC, name=name, min_replicas=least, max_replicas=2) for name, least in (("a", 0), ("b", 0)))
    looks = Looks(one, two)
    looks.keeper.found({"a": 1, "b": 1}, {"a": [{"GPU": 1.0}], "b": [{"GPU": 1.0}]})
    ready = [replica("ra", "a"), replica("rb", "b")]
    looks.keeper.look(ready, looks.now_s, partial=False, nodes=[{"GPU": 2.0}])
    for second in range(1, 8):
        looks.keeper.tally.hear("n", {"1": {"a": {"in_flight": 8, "arrived": 8 * second}}}, float(second))
        changes = looks.keeper.look(ready, looks.now_s + second, partial=False, nodes=[{"GPU": 2.0}])
        for change in changes:
            looks.keeper.applied(change, looks.now_s + second)
    assert {name: count.wanted for name, count in looks.keeper.book.counts.items()} == {"a": 2, "b": 0}


def test_the_speed_that_was_planned_reaches_the_scaler() -> None:
    loop = CountLoop(lambda: (), lambda: False, lambda: None, Placing(lambda _: (), hold_nothing, deaf))
    text = "models: [{name: m, source: builtin:tiny, replicas: {min: 1, max: 2, slo: {ttft_ms: 500}}}]"
    speed = ReplicaSpeed(base_s=0.01, prompt_token_s=1e-5, max_sequences=8)
    loop.take({"text": text, "planned": {"speeds": {"m": dataclasses.asdict(speed)}}})
    assert loop.keeper.models["m"].speed == speed
    loop.take({"text": text})
    assert loop.keeper.models["m"].speed is None


def test_an_adapters_requests_are_its_models_and_refused_ones_arrived() -> None:
    def series(model: str, **outcomes: int) -> dict[str, Any]:
        tokens = dict.fromkeys(("waiting", "prompt_tokens", "completion_tokens", "cached_tokens"), 0)
        return {"model": model, "tenant": "t", "in_flight": 1, "outcomes": outcomes, "ttft": [0], "itl": [0], **tokens}

    bases = {"tuned": "base"}
    asked = [series("base", ok=2), series("tuned", ok=3, refused=4)]
    counts = counts_by_model(asked, {}, {}, lambda name: bases.get(name, name))
    assert list(counts) == ["base"]
    assert (counts["base"]["arrived"], counts["base"]["ended"], counts["base"]["in_flight"]) == (11, 5, 2)


def test_a_woken_model_does_not_sleep_before_its_first_replica_is_ready() -> None:
    looks = Looks(ELASTIC, e=0)
    looks.keeper.woken(["e"])
    assert looks.looks(1) == [1]
    assert looks.looks(10, replica("r", phase=Phase.LOADING)) == [], "the client that woke it may have left"
    assert looks.looks(5, replica("r")) == [0]
    assert looks.looks(10) == [], "no request came since"


def test_a_wait_for_accelerators_is_no_part_of_a_cold_start() -> None:
    starts = ColdStarts()
    starts.ordered("e", 0, 1, NOW_S)
    starts.see([replica("r", placing=7169.0, loading=30.0, ready=1.0)], NOW_S + 7200.0)
    assert starts.newest("e") == 45.0


def test_totals_of_changes_never_fall() -> None:
    looks = Looks(FIXED, f=2)
    looks.look()
    for number in range(2 * MAX_DECISIONS):
        looks.hold("f", Hold(asked=3 + number % 2, by="root@h"))
        looks.look()
    figures = looks.keeper.book.figures()["f"]
    assert (figures["raised"], figures["lowered"]) == (MAX_DECISIONS + 1, MAX_DECISIONS - 1)


def test_a_clock_that_is_set_changes_no_number() -> None:
    looks = Looks(ELASTIC, e=2)
    ready = [replica("r"), replica("s")]
    looks.keeper.tally.hear("n", {"1": {"e": {"in_flight": 4}}}, 0.0)
    assert looks.looks(3, *ready) == []
    for step_s in (-7200.0, 7200.0):
        looks.now_s += step_s
        looks.keeper.shift(step_s)
        assert looks.looks(3, *ready) == []
    assert looks.keeper.book.counts["e"].seen_s == looks.now_s


async def test_a_model_that_serve_refuses_to_scale_holds_up_no_other() -> None:
    class Serve:
        """Refuses one model."""

        def __init__(self) -> None:
            self.scaled: list[tuple[str, int]] = []

        def scale(self, model: str, replicas: int) -> None:
            if model == "f":
                raise ClusterError("Serve answered 412", hint="")
            self.scaled.append((model, replicas))

        def details(self) -> dict[str, Any]:
            deployments = {SUPERVISOR_DEPLOYMENT: {"target_num_replicas": 3}}
            return {"applications": {model_app_name(name): {"deployments": deployments} for name in ("f", "g")}}

    serve = Serve()
    loop = CountLoop(lambda: (), lambda: False, lambda: None, Placing(lambda _: (), hold_nothing, deaf))
    loop.keeper.take([FIXED, replace(FIXED, name="g")], {})
    loop._rest = cast("ServeRest", serve)
    await loop._turn()
    assert serve.scaled == [("g", 2)]
    assert loop.keeper.book.counts.keys() == {"f", "g"}


@pytest.mark.parametrize(
    ("held_s", "num_ready", "done"), [(NOW_S - 7200.0, 2, False), (NOW_S, 1, False), (NOW_S, 2, True)]
)
def test_a_command_waits_for_its_own_order_whatever_the_controllers_clock_says(
    held_s: float, num_ready: int, done: bool
) -> None:
    count = ModelCount(wanted=2, by="root@h", since_s=0.0, seen_s=NOW_S + 7200.0, held_s=held_s)
    replicas = (replica("r"), replica("s", phase=Phase.READY if num_ready == 2 else Phase.LOADING))
    report = FleetReport(
        fleet="", document="", at_s=0.0, replicas=replicas, gateways=(), failures={}, counts={"e": count}
    )
    assert is_done(report, "e", Hold(asked=2, since_s=NOW_S), wait=True) == done
