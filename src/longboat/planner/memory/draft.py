"""Bytes of a smaller model that proposes tokens: its weights, and its caches beside those of the model.

Source: vLLM 0.32, ``SpeculativeConfig``: the ranks of the last stage hold it, divided as the model's own layers are,
and compute it with the model's type of numbers. Its cache has a block for each block of the model's.

MTP layers and EAGLE heads use the model's embedding; with several stages they have one of their own, since the model's
is on another rank (``SpecDecodeBaseProposer._maybe_share_embeddings``). Only EAGLE 3 has an output head of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from longboat.catalog.shape.model_shape import ModelShape
from longboat.catalog.shape.weight import Weight
from longboat.planner.memory.divide import Obstacle, find_obstacle
from longboat.planner.memory.kv_room import StageCaches, stage_caches
from longboat.planner.memory.processor import computed_shape
from longboat.planner.memory.split_shape import Card, Load, Split
from longboat.planner.memory.stage_weights import stage_weights

__all__ = ("draft_bytes", "draft_cache_bytes", "draft_obstacle", "eagle_draft", "mtp_draft", "with_draft_caches")

_SHARED = ("embed_tokens", "shared_head")
"""Ends of names of weights that files of MTP layers repeat, and engines share with the model."""


def mtp_draft(shape: ModelShape) -> ModelShape | None:
    """Return the model's layers for multi-token prediction as a model that proposes; None where it has none.

    Each has the attention of the model's last layer, and its kind of cache (DeepSeek-V3, GLM-4.5, Qwen3-Next: vLLM's
    ``deepseek_mtp.py``, ``glm4_moe_mtp.py``, ``qwen3_next_mtp.py``).
    """
    weights = [weight for weight in shape.others if weight.part == "mtp" and not weight.name.endswith(_SHARED)]
    numbers = sorted({weight.name.split(".")[1] for weight in weights})
    layers = tuple(
        replace(shape.layers[-1], weights=tuple(_own(one) for one in weights if one.name.split(".")[1] == number))
        for number in numbers
    )
    return replace(shape, name="MTP", layers=layers, head=None, others=()) if layers else None


def eagle_draft(head: ModelShape, model: ModelShape, *, states: int) -> ModelShape:
    """Return an EAGLE head as a model that proposes.

    head: as its config.json reads, which leaves out the matrix that joins states
    states: hidden states of the model that it joins: 1, or 3 for EAGLE 3, whose first layer reads the embedding of a
    token beside them (vLLM's ``llama_eagle.py`` and ``llama_eagle3.py``). Each rank holds the whole joining matrix.
    """
    columns = head.hidden_size + model.hidden_size if states == 1 else states * model.hidden_size
    joining = Weight(name="fc", part="mtp", rows=head.hidden_size, columns=columns)
    first, *rest = head.layers
    weights = first.weights if states == 1 else tuple(map(_beside_embedding, first.weights))
    layers = (replace(first, weights=(joining, *weights)), *rest)
    return replace(head, layers=layers, head=head.head if states > 1 else None)


def _beside_embedding(weight: Weight) -> Weight:
    """Return a weight that reads the hidden state and an embedding at once, if it is one of those that do."""
    reads = weight.name.endswith(("q_proj", "k_proj", "v_proj"))
    return replace(weight, columns=2 * weight.columns) if reads else weight


def _own(weight: Weight) -> Weight:
    """Return a weight of an MTP layer under the part that divides it: experts apart from the rest."""
    return replace(weight, part="experts") if ".experts." in weight.name else weight


def draft_bytes(card: Card, split: Split, load: Load) -> int:
    """Return the bytes of its weights on one rank of the last stage; 0 where nothing is proposed by a model."""
    if load.draft is None:
        return 0
    draft = load.draft
    if _is_head(draft) and split.pipeline == 1:
        draft = replace(draft, embedding=None)
    (weights,) = stage_weights(computed_shape(card, load, draft), _own_split(split, load))
    return sum(weights.values())


def draft_cache_bytes(split: Split, load: Load) -> float:
    """Return the bytes of its cache for each token, on one rank."""
    return _caches(split, load).bytes_per_token() if load.draft is not None else 0.0


def draft_obstacle(split: Split, load: Load) -> Obstacle | None:
    """Return why it cannot be divided as the model is; None where it can."""
    if load.draft is None or _is_head(load.draft):
        return None
    found = find_obstacle(load.draft, tensor=split.cut, stages=_own_split(split, load).stages, expert=1)
    return None if found is None else replace(found, what=f"the draft model {load.draft.name}: {found.what}")


def with_draft_caches(caches: Sequence[StageCaches], split: Split, load: Load) -> tuple[StageCaches, ...]:
    """Return the caches of all stages with its own in the last one."""
    if load.draft is None:
        return tuple(caches)
    *others, last = caches
    return (*others, replace(last, kinds=(*last.kinds, *_caches(split, load).kinds)))


def _caches(split: Split, load: Load) -> StageCaches:
    assert load.draft is not None
    (found,) = stage_caches(load.draft, _own_split(split, load), load.kv_bytes)
    return found


def _own_split(split: Split, load: Load) -> Split:
    assert load.draft is not None
    stages = (len(load.draft.layers),)
    return replace(split, stages=stages) if _is_head(load.draft) else Split(tensor=split.cut, stages=stages)


def _is_head(draft: ModelShape) -> bool:
    """Return whether a draft is a part of the model, such as its MTP layers or an EAGLE head."""
    return any(weight.part == "mtp" for layer in draft.layers for weight in layer.weights)
