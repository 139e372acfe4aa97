"""Checks from a model's config whether it can be split as asked, by the rules that vLLM's layers follow."""

from __future__ import annotations

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.core.errors import Problem
from longboat.core.wanted import WantedModel
from longboat.planner.memory.divide import head_obstacle, nearest_degrees, vocab_obstacle, working_degrees
from longboat.planner.memory.engine import engine_traits

__all__ = ("check_split", "tensor_degrees")


def check_split(model: WantedModel, facts: ModelConfig | None) -> tuple[Problem, ...]:
    """Return mistakes in split and context, with paths from the model; none without facts or for the fake engine."""
    if facts is None or model.engine == "fake":
        return ()
    tensor, pipeline = model.degrees
    found = (
        _tensor(tensor, facts, whole_experts=bool(model.expert)),
        _pipeline(pipeline, facts),
        _expert(model, facts),
        _layers(model.layers, facts),
        _context(model.context, facts),
    )
    return tuple(problem for problem in found if problem is not None)


def tensor_degrees(facts: ModelConfig, *, whole_experts: bool = False) -> list[int]:
    """Return degrees of tensor parallelism up to 64 that the model can be split into.

    whole_experts: experts are divided by copies, and none is cut
    """
    return working_degrees(lambda degree: _obstacle(degree, facts, whole_experts))


def _tensor(degree: int, facts: ModelConfig, *, whole_experts: bool) -> Problem | None:
    if not (obstacle := _obstacle(degree, facts, whole_experts)):
        return None
    near = nearest_degrees(tensor_degrees(facts, whole_experts=whole_experts), degree)
    return Problem(where="split.tensor", what=obstacle, hint=f"write {near}")


def _obstacle(degree: int, facts: ModelConfig, whole_experts: bool) -> str:
    """Return what cannot be divided; ``""`` where all can."""
    kv_heads = 0 if facts.uses_latent_attention else facts.num_kv_heads or 0
    if found := head_obstacle(facts.num_heads or 0, kv_heads, degree):
        return found
    if facts.intermediate_size and not facts.num_experts and facts.intermediate_size % degree:
        return f"the MLP's width of {facts.intermediate_size} is not divisible by tensor {degree}"
    if facts.moe_intermediate_size and not whole_experts and facts.moe_intermediate_size % degree:
        return f"an expert's width of {facts.moe_intermediate_size} is not divisible by tensor {degree}"
    return vocab_obstacle(facts.vocab_size or 0, degree)


def _pipeline(stages: int, facts: ModelConfig) -> Problem | None:
    if facts.num_layers is None or stages <= facts.num_layers:
        return None
    what = f"{stages} stages are more than the model's {facts.num_layers} layers"
    return Problem(where="split.pipeline", what=what, hint=f"write at most {facts.num_layers}")


def _expert(model: WantedModel, facts: ModelConfig) -> Problem | None:
    """Return why experts cannot be divided: there are none, or one rank has them all, or they are fewer than ranks."""
    ranks = (model.data or 1) * model.degrees[0]
    if not model.expert:
        return None
    if not facts.num_experts:
        return Problem(where="split.expert", what="the model is dense: it has 0 experts", hint="write expert: false")
    if ranks == 1:
        what = "experts are divided over data x tensor ranks, and there is 1"
        return Problem(where="split.expert", what=what, hint="write data: 2 or tensor: 2, or expert: false")
    if ranks > facts.num_experts or (engine_traits(model.engine).equal_experts and facts.num_experts % ranks):
        what = f"{facts.num_experts} experts cannot be divided over {ranks} ranks (data x tensor)"
        counts = [count for count in range(1, facts.num_experts + 1) if facts.num_experts % count == 0]
        near = nearest_degrees(counts, ranks)
        return Problem(where="split.expert", what=what, hint=f"write data x tensor: {near}, or expert: false")
    return None


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
