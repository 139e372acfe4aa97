"""How long a replica takes to compute a prompt: a line in few physical terms, learned from first tokens."""

from __future__ import annotations

from typing import Final

from longboat.compiled import mypyc_attr

__all__ = ("CHUNK_TOKENS", "PrefillSeed", "PrefillTime", "Work")

CHUNK_TOKENS: Final = 8192.0  # prompt tokens that an engine computes in a step, about
_TERMS: Final = 4
_FORGET: Final = 0.997  # weight that a sample keeps with each new one: about 300 samples count
_PRIOR: Final = 0.5  # weight of the seed, in samples with errors as large as their times, at first,
_PRIOR_KEEPS: Final = 0.9  # that part of it after each sample,
_PRIOR_LEFT: Final = 1e-3  # and this in the end, for terms that the samples do not tell apart
_TRUSTED: Final = 30  # samples after which a time above
_OUTLIER: Final = 3.0  # times the predicted one counts as that: the request waited for something else
_MEAN_OF: Final = 100.0  # samples
_EVERY: Final = 4  # samples between two solutions,
_LATER: Final = 16  # and between those after as many as count


class PrefillSeed:
    """What is known before the first sample, by the planner's prediction or by default."""

    __slots__ = ("request_s", "resident_s", "token_context_s", "token_s")

    def __init__(
        self, *, token_s: float = 5e-5, request_s: float = 0.01, token_context_s: float = 0.0,
        resident_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.request_s = request_s  # of each request, beside its tokens
        self.token_s = token_s  # of each uncached prompt token
        self.token_context_s = token_context_s  # of each uncached token and token of context before it (attention)
        self.resident_s = resident_s  # of each step of it and token that running streams hold


@mypyc_attr(acyclic=True)
class Work:
    """What one or more prefills have to compute, in the terms of the line."""

    __slots__ = ("context", "requests", "resident", "resident_tokens", "tokens")

    def __init__(self, tokens: int = 0, prompt_tokens: int = 0, resident_tokens: int = 0) -> None:
        self.requests = 1.0
        self.resident_tokens = float(resident_tokens)
        self.tokens = float(tokens)
        self.context = tokens * (prompt_tokens - tokens * 0.5)  # sum over the tokens of what lies before each
        self.resident = (1.0 + tokens / CHUNK_TOKENS) * resident_tokens

    def add(self, other: Work, *, same_step: bool) -> None:
        """Add another's work: what a request costs beside its tokens is its steps, which it may share."""
        self.tokens += other.tokens
        self.context += other.context
        self.resident += other.resident
        if same_step:
            self.resident -= other.resident_tokens
        else:
            self.requests += other.requests


class _Sum:
    """A number that compiled code changes in place: an item of a list of numbers would be made each time."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class PrefillTime:
    """Seconds of a prefill at the mean replica of a model.

    The coefficients are a least-squares fit with forgetting. Errors count in proportion to the time plus the mean
    time: long prompts do not drown short ones, and the ends of steps that short ones wait for do not drown long ones.
    The seed counts as a few samples. No coefficient is ever negative.
    """

    def __init__(self, seed: PrefillSeed) -> None:
        self.request_s = seed.request_s
        self.token_s = seed.token_s
        self.token_context_s = seed.token_context_s
        self.resident_s = seed.resident_s
        self.samples = 0
        self._prior = _PRIOR
        self._mean_s = 0.0  # of the times of late
        self._seed = [seed.request_s, seed.token_s, seed.token_context_s, seed.resident_s]
        self._matrix = [[_Sum() for _ in range(at + 1)] for at in range(_TERMS)]  # symmetric: its lower half
        self._vector = [_Sum() for _ in range(_TERMS)]
        self._row = [_Sum() for _ in range(_TERMS)]  # terms of the sample that is being taken, scaled and weighted
        self._scale = [1.0, 1e3, 1e7, 1e5]  # usual sizes of the terms, for a well-conditioned matrix

    def seconds(self, work: Work) -> float:
        """Return how long it takes."""
        return (
            work.requests * self.request_s
            + work.tokens * self.token_s
            + work.context * self.token_context_s
            + work.resident * self.resident_s
        )

    def learn(self, work: Work, seconds: float) -> None:
        """Take a measured time."""
        predicted_s = self.seconds(work)
        if self.samples > _TRUSTED:
            seconds = min(seconds, _OUTLIER * predicted_s)
        self._mean_s += (seconds - self._mean_s) / min(self.samples + 1.0, _MEAN_OF)
        weight = 1.0 / max(0.5 * (predicted_s + seconds) + self._mean_s, 1e-4)
        row, scale = self._row, self._scale
        row[0].value = work.requests / scale[0] * weight
        row[1].value = work.tokens / scale[1] * weight
        row[2].value = work.context / scale[2] * weight
        row[3].value = work.resident / scale[3] * weight
        target = seconds * weight
        for at in range(_TERMS):
            value = row[at].value
            for other, held in enumerate(self._matrix[at]):
                held.value = held.value * _FORGET + value * row[other].value
            held = self._vector[at]
            held.value = held.value * _FORGET + value * target
        self.samples += 1
        self._prior = max(_PRIOR_LEFT, self._prior * _PRIOR_KEEPS)
        if self.samples % (_EVERY if self.samples < _TRUSTED else _LATER) == 0 or self.samples < _EVERY:
            self._solve()

    def _solve(self) -> None:
        """Fit the coefficients; those that come out negative are taken as zero, and the rest is fitted again."""
        free = [True] * _TERMS
        for _ in range(_TERMS):
            found = self._fit(free)
            worst = min(range(_TERMS), key=lambda at: found[at] if free[at] else 0.0)
            if found[worst] >= 0 or not free[worst]:
                break
            free[worst] = False
        found = [max(0.0, found[at]) / self._scale[at] for at in range(_TERMS)]
        self.request_s, self.token_s, self.token_context_s, self.resident_s = found

    def _fit(self, free: list[bool]) -> list[float]:
        """Solve the normal equations, with the seed as a prior, for the coefficients that are free."""
        rows: list[list[float]] = []
        for at in range(_TERMS):
            if free[at]:
                scaled = self._seed[at] * self._scale[at]
                strength = self._prior / max(scaled * scaled, 1e-4)
                row = [self._product(at, other) if free[other] else 0.0 for other in range(_TERMS)]
                row[at] += strength
                row.append(self._vector[at].value + strength * scaled)
            else:
                row = [1.0 if other == at else 0.0 for other in range(_TERMS + 1)]
            rows.append(row)
        return _eliminate(rows)

    def _product(self, at: int, other: int) -> float:
        """Return the sum over the samples of the product of two terms."""
        return self._matrix[max(at, other)][min(at, other)].value


def _eliminate(rows: list[list[float]]) -> list[float]:
    """Solve a symmetric, positive definite system by Gaussian elimination; each row ends with its right side."""
    count = len(rows)
    for at in range(count):
        for below in range(at + 1, count):
            ratio = rows[below][at] / rows[at][at]
            for column in range(at, count + 1):
                rows[below][column] -= ratio * rows[at][column]
    found = [0.0] * count
    for at in range(count - 1, -1, -1):
        rest = rows[at][count]
        for column in range(at + 1, count):
            rest -= rows[at][column] * found[column]
        found[at] = rest / rows[at][at]
    return found
