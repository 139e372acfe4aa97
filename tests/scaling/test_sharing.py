"""Models on the same accelerators: minimums first, then needs, then what is kept; priority and weight."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longboat.core.scaling import FixedTarget, ModelObservation, OngoingTarget, ScaledModel
from longboat.scaling.scaler import Scaler
from longboat.scaling.sharing import Claim, shared


def claim(
    name: str, *, least: int = 1, needed: int = 1, wanted: int = 1, priority: int = 1, weight: float = 1.0,
    takes: float = 1.0,
) -> Claim:  # fmt: skip
    model = ScaledModel(name=name, target=FixedTarget(), priority=priority, weight=weight, takes={"H100": takes})
    return Claim(model=model, least=least, needed=needed, wanted=wanted)


def test_without_scarcity_all_get_what_they_want() -> None:
    claims = [claim("a", wanted=5), claim("b", wanted=7)]
    assert shared(claims, {}) == {"a": 5, "b": 7}
    assert shared(claims, {"H100": 12.0}) == {"a": 5, "b": 7}


def test_model_takes_the_idle_replica_of_another_and_leaves_its_minimum() -> None:
    busy, idle = claim("busy", needed=2, wanted=2), claim("idle", needed=1, wanted=2)
    assert shared([idle, busy], {"H100": 3.0}) == {"idle": 1, "busy": 2}
    assert shared([claim("idle", least=2, needed=1, wanted=2), busy], {"H100": 3.0}) == {"idle": 2, "busy": 1}


def test_model_without_a_minimum_gives_all_of_its_slots() -> None:
    claims = [claim("asleep", least=0, needed=0, wanted=0), claim("busy", needed=2, wanted=2)]
    assert shared(claims, {"H100": 2.0}) == {"asleep": 0, "busy": 2}


def test_priority_goes_first_and_weights_divide_what_is_left() -> None:
    first, other = claim("first", needed=6, wanted=6, priority=0), claim("other", needed=6, wanted=6)
    assert shared([other, first], {"H100": 8.0}) == {"other": 2, "first": 6}
    heavy, light = claim("heavy", needed=9, wanted=9, weight=2.0), claim("light", needed=9, wanted=9)
    assert shared([light, heavy], {"H100": 9.0}) == {"light": 3, "heavy": 6}


def test_small_replica_fits_where_a_large_one_does_not() -> None:
    claims = [claim("large", needed=2, wanted=2, takes=4.0), claim("small", needed=3, wanted=3)]
    assert shared(claims, {"H100": 7.0}) == {"large": 1, "small": 3}


CLAIMS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 9), st.integers(0, 2), st.floats(0.5, 4.0)),
    min_size=1,
    max_size=5,
)


@given(CLAIMS, st.integers(0, 20))
def test_division_never_exceeds_the_room_nor_what_is_wanted(
    rows: list[tuple[int, int, int, int, float]], room: int
) -> None:
    claims = [
        claim(f"m{at}", least=least, needed=needed, wanted=max(least, needed, wanted), priority=priority, weight=weight)
        for at, (least, needed, wanted, priority, weight) in enumerate(rows)
    ]
    got = shared(claims, {"H100": float(room)})
    assert sum(got.values()) == min(room, sum(one.wanted for one in claims))
    assert all(0 <= got[one.model.name] <= one.wanted for one in claims)
    if sum(one.least for one in claims) <= room:
        assert all(got[one.model.name] >= min(one.least, one.wanted) for one in claims)


def test_scaler_says_who_is_short() -> None:
    target = OngoingTarget(target_ongoing_requests=1, upscale_delay_s=0)
    models = [
        ScaledModel(name=name, target=target, min_replicas=1, max_replicas=4, takes={"slot": 1.0})
        for name in ("one", "two")
    ]
    scaler = Scaler(models)
    for at in range(3):
        scaler.observe(at, [ModelObservation(model="one", running=4, ready=1), ModelObservation(model="two", ready=1)])
        one, two = scaler.decide(at, {"slot": 2.0})
    assert (one.replicas, two.replicas) == (1, 1)
    assert "4 were wanted, and there is room for 1" in one.reason
    one, two = scaler.decide(3, {"slot": 4.0})
    assert (one.replicas, two.replicas) == (3, 1)
