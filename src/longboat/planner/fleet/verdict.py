"""Whether a layout can be started at all: refused where that is certain, doubted where only an estimate says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from longboat.core.errors import Problem
from longboat.core.wanted import WantedModel
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.fit import RankBytes, plan_fit
from longboat.planner.memory.fit_changes import nearest_changes
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.reasons import memory_settings

__all__ = ("Verdict", "judge", "smaller_settings")

GIB = 1024**3
MAX_CHANGES = 3
CACHE_FLAG = "--kv-cache-memory-bytes"
TOKENS_FLAG = "--max-total-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement about a forecast."""

    refusal: Problem | None = None  # why it cannot start (paths begin at the model); None where it can
    doubts: tuple[str, ...] = ()  # in sentences


def judge(forecast: Forecast, wanted: WantedModel) -> Verdict:
    """Judge: weights, and the cache of a context that is asked for, are certain; the rest is an estimate."""
    short = forecast.fit.shortage
    unknown = [*forecast.demand.settings.unknown, *forecast.shape.estimate[:1]]
    certain = _certain(forecast, wanted) if not unknown and forecast.layout.memory_is_reported else None
    if certain is not None:
        return Verdict(refusal=certain)
    doubts = [f"not checked: {unknown[0]} may change what it takes"] if unknown else []
    if short is not None:
        settings = smaller_settings(forecast)
        doubts.append(f"it may not fit: {short.what}{f'; {settings}' if settings else ''}")
    elif not forecast.fit.holds:
        doubts.append(_some_wait(forecast))
    return Verdict(doubts=tuple(doubts))


def smaller_settings(forecast: Forecast) -> str:
    """Return what to write so that an engine whose own settings take too much memory starts; ``""`` where none do."""
    fit = forecast.fit
    if not fit.runs:
        return ""
    smaller = plan_fit(fit.shape, forecast.cards, fit.split, replace(fit.load, as_set=False))
    if not smaller.fits:
        return ""
    words = [f'"{setting.replace(" ", "=")}"' for setting in memory_settings(replace(forecast, fit=smaller))]
    return f"write engine: {{kind: {engine_traits(forecast.engine).kind}, args: [{', '.join(words)}]}}"


def _some_wait(forecast: Forecast) -> str:
    fit = forecast.fit
    return (
        f"the cache keeps {fit.max_sequences} requests of {fit.load.context_tokens} tokens at once on each replica, "
        f"{fit.load.num_sequences} are planned: the others wait"
    )


def _certain(forecast: Forecast, wanted: WantedModel) -> Problem | None:
    fit = forecast.fit
    if not fit.ranks:
        assert fit.shortage is not None
        return Problem(where="split", what=fit.shortage.what, hint=fit.shortage.hint or "write another split")
    for rank in fit.ranks:
        if what := _no_room(forecast, wanted, rank):
            return Problem(where="split", what=what, hint=_changes(forecast))
    return _short_cache(forecast, wanted)


def _no_room(forecast: Forecast, wanted: WantedModel, rank: RankBytes) -> str:
    """Return why weights, and a cache that was asked for, exceed what the engine may have; ``""``: they do not."""
    settings, on_cpu = forecast.demand.settings, forecast.layout.on_processors
    cache = settings.cache_bytes or (rank.sequence_bytes if wanted.context else 0)
    have = rank.card.memory_bytes if on_cpu else rank.budget_bytes
    if rank.weight_bytes + cache <= have:
        return ""
    bits = " in float32" if settings.weight_bits == 32 else ""
    kept = f" and {_gib(cache)} of cache" if cache else ""
    where = "its part of the node's memory" if on_cpu else f"{rank.card.name}, {rank.budget_rule}"
    stage = f" (stage {rank.stage})" if len(forecast.layout.places) > 1 else ""
    holds = f"{_gib(rank.weight_bytes)} of weights{bits}{kept}"
    return f"each rank{stage} must hold {holds}, and has {_gib(have)} ({where})"


def _short_cache(forecast: Forecast, wanted: WantedModel) -> Problem | None:
    """Return why the engine refuses a context of which not even one request fits into its cache."""
    settings, fit = forecast.demand.settings, forecast.fit
    told, context = settings.cache_bytes, wanted.context
    if context and 0 < settings.cache_tokens < context:
        what = f"the engine is set to keep {settings.cache_tokens} tokens, fewer than one request of {context} tokens"
        hint = f"write context: {settings.cache_tokens}, or engine.args: [{TOKENS_FLAG}={context}]"
        return Problem(where="context", what=what, hint=hint)
    if not told or not context or forecast.kv_blocks is None:
        return None
    needed = max(rank.sequence_bytes for rank in fit.ranks)
    if needed <= told:
        return None
    what = (
        f"one request of {context} tokens takes {_gib(needed)} of cache on a rank, and the engine is set to keep "
        f"{_gib(told)}"
    )
    block = settings.block_tokens
    most = fit.max_context_tokens // block * block
    smaller = [f"write context: {most}"] if most else []
    room = -(-needed // (1 << 20)) << 20
    return Problem(where="context", what=what, hint=", or ".join([*smaller, f"engine.args: [{CACHE_FLAG}={room}]"]))


def _changes(forecast: Forecast) -> str:
    """Return what was tried and would fit."""
    found = list(_tried(forecast)) or ["a smaller model, or nodes with more memory"]
    return f"what would fit: {'; '.join(found[:MAX_CHANGES])}"


def _tried(forecast: Forecast) -> Iterator[str]:
    fit = forecast.fit
    alone = replace(fit, load=replace(fit.load, num_sequences=1), holds=False)
    for change in nearest_changes(alone, forecast.cards):
        if not (forecast.layout.on_processors and change.kind in ("ratio", "quantization", "kv")):
            yield change.what


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
