"""The accuracy of what the index says of a replica."""

from __future__ import annotations

import pytest

from longboat.routing.prefixes.accuracy import PrefixAccuracy


def test_precision_and_recall_are_of_tokens_in_the_window() -> None:
    accuracy = PrefixAccuracy(window=3)
    assert (accuracy.snapshot().precision, accuracy.snapshot().recall) == (1.0, 1.0)
    for expected, cached in ((1000, 0), (100, 50), (100, 200), (0, 50)):
        accuracy.observe(expected, cached, 1000)
    found = accuracy.snapshot()
    assert found.precision == pytest.approx(150 / 200)
    assert found.recall == pytest.approx(150 / 300)
    assert found[:5] == (4, 1200, 300, 4000, 150)


def test_a_replica_that_disappoints_is_asked_again_once() -> None:
    accuracy = PrefixAccuracy()
    for _ in range(19):
        accuracy.observe(100, 0, 200)
    assert not accuracy.heal
    accuracy.observe(100, 0, 200)
    assert accuracy.heal
    accuracy.restart()
    assert not accuracy.heal
    for _ in range(40):
        accuracy.observe(100, 95, 200)
    assert not accuracy.heal
    assert accuracy.snapshot().requests == 60


def test_more_cached_than_expected_needs_no_healing() -> None:
    accuracy = PrefixAccuracy()
    for _ in range(50):
        accuracy.observe(0, 100, 200)
    assert not accuracy.heal
    assert accuracy.snapshot().recall == 0
