"""The bytes of the room for LoRA adapters, beside weights and cache."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longboat.builtin import describe
from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.core.plan import AdapterRoom
from longboat.planner.memory.adapter_room import adapter_bytes
from longboat.planner.memory.fit import plan_fit
from longboat.planner.memory.split_shape import Load, Split, card_of, even_stages

TINY = shape_from_config(describe("builtin:tiny").config, name="tiny")
LIBRARY = built_in_library()
ROOM = AdapterRoom(slots=8, held=20, rank=16)
# Inputs and outputs of a layer's seven matrices, and of the vocabulary.
LAYER = (128 + 256) + 2 * (128 + 128) + (256 + 128) + 3 * (128 + 384)
VOCABULARY = 2 * (4096 + 128)


def split(tensor: int = 1, pipeline: int = 1) -> Split:
    return Split(tensor=tensor, stages=even_stages(len(TINY.layers), pipeline))


def test_each_matrix_has_room_for_each_slot() -> None:
    (found,) = adapter_bytes(TINY, split(), ROOM, number_bytes=4, in_host=False)
    assert found == 8 * 16 * 4 * (4 * LAYER + VOCABULARY)


def test_a_processor_also_keeps_what_is_held() -> None:
    (card,) = adapter_bytes(TINY, split(), ROOM, number_bytes=2, in_host=False)
    (host,) = adapter_bytes(TINY, split(), ROOM, number_bytes=2, in_host=True)
    assert host * 8 == card * 28


def test_stages_hold_their_own_layers() -> None:
    found = adapter_bytes(TINY, split(pipeline=2), ROOM, number_bytes=2, in_host=False)
    assert found == (8 * 16 * 2 * (2 * LAYER + VOCABULARY // 2),) * 2


def test_tensor_parallelism_cuts_one_half_of_each_pair() -> None:
    (found,) = adapter_bytes(TINY, split(tensor=2), ROOM, number_bytes=2, in_host=False)
    cut = (128 + 128) + 2 * (128 + 64) + (128 + 128) + 2 * (128 + 192) + (192 + 128)
    assert found == 8 * 16 * 2 * (4 * cut + 2 * (2048 + 128))


@pytest.mark.parametrize(("field", "times"), [("slots", 2), ("rank", 4)])
def test_room_grows_with_slots_and_rank(field: str, times: int) -> None:
    more = replace(ROOM, **{field: getattr(ROOM, field) * times})
    one = adapter_bytes(TINY, split(), ROOM, number_bytes=2, in_host=False)
    assert adapter_bytes(TINY, split(), more, number_bytes=2, in_host=False) == (one[0] * times,)


def test_the_plan_counts_the_room_and_leaves_less_for_the_cache() -> None:
    shape = shape_of_entry(LIBRARY.models["Qwen3-8B"])
    cards = [card_of(LIBRARY.accelerators.find("A100 SXM 40GB"))]
    whole = Split(stages=(len(shape.layers),))
    load = Load(context_tokens=4096)
    plain, roomy = (plan_fit(shape, cards, whole, one) for one in (load, replace(load, adapters=ROOM)))
    taken = roomy.ranks[0].overhead["adapters"]
    assert plain.ranks[0].room_bytes - roomy.ranks[0].room_bytes == taken
    assert 0.2e9 < taken < 1e9
    assert "adapters" not in plain.ranks[0].overhead
    assert roomy.num_kv_tokens < plain.num_kv_tokens
    huge = plan_fit(shape, cards, whole, replace(load, adapters=AdapterRoom(slots=512, held=512, rank=256)))
    assert not huge.fits
