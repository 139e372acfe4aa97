"""Tests of the bits per number of every GGUF type, against llama.cpp's documentation."""

from __future__ import annotations

import pytest

from longboat.catalog.formats.gguf_types import GGUF_TYPES, bits_of

BITS = {
    "F32": 32, "F16": 16, "BF16": 16, "F64": 64, "I8": 8, "I16": 16, "I32": 32, "I64": 64,
    "Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0, "Q8_0": 8.5, "Q8_1": 9.0,
    "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5, "Q5_K": 5.5, "Q6_K": 6.5625, "Q8_K": 9.125,
    "IQ1_S": 1.5625, "IQ1_M": 1.75, "IQ2_XXS": 2.0625, "IQ2_XS": 2.3125, "IQ2_S": 2.5625,
    "IQ3_XXS": 3.0625, "IQ3_S": 3.4375, "IQ4_NL": 4.5, "IQ4_XS": 4.25,
    "TQ1_0": 1.6875, "TQ2_0": 2.0625, "MXFP4": 4.25, "NVFP4": 4.5, "Q1_0": 1.125, "Q2_0": 2.25,
}  # fmt: skip


def test_every_type_is_tried() -> None:
    assert {kind.name for kind in GGUF_TYPES.values()} == set(BITS)


@pytest.mark.parametrize("name", BITS)
def test_type_takes_its_bits(name: str) -> None:
    assert bits_of(name) == BITS[name]
    assert bits_of(name.lower()) == BITS[name]
