"""Tests that a model's name and its config are compared."""

from __future__ import annotations

import pytest

from catalog.test_hf_shape import DENSE
from longboat.catalog.readers.config_and_tensors import shape_from_both
from longboat.catalog.shape.named_size import named_params


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("01-ai/Yi-34B", 34e9),
        ("Mixtral-8x7B-v0.1", 56e9),
        ("Qwen3-235B-A22B-FP8", 235e9),
        ("pythia-410m", 410e6),
        ("gpt-j-6b", 6e9),
        ("Llama-4-Scout-17B-16E", 0),
        ("Qwen3-32B-4bit", 32e9),
        ("my-model", 0),
    ],
)
def test_the_size_in_a_name_is_understood(name: str, params: float) -> None:
    assert named_params(name)[0] == params


def test_a_name_that_says_more_is_planned_with_and_said() -> None:
    shape = shape_from_both(DENSE, None, "acme/Boat-7B", ())
    assert shape.num_loaded_params == pytest.approx(7e9, rel=0.01)
    assert "the name says 7 billion parameters, and config.json describes 0.596" in shape.estimate[0]


def test_a_name_that_says_less_changes_no_count() -> None:
    shape = shape_from_both(DENSE, None, "acme/Boat-0.1B", ())
    assert shape.num_loaded_params == shape_from_both(DENSE, None, "acme/Boat-0.6B", ()).num_loaded_params
    assert "the name says 0.1 billion" in shape.estimate[0]


def test_a_name_that_agrees_says_nothing() -> None:
    assert shape_from_both(DENSE, None, "acme/Boat-0.6B", ()).estimate == ()
