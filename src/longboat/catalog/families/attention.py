"""Attention with grouped heads, and multi-head latent attention with and without an indexer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from longboat.catalog.families.parts import Mixer, linear, vector
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.cache import Cache, CacheKind
from longboat.catalog.shape.weight import Weight

__all__ = (
    "HEAD_FIELDS",
    "KV_HEAD_FIELDS",
    "Heads",
    "grouped_attention",
    "heads_of",
    "latent_attention",
    "with_indexer",
)

KV_HEAD_FIELDS = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "num_attention_groups")
HEAD_FIELDS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
FALCON = ("falcon", "RefinedWeb", "RefinedWebModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads of a layer: their numbers, and the numbers in a key and in a value."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int


def heads_of(fields: Fields) -> Heads:
    """Read the heads of a model whose layers are alike, as in most configs."""
    num_heads = fields.need(*HEAD_FIELDS)
    hidden = fields.need("hidden_size", "n_embd", "d_model")
    dim = fields.count("head_dim", "attention_head_dim", "kv_channels", default=hidden // num_heads)
    kv_heads = _kv_heads(fields, num_heads)
    return Heads(
        num_heads=num_heads, num_kv_heads=kv_heads, key_dim=dim, value_dim=fields.count("v_head_dim", default=dim)
    )


def _kv_heads(fields: Fields, num_heads: int) -> int:
    """Return the heads of keys and values; the flags of some families overrule the number that they write."""
    if fields.word("model_type") in FALCON:
        single = fields.flag("multi_query") and not fields.flag("new_decoder_architecture")
        return 1 if single else fields.count(*KV_HEAD_FIELDS, default=num_heads)
    if fields.flag("multi_query_attention"):
        return fields.count("multi_query_group_num", default=1)
    return fields.count(*KV_HEAD_FIELDS, default=1 if fields.flag("multi_query") else num_heads)


def grouped_attention(
    hidden: int,
    heads: Heads,
    *,
    name: str = "self_attn",
    window_tokens: int = 0,
    bias: bool = False,
    out_bias: bool = False,
    norm_params: int = 0,
    out_gate: bool = False,
    value_weight: bool = True,
) -> Mixer:
    """Build MHA, GQA or MQA.

    window_tokens: 0: all tokens; norm_params: numbers of the norms of queries and keys
    out_gate: the query projection makes a gate for the output too; value_weight: False where values are the keys
    """
    rows = heads.num_heads * heads.key_dim * (2 if out_gate else 1)
    kv, dim = heads.num_kv_heads, heads.value_dim
    weights = [
        *linear(f"{name}.q_proj", "attention", rows, hidden, "out", units=heads.num_heads, bias=bias),
        *linear(f"{name}.k_proj", "attention", kv * heads.key_dim, hidden, "kv_heads", units=kv, bias=bias),
    ]
    if value_weight:
        weights += linear(f"{name}.v_proj", "attention", kv * dim, hidden, "kv_heads", units=kv, bias=bias)
    out = heads.num_heads * dim
    weights += linear(f"{name}.o_proj", "attention", hidden, out, "in", units=heads.num_heads, bias=out_bias)
    weights += vector(f"{name}.norms", norm_params)
    kind: CacheKind = "window" if window_tokens else "full"
    cache = Cache(kind=kind, num_kv_heads=kv, key_dim=heads.key_dim, value_dim=dim, window_tokens=window_tokens)
    return Mixer(weights=tuple(weights), cache=cache, num_heads=heads.num_heads, query_dim=heads.key_dim, value_dim=dim)


def latent_attention(fields: Fields, hidden: int, *, out_gate: bool = False) -> Mixer:
    """Build multi-head latent attention (DeepSeek-V2, section 2.1): one latent per token for all heads.

    out_gate: a further projection makes a gate for the output
    """
    heads, rank = fields.need("num_attention_heads"), fields.need("kv_lora_rank")
    no_rope, rope = fields.count("qk_nope_head_dim", default=128), fields.count("qk_rope_head_dim", default=64)
    value = fields.count("v_head_dim", default=128)
    weights = [
        *_latent_queries(hidden, heads, no_rope + rope, fields.count("q_lora_rank")),
        *linear("self_attn.kv_a_proj_with_mqa", "attention", rank + rope, hidden),
        *vector("self_attn.kv_a_layernorm", rank),
        *linear("self_attn.kv_b_proj", "attention", heads * (no_rope + value), rank, "out", units=heads),
        *linear("self_attn.o_proj", "attention", hidden, heads * value, "in", units=heads),
    ]
    if out_gate:
        weights += linear("self_attn.g_proj", "attention", heads * value, hidden, "out", units=heads)
    return Mixer(
        weights=tuple(weights),
        cache=Cache(kind="latent", latent_dim=rank + rope),
        num_heads=heads,
        query_dim=no_rope + rope,
        value_dim=value,
    )


def _latent_queries(hidden: int, heads: int, dim: int, rank: int) -> tuple[Weight, ...]:
    if not rank:
        return linear("self_attn.q_proj", "attention", heads * dim, hidden, "out", units=heads)
    return (
        *linear("self_attn.q_a_proj", "attention", rank, hidden),
        *vector("self_attn.q_a_layernorm", rank),
        *linear("self_attn.q_b_proj", "attention", heads * dim, rank, "out", units=heads),
    )


def with_indexer(mixer: Mixer, fields: Fields, hidden: int) -> Mixer:
    """Add an indexer that chooses the tokens to attend to (DeepSeek-V3.2); the indexer is not divided."""
    heads, dim = fields.need("index_n_heads"), fields.need("index_head_dim")
    weights = (
        *linear("self_attn.indexer.wq_b", "attention", heads * dim, fields.count("q_lora_rank", default=hidden)),
        *linear("self_attn.indexer.wk", "attention", dim, hidden),
        *linear("self_attn.indexer.weights_proj", "attention", heads, hidden),
        *vector("self_attn.indexer.k_norm", 2 * dim),
    )
    cache = replace(mixer.cache, index_dim=dim, num_index_heads=heads, top_k_tokens=fields.count("index_topk"))
    return replace(mixer, weights=mixer.weights + weights, cache=cache)
