"""Whether a model can be split as asked, from its shape alone: the rules that vLLM's layers follow."""

from __future__ import annotations

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.core.errors import Problem
from longboat.core.wanted import WantedModel

__all__ = ("check_split", "tensor_degrees")

# vLLM pads the vocabulary to a multiple of this before it divides it (vocab_parallel_embedding.py).
VOCAB_PADDING = 64
MAX_DEGREE = 64


def check_split(model: WantedModel, facts: ModelConfig | None) -> tuple[Problem, ...]:
    """Return mistakes in split and context, with paths from the model; none without facts or for the fake engine."""
    if facts is None or model.engine == "fake":
        return ()
    tensor, pipeline = model.degrees
    found = (
        _tensor(tensor, facts),
        _pipeline(pipeline, facts),
        _layers(model.layers, facts),
        _context(model.context, facts),
    )
    return tuple(problem for problem in found if problem is not None)


def tensor_degrees(facts: ModelConfig) -> list[int]:
    """Return degrees of tensor parallelism up to 64 that the model can be split into."""
    return [degree for degree in range(1, MAX_DEGREE + 1) if not _obstacle(degree, facts)]


def _tensor(degree: int, facts: ModelConfig) -> Problem | None:
    obstacle = _obstacle(degree, facts)
    if not obstacle:
        return None
    works = tensor_degrees(facts)
    below = max((other for other in works if other < degree), default=1)
    above = min((other for other in works if other > degree), default=None)
    hint = f"write {below}" + (f" or {above}" if above else "")
    return Problem(where="split.tensor", what=f"{degree} does not divide {obstacle}", hint=hint)


def _obstacle(degree: int, facts: ModelConfig) -> str:
    """Return what cannot be divided; ``""`` where all can."""
    if facts.num_heads and facts.num_heads % degree:
        return f"{facts.num_heads} attention heads"
    if not _divides_kv_heads(degree, facts):
        return f"{facts.num_kv_heads} key and value heads, nor is it a multiple of them"
    if facts.intermediate_size and not facts.num_experts and facts.intermediate_size % degree:
        return f"the MLP's width of {facts.intermediate_size}"
    if facts.moe_intermediate_size and facts.moe_intermediate_size % degree:
        return f"an expert's width of {facts.moe_intermediate_size}"
    if facts.vocab_size and _padded(facts.vocab_size) % degree:
        return f"the vocabulary of {facts.vocab_size}, padded to {_padded(facts.vocab_size)}"
    return ""


def _divides_kv_heads(degree: int, facts: ModelConfig) -> bool:
    """Return whether key and value heads are divided, or each copied to as many ranks (QKVParallelLinear)."""
    heads = facts.num_kv_heads
    return not heads or facts.uses_latent_attention or heads % degree == 0 or degree % heads == 0


def _padded(vocab_size: int) -> int:
    return -(-vocab_size // VOCAB_PADDING) * VOCAB_PADDING


def _pipeline(stages: int, facts: ModelConfig) -> Problem | None:
    if facts.num_layers is None or stages <= facts.num_layers:
        return None
    what = f"{stages} stages are more than the model's {facts.num_layers} layers"
    return Problem(where="split.pipeline", what=what, hint=f"write at most {facts.num_layers}")


def _layers(layers: tuple[int, ...], facts: ModelConfig) -> Problem | None:
    if not layers or facts.num_layers is None or sum(layers) == facts.num_layers:
        return None
    what = f"{' + '.join(map(str, layers))} are {sum(layers)} layers, the model has {facts.num_layers}"
    return Problem(where="split.layers", what=what, hint="let them add up, or leave them out")


def _context(tokens: int | None, facts: ModelConfig) -> Problem | None:
    limit = facts.max_position_tokens
    if tokens is None or limit is None or tokens <= limit:
        return None
    what = f"{tokens} tokens are more than the model's {limit}"
    return Problem(where="context", what=what, hint=f"write at most {limit}, or leave it out")
