"""Tests of the sums of shapes and of the sizes of caches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.shape_builders import make_layer, make_shape
from longboat.catalog.shape.cache import NO_CACHE, Cache
from longboat.catalog.shape.model_shape import Layer
from longboat.catalog.shape.weight import Weight

FULL = Cache(kind="full", num_kv_heads=8, key_dim=128, value_dim=128)
CACHES = (
    FULL,
    NO_CACHE,
    Cache(kind="window", num_kv_heads=8, key_dim=64, value_dim=64, window_tokens=128),
    Cache(kind="latent", latent_dim=576, index_dim=128, top_k_tokens=2048),
    Cache(kind="state", state_bytes=2_146_304, num_state_heads=32),
    Cache(kind="compressed", latent_dim=512, window_tokens=128, ratio=4, index_dim=128, state_bytes=32_768),
    Cache(kind="compressed", latent_dim=512, window_tokens=128),
)


def test_parameters_and_bytes_add_up() -> None:
    shape = make_shape()
    layer = shape.layers[0]
    assert layer.num_params == 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert shape.num_params == 4 * layer.num_params + 2 * 1024 * 64 + 64
    assert shape.weight_bytes == shape.file_bytes == 2 * shape.num_params
    assert shape.num_active_params == shape.num_params


def test_equal_layers_are_one_object() -> None:
    assert len({id(layer) for layer in make_shape().layers}) == 1


def test_tied_head_counts_once() -> None:
    tied, untied = make_shape(tied=True), make_shape()
    assert tied.tied
    assert not untied.tied
    assert untied.num_params - tied.num_params == 1024 * 64


def test_only_chosen_experts_are_active() -> None:
    experts = Weight(name="experts.down", part="experts", rows=64, columns=32, count=8, shard="in")
    router = Weight(name="router", part="router", rows=8, columns=64)
    layer = Layer(weights=(experts, router), num_experts=8, experts_per_token=2)
    assert layer.num_params == 8 * 64 * 32 + 512
    assert layer.num_active_params == 2 * 64 * 32 + 512


@pytest.mark.parametrize(
    ("shard", "tensor", "expert", "params"),
    [
        ("out", 4, 1, 8 * 64 * 32 // 4),
        ("in", 4, 1, 8 * 64 * 32 // 4),
        ("replicated", 4, 1, 8 * 64 * 32),
        ("out", 4, 4, 8 * 64 * 32 // 4),
        ("out", 4, 3, 3 * 64 * 32),  # the fullest rank has three of eight experts, whole
    ],
)
def test_rank_holds_its_share_of_experts(shard: str, tensor: int, expert: int, params: int) -> None:
    weight = Weight(name="w", part="experts", rows=64, columns=32, count=8, shard=shard)  # type: ignore[arg-type]
    assert weight.rank_params(tensor=tensor, expert=expert) == params


def test_key_heads_are_copied_where_there_are_fewer_than_ranks() -> None:
    weight = Weight(name="k", part="attention", rows=512, columns=64, shard="kv_heads", units=4)
    assert [weight.rank_params(tensor=n) for n in (1, 2, 4, 8)] == [512 * 64, 256 * 64, 128 * 64, 128 * 64]


def test_vocabulary_is_padded_before_it_is_divided() -> None:
    weight = Weight(name="e", part="embedding", rows=1000, columns=8, shard="vocab")
    assert weight.rank_params() == 8000
    assert weight.rank_params(tensor=2) == 512 * 8


@given(st.integers(1, 16), st.integers(1, 16))
def test_ranks_together_hold_at_least_all(tensor: int, expert: int) -> None:
    for weight in (*make_layer().weights, Weight(name="e", part="experts", rows=8, columns=8, count=5, shard="out")):
        ranks = expert if weight.part == "experts" and expert > 1 else tensor
        assert ranks * weight.rank_params(tensor=tensor, expert=expert) >= weight.num_params
        assert weight.rank_params(tensor=tensor, expert=expert) <= weight.num_params


def test_full_cache_is_two_vectors_a_head() -> None:
    assert FULL.bytes_per_token(2) == 4096
    assert FULL.bytes_of(1000, 2) == 4_096_000
    assert [FULL.tensor_shards(n) for n in (1, 8, 16)] == [1, 8, 8]


def test_window_stops_growing() -> None:
    cache = CACHES[2]
    assert cache.bytes_of(64, 2) == 64 * 2048
    assert cache.bytes_of(5000, 2) == cache.fixed_bytes(2) == 128 * 2048
    assert cache.attended_tokens(5000) == 128


def test_latent_is_held_by_every_rank() -> None:
    cache = CACHES[3]
    assert cache.bytes_per_token(2) == 576 * 2 + 128 + 4
    assert cache.tensor_shards(8) == 1
    assert cache.attended_tokens(100_000) == 2048


def test_compressed_cache_keeps_a_window_and_one_entry_a_group() -> None:
    cache = CACHES[5]
    assert cache.bytes_of(1003, 2) == 128 * 1024 + 250 * (1024 + 132) + 32_768


@given(st.sampled_from(CACHES), st.integers(0, 300_000), st.sampled_from([1, 2]))
def test_cache_never_shrinks_with_tokens(cache: Cache, tokens: int, dtype_bytes: int) -> None:
    assert cache.bytes_of(tokens, dtype_bytes) <= cache.bytes_of(tokens + 1, dtype_bytes)


@given(st.sampled_from(CACHES), st.integers(100_000, 300_000))
def test_long_sequence_is_its_fixed_part_and_its_tokens(cache: Cache, tokens: int) -> None:
    told = cache.fixed_bytes(2) + tokens * cache.bytes_per_token(2)
    assert abs(cache.bytes_of(tokens, 2) - told) <= cache.entry_bytes(2)
