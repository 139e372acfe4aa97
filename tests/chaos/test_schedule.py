"""The schedule of faults and the requests: the same for a seed, and fair."""

from __future__ import annotations

from collections import Counter

import pytest
from chaos_suite.asks import KINDS, make_asks
from chaos_suite.fleet_play import FLEET_FAULTS, fleet_schedule
from chaos_suite.schedule import FAULTS, GATEWAY_FAULTS, Fault, make_schedule


def _schedule(seed: int, count: int = 120, engines: int = 3) -> list[Fault]:
    return make_schedule(seed, count, every_s=0.5, num_engines=engines, num_gateways=2, kinds=FAULTS)


def test_seed_decides_the_schedule() -> None:
    assert _schedule(7) == _schedule(7)
    assert _schedule(7) != _schedule(8)


def test_every_kind_of_fault_comes() -> None:
    assert {fault.kind for fault in _schedule(3, len(FAULTS))} == set(FAULTS)


def test_faults_come_one_after_the_other() -> None:
    moments = [fault.at_s for fault in _schedule(5)]
    assert moments == sorted(moments)


@pytest.mark.parametrize("engines", [2, 3, 5])
def test_one_engine_is_always_left(engines: int) -> None:
    faults = [fault for fault in _schedule(1, 200, engines) if fault.kind not in GATEWAY_FAULTS]
    for fault in faults:
        hit = {f.target for f in faults if f.at_s <= fault.at_s <= f.at_s + f.lasts_s}
        assert len(hit) < engines


def test_seed_decides_the_requests() -> None:
    assert make_asks(7, 50, "boat") == make_asks(7, 50, "boat")
    assert make_asks(7, 50, "boat") != make_asks(8, 50, "boat")


def test_every_kind_of_request_comes_as_often() -> None:
    counts = Counter(ask.kind for ask in make_asks(1, 3 * len(KINDS), "boat"))
    assert counts == dict.fromkeys(KINDS, 3)


def test_only_unseeded_requests_have_no_answer_of_their_own() -> None:
    for ask in make_asks(1, len(KINDS), "boat"):
        is_known = ask.document.get("temperature") == 0 or "seed" in ask.document
        assert ask.is_repeatable == is_known


def test_fleets_schedule_has_every_kind_and_depends_on_the_seed() -> None:
    assert {fault.kind for fault in fleet_schedule(1, len(FLEET_FAULTS), FLEET_FAULTS)} == set(FLEET_FAULTS)
    assert fleet_schedule(1, 20, FLEET_FAULTS) == fleet_schedule(1, 20, FLEET_FAULTS)
    assert fleet_schedule(1, 20, FLEET_FAULTS) != fleet_schedule(2, 20, FLEET_FAULTS)
