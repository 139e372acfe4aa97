"""Predicted beside measured figures reach gateways with the endpoint table."""

from __future__ import annotations

from longboat.cluster.protocol.planner_figures import with_predictions
from longboat.core.states import EngineActual, Phase, ReplicaState


def state(model: str, phase: Phase = Phase.READY, **actual: float) -> ReplicaState:
    values = {"num_tokens": 100, "concurrency": 2.0, **actual}
    return ReplicaState(
        model=model, replica=f"{model}-1", generation=1, phase=phase, actual=EngineActual(**values)
    )  # fmt: skip


def test_measured_values_stand_beside_the_counts_in_two_digits() -> None:
    found = with_predictions({"m": {"wanted": 2.0}}, {}, [state("m", itl_s=0.012345, rank_bytes=76_543_210)])
    assert found == {"m": {"wanted": 2.0, "itl_s": 0.012, "rank_bytes": 77_000_000.0}}


def test_small_changes_change_nothing() -> None:
    one, two = (with_predictions({}, {}, [state("m", itl_s=value)]) for value in (0.01234, 0.01236))
    assert one == two


def test_models_that_are_not_ready_keep_their_counts_only() -> None:
    assert with_predictions({"m": {"wanted": 1.0}}, {}, [state("m", Phase.LOADING, itl_s=0.5)]) == {
        "m": {"wanted": 1.0}
    }
