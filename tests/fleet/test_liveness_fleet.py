"""Heartbeats in a fleet: what stops, vanishes or is cut off is found and replaced; what is only slow is left alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from fleet.fleet_lab import wait_until
from fleet.liveness_lab import LivenessLab, gateway_state, liveness_lab, run_of
from netlab.lab import why_unavailable

pytestmark = [pytest.mark.ray, pytest.mark.net, pytest.mark.timeout(600)]

FAKE = "source: 'builtin:tiny', engine: {kind: fake, options: {itl_ms: 20}}, resources: {cpus: 0.1}"
MODELS = (
    f"name: split, {FAKE}, split: {{pipeline: 2}}, placement: {{nodes: 2}}",
    f"name: near, {FAKE}, placement: {{labels: {{host: a}}}}",
    f"name: far, {FAKE}, placement: {{labels: {{host: b}}}}",
)


@pytest.fixture(scope="module")
def lab() -> Iterator[LivenessLab]:
    if reason := why_unavailable():
        pytest.skip(reason)
    with liveness_lab(MODELS) as made:
        yield made


def test_status_tells_how_answers_resume_and_of_which_revision_a_replica_is(lab: LivenessLab) -> None:
    near, far = lab.ready("near"), lab.ready("far")
    assert near["revision"] == far["revision"] != ""
    assert "RESUME" in lab.fleet.must("status")


@pytest.mark.parametrize("node_rank", [0, 1])
def test_a_stopped_rank_is_found_and_its_gang_replaced(lab: LivenessLab, node_rank: int) -> None:
    victim = lab.ready("split")
    rank = victim["ranks"][node_rank]
    lab.host_of(rank).run(["kill", "-STOP", str(rank["pid"])])
    _, why = lab.lost_after(lab.hosts[0], victim, time.monotonic())
    assert f"rank {node_rank}" in why
    assert "stopped" in why
    wait_until("another gang is ready", lambda: lab.ready("split")["replica"] != victim["replica"], 120)


def test_a_cut_link_is_found_on_both_sides_and_forgotten_when_it_is_whole_again(lab: LivenessLab) -> None:
    near, far = lab.ready("near"), lab.ready("far")
    lab.lab.cut(lab.hosts[1])
    cut_s = time.monotonic()
    assert lab.lost_after(lab.hosts[0], far, cut_s)[1]
    assert lab.lost_after(lab.hosts[1], near, cut_s)[1]
    assert lab.serves(lab.hosts[0], near)
    assert lab.serves(lab.hosts[1], far)
    lab.lab.restore(lab.hosts[1])
    wait_until("they are found again", lambda: lab.serves(lab.hosts[0], far) and lab.serves(lab.hosts[1], near), 60)
    assert _names(lab, "near") == [near["replica"]]
    wait_until("the split model answers", lambda: lab.fleet.answers("split"), 180)


def test_nobody_is_lost_while_all_is_well(lab: LivenessLab) -> None:
    before = lab.ready("far")
    watched_until_s = time.monotonic() + 10.0
    while time.monotonic() < watched_until_s:
        assert not gateway_state(run_of(lab.hosts[0]))["lost"]
        time.sleep(0.2)
    assert lab.ready("far")["replica"] == before["replica"]


def _names(lab: LivenessLab, model: str) -> list[Any]:
    return [replica["replica"] for replica in lab.fleet.replicas(model)]
