"""Tests of the reader of Prometheus text."""

from __future__ import annotations

import pytest

from longboat.engines.metrics import largest_of, read_samples, total_of


def test_sample_has_name_labels_and_value() -> None:
    (sample,) = read_samples('vllm:x{a="1",b="two \\"quoted\\", {braced}"} 3.5 1700000000\n')
    assert (sample.name, sample.value) == ("vllm:x", 3.5)
    assert sample.labels == {"a": "1", "b": 'two "quoted", {braced}'}


def test_sample_without_labels_is_read() -> None:
    (sample,) = read_samples("up 1")
    assert (sample.name, sample.labels, sample.value) == ("up", {}, 1.0)


@pytest.mark.parametrize("text", ["", "# HELP up something", "<html>not found</html>", "up", "up one"])
def test_other_lines_are_passed_over(text: str) -> None:
    assert list(read_samples(text)) == []


def test_total_adds_label_sets_of_exactly_that_name() -> None:
    samples = list(read_samples('a{e="0"} 1\na{e="1"} 2\na_count 9\n'))
    assert total_of(samples, "a") == 3.0
    assert total_of(samples, "b") is None


def test_largest_ignores_what_is_no_number() -> None:
    samples = list(read_samples('a{e="0"} 0.5\na{e="1"} NaN\na{e="2"} 0.25\n'))
    assert largest_of(samples, "a") == 0.5
    assert largest_of(samples, "b") is None
