"""Tests of sizes and shapes of the random models."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat.builtin.shapes import SHAPES, nearest_shape, parse_size

VOCABULARY = 4096


@pytest.mark.parametrize("size", SHAPES)
def test_shape_has_about_the_parameters_of_its_name(size: str) -> None:
    ratio = SHAPES[size].num_parameters(VOCABULARY) / (parse_size(size) or 0)
    assert 0.8 < ratio < 1.2


@pytest.mark.parametrize("size", SHAPES)
def test_shape_divides_for_tensor_and_pipeline_parallel(size: str) -> None:
    shape = SHAPES[size]
    assert shape.num_heads % shape.num_kv_heads == 0
    assert shape.num_kv_heads % 4 == 0
    assert shape.num_layers % 4 == 0
    assert shape.intermediate_size % 8 == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [("10m", 10_000_000), ("1.5b", 1_500_000_000), ("250m", 250_000_000), ("70b", None), ("10", None), ("m", None)],
)
def test_size_is_read_as_parameters(text: str, count: int | None) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(("wanted", "found"), [(100_000_000, "100m"), (150_000_000, "100m"), (170_000_000, "250m")])
def test_nearest_shape_is_nearest_by_ratio(wanted: int, found: str) -> None:
    assert nearest_shape(wanted)[0] == found


def test_tensors_name_every_layer_once() -> None:
    names = [name for name, _ in SHAPES["10m"].tensors(VOCABULARY)]
    assert len(names) == len(set(names)) == 2 + 11 * SHAPES["10m"].num_layers
    assert "model.layers.7.self_attn.q_norm.weight" in names


def test_reference_page_lists_every_shape() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "builtin-models.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `random-")]
    assert len(rows) == len(SHAPES)
    for row, (size, shape) in zip(rows, SHAPES.items(), strict=True):
        assert row.startswith(f"| `random-{size}` | {shape.num_parameters(VOCABULARY):,} | {shape.num_layers} |")
