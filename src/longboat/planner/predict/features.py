"""From a deployment and a load to the few numbers that prediction and calibration need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.memory.engine import EngineTraits
from longboat.planner.predict.deployment import Deployment
from longboat.planner.predict.load import Load
from longboat.planner.predict.machine import Fabric
from longboat.planner.predict.terms import DEFAULTS
from longboat.planner.predict.work import Pass, work_of

__all__ = ("Features", "features_of", "hops_s")

LOGIT_BYTES = 4.0
USUAL_NUMBER_BYTES = 2.0


@dataclass(frozen=True, kw_only=True)
class Features:
    """The quantities by term, and the times that no constant changes."""

    decode: Mapping[str, float]  # of one decode step of ``running`` requests
    decode_hops_s: float  # of its hops between stages
    prompt: Mapping[str, float]  # of one prompt, from its start to its end
    prompt_busy: float  # the share of it that keeps the slowest stage busy
    prompt_hops_s: float
    running: float  # requests that decode at once; the others wait until one ends


def features_of(deployment: Deployment, load: Load, *, max_sequences: float | None = None) -> Features:
    """Return the features. max_sequences: that fit into the cache at once; None: as many as are asked for."""
    running = max(1.0, min(load.concurrency, max_sequences or load.concurrency))
    depth, overlaps = len(deployment.stages), deployment.engine.overlaps_stages
    batch = max(1.0, running / depth) if overlaps else running
    context = load.mean_prompt_tokens + load.mean_output_tokens / 2.0
    step = Pass(tokens=batch, sequences=batch, context_tokens=context, decoding=True)
    chunks = max(1.0, -(-load.computed_tokens // deployment.engine.chunk_tokens))
    tokens = load.computed_tokens / chunks
    before = load.mean_prompt_tokens - load.computed_tokens / 2.0  # each token attends to: cached ones, half of others
    chunk = _works(deployment, Pass(tokens=tokens, sequences=1.0, context_tokens=before, decoding=False))
    slowest = _slowest(chunk)
    further = [slowest] if overlaps else chunk  # what each chunk after the first one adds
    prompt = _sum([*chunk, *({name: (chunks - 1.0) * value for name, value in work.items()} for work in further)])
    hops = {"link_hop": depth - 1.0} if depth > 1 and deployment.host_calls else {}
    return Features(
        decode=_round(deployment, step, running) | {f"decode_{name}": count for name, count in hops.items()},
        decode_hops_s=_hops_s(deployment, batch, batch),
        prompt=prompt | {f"prefill_{name}": count for name, count in hops.items()},
        prompt_busy=chunks * _usual_s(slowest) / _usual_s(prompt) if overlaps else 1.0,
        prompt_hops_s=_hops_s(deployment, tokens, 1.0),
        running=running,
    )


def _round(deployment: Deployment, step: Pass, running: float) -> dict[str, float]:
    """Return the work between two tokens of a request: of all stages in turn, or of the slowest for each batch.

    There are as many batches under way as stages, or as requests where those are fewer; one where stages do not
    overlap.
    """
    stages = _works(deployment, step)
    passing = _sum(stages)
    if not deployment.engine.overlaps_stages:
        return passing
    batches, slowest = min(running, len(stages)), _slowest(stages)
    return max(passing, {name: batches * value for name, value in slowest.items()}, key=_usual_s)


def _sum(works: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for work in works:
        for name, value in work.items():
            found[name] += value
    return dict(found)


def _works(deployment: Deployment, step: Pass) -> list[dict[str, float]]:
    """Return the work of each stage; stages that are alike are counted once: deep pipelines have few sorts."""
    known: dict[tuple[object, ...], dict[str, float]] = {}
    works, last = [], len(deployment.stages) - 1
    for index, (stage, layers) in enumerate(zip(deployment.stages, deployment.counted_layers(), strict=True)):
        key = id(stage), frozenset((id(layer), count) for layer, count in layers), index == last
        if key not in known:
            known[key] = work_of(deployment, stage, layers, step, last=index == last)
        works.append(known[key])
    return works


def _slowest(works: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the work that takes longest; stages that are alike have the same one."""
    return max({id(work): work for work in works}.values(), key=_usual_s)


def _usual_s(work: Mapping[str, float]) -> float:
    """Return seconds under the default constants."""
    seconds = 0.0
    for name, value in work.items():
        seconds += DEFAULTS[name] * value
    return seconds


def hops_s(
    shape: ModelShape,
    engine: EngineTraits,
    hop: Fabric,
    hops: int,
    *,
    number_bytes: float,
    tokens: float,
    sequences: float,
) -> float:
    """Return seconds of all hops of one pass: what a token carries, and logits where the engine returns them."""
    if not hops:
        return 0.0
    carried = tokens * shape.hidden_size * engine.hop_bytes * number_bytes / USUAL_NUMBER_BYTES
    seconds = hops * (engine.hop_s + hop.latency_s / 2.0 + carried / hop.bandwidth_bytes_per_s)
    if engine.returns_logits:
        seconds += sequences * shape.vocab_size * LOGIT_BYTES / hop.bandwidth_bytes_per_s
    return seconds


def _hops_s(deployment: Deployment, tokens: float, sequences: float) -> float:
    return hops_s(
        deployment.shape,
        deployment.engine,
        deployment.hop,
        len(deployment.stages) - 1,
        number_bytes=deployment.number_bytes,
        tokens=tokens,
        sequences=sequences,
    )
