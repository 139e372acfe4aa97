"""How many requests of given lengths a number of replicas serves within an objective: queues and steps in closed form.

A replica computes prompts in chunks beside sequences that decode. Two things make a request late: its first token comes
late, as prompts before it and its own take long; or its tokens come slowly, as the batch is large. Both are computed
over the lengths that were seen, not over their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

from longboat.core.scaling import Objective, ReplicaSpeed

__all__ = ("Mix", "heavier", "late_share", "mix_of", "replicas_for", "slower", "step_s")

_MOST_BUSY = 0.97  # part of its time that a replica can compute prompts beside decoding
_SPREAD = 2.3  # standard deviations by which batches of late requests are larger than the mean
_ROUNDS = 12
_EDGE = 1.2  # over the requests that may be late: single long prompts must not decide the number
_POINTS = 400  # of the distribution of prompts
_NEWEST = (250, 500, 1000)  # requests whose prompts may be longer than those of the sample, if it has twice as many
_TINY_S = 1e-9
_CHANCE = 2.5  # standard deviations that chance explains of what the newest prompts ask for


@dataclass(frozen=True, kw_only=True)
class Mix:
    """The lengths of requests, and what one of them costs a replica."""

    prompts: tuple[tuple[float, int], ...]  # seconds and steps of prompts alone, at even steps of their distribution
    prompt_s: float  # mean seconds of a prompt's tokens, without what each step takes
    prompt_steps: float  # mean steps over which a prompt is computed
    variation: float  # squared coefficient of variation of the prompts' seconds
    output_tokens: float  # mean
    held_tokens: float  # mean tokens in the KV cache of a sequence that decodes, without the cached part of its prompt
    cached_tokens: float  # mean of that part, which is read too; sequences may share it


def mix_of(lengths: Sequence[tuple[int, int]], speed: ReplicaSpeed, *, cached_tokens: float = 0.0) -> Mix:
    """Return the mix of a sample that is not empty, for replicas of this speed.

    lengths: tokens of prompts without their cached part, and of outputs; cached_tokens: mean of that part
    """
    count = len(lengths)
    ordered = sorted([prompt for prompt, _ in lengths])
    alone = [_prompt(tokens, speed) for tokens in ordered]
    mean_s = max(_TINY_S, sum([seconds for seconds, _ in alone]) / count)  # prompts may cost nothing: all is cached
    decoded = sum([output for _, output in lengths])
    held = sum([output * (prompt + output / 2.0) for prompt, output in lengths]) / max(1, decoded)
    return Mix(
        prompts=tuple(alone[(2 * at + 1) * count // (2 * _POINTS)] for at in range(_POINTS)),
        prompt_s=mean_s,
        prompt_steps=sum([steps for _, steps in alone]) / count,
        variation=sum([(seconds - mean_s) ** 2 for seconds, _ in alone]) / count / (mean_s * mean_s),
        output_tokens=decoded / count,
        held_tokens=held,
        cached_tokens=cached_tokens,
    )


def heavier(lengths: Sequence[tuple[int, int]], mix: Mix, speed: ReplicaSpeed, *, least: float = 0.0) -> float:
    """Return how many times the seconds of the whole sample the newest prompts take; 1 where it may be chance.

    What is well beyond chance counts nearly whole. lengths: the sample, oldest first; mix: of the sample; least:
    newest requests of which it is said
    """
    found, total_s, taken = 1.0, 0.0, 0
    for newest in (one for one in _NEWEST if least <= one <= len(lengths) / 2):
        total_s += sum([_prompt(tokens, speed)[0] for tokens, _ in lengths[-newest : len(lengths) - taken]])
        taken = newest
        ratio = total_s / newest / mix.prompt_s
        more, chance = ratio - 1.0, _CHANCE * ratio * math.sqrt(mix.variation / newest)
        if more > chance:
            found = max(found, 1.0 + more - chance * chance / more)
    return found


def _prompt(tokens: int, speed: ReplicaSpeed) -> tuple[float, int]:
    """Return the seconds of a prompt without what each step takes, and its steps."""
    steps = -(-tokens // speed.step_tokens)
    return (
        speed.prompt_base_s * steps + speed.prompt_token_s * tokens + speed.prompt_pair_s * tokens * tokens / 2.0,
        steps,
    )


def slower(speed: ReplicaSpeed, factor: float) -> ReplicaSpeed:
    """Return a speed with all its seconds times a factor."""
    seconds = {term.name: getattr(speed, term.name) * factor for term in fields(speed) if term.name.endswith("_s")}
    return replace(speed, **seconds)


def step_s(each: float, batch: float, mix: Mix, speed: ReplicaSpeed) -> float:
    """Return the seconds between tokens of a replica that gets ``each`` requests per second and decodes ``batch``."""
    return _decode_s(batch, mix, speed) / (1.0 - min(_MOST_BUSY, each * mix.prompt_s))


def replicas_for(
    rate: float, mix: Mix, speed: ReplicaSpeed, objective: Objective, *, least: int, most: int, burst: float = 1.0,
    near: int = 1,
) -> int:  # fmt: skip
    """Return the smallest number of replicas that keeps the objective; ``most`` where none does.

    Requests that neither twice nor four times as many would help are not the fault of the number: half as many as
    the objective allows may be late besides.

    rate: requests per second; burst: variance of arrivals over their mean, 1 where they come by chance; near: where
    the search begins, which makes it shorter
    """
    allowed = 1.0 - objective.percentile / 100.0

    @cache
    def late(replicas: int) -> float:
        return late_share(rate, replicas, mix, speed, objective, burst=burst)

    def is_no_help(fewer: int) -> bool:
        return late(2 * fewer) < 1.0 and late(fewer) <= _EDGE * (late(2 * fewer) + allowed / 2.0)

    def keeps(replicas: int) -> bool:
        return late(replicas) <= _EDGE * allowed or (is_no_help(replicas) and is_no_help(2 * replicas))

    low, high = max(1, least), max(1, most)
    tries = [near, near - 1]
    while low < high:
        middle = tries.pop() if tries else (low + high) // 2
        if not low <= middle < high:
            continue
        if keeps(middle):
            high = middle
        else:
            low = middle + 1
    return low


def late_share(
    rate: float, replicas: int, mix: Mix, speed: ReplicaSpeed, objective: Objective, *, burst: float = 1.0
) -> float:
    """Return the part of the requests that miss the objective."""
    each = rate / replicas
    batch, step_s = _batch(each, mix, speed)
    if math.isinf(step_s):
        return 1.0
    if objective.itl_ms is not None and step_s * 1e3 > objective.itl_ms:
        return 1.0
    if objective.ttft_ms is None:
        return 0.0
    alone_s = mix.prompt_s + mix.prompt_steps * _decode_s(batch, mix, speed)
    return _waits_too_long(each * alone_s, replicas, alone_s, batch, mix, speed, objective.ttft_ms / 1e3, burst)


def _batch(each: float, mix: Mix, speed: ReplicaSpeed) -> tuple[float, float]:
    """Return the sequences that decode at once and the time between their tokens, in a busy while.

    Endless seconds where a replica does not keep up.
    """
    busy = each * mix.prompt_s
    most = min(float(speed.max_sequences), speed.kv_tokens / max(1.0, mix.held_tokens + mix.output_tokens / 2.0))
    if busy >= _MOST_BUSY:
        return most, math.inf
    batch = 0.0
    for _ in range(_ROUNDS):
        step_s = _decode_s(batch, mix, speed) / (1.0 - busy)
        batch = each * mix.output_tokens * step_s
        if batch > most:
            return most, math.inf
    crowd = batch + _SPREAD * math.sqrt(batch)
    return batch, _decode_s(crowd, mix, speed) / (1.0 - busy)


def _decode_s(batch: float, mix: Mix, speed: ReplicaSpeed) -> float:
    return speed.base_s + batch * (speed.sequence_s + speed.kv_token_s * (mix.held_tokens + mix.cached_tokens))


def _waits_too_long(
    busy: float, replicas: int, alone_s: float, batch: float, mix: Mix, speed: ReplicaSpeed, limit_s: float,
    burst: float,
) -> float:  # fmt: skip
    """Return the part of the first tokens that come after ``limit_s``: a queue before several servers.

    busy: part of the time in which a replica computes prompts, with what decodes beside them
    """
    if busy >= _MOST_BUSY:
        return 1.0
    all_busy = busy ** (math.sqrt(2.0 * (replicas + 1)) - 1.0)
    mean_s = alone_s * (burst + mix.variation) / (2.0 * replicas * (1.0 - busy))
    decode_s = _decode_s(batch, mix, speed)
    late, exp = 0.0, math.exp
    for prompt_s, steps in mix.prompts:
        left_s = limit_s - prompt_s - steps * decode_s
        late += 1.0 if left_s <= 0.0 else all_busy * exp(-left_s / mean_s)
    return late / len(mix.prompts)
