"""Log-probabilities of the fake engine: made up from prompt and position, in the shapes of both APIs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from longboat_fake.engine.generator import Job
from longboat_fake.engine.tokens import ratio_at

__all__ = ("chat_logprobs", "completion_logprobs")


def chat_logprobs(job: Job, token_ids: Sequence[int], first: int, num_top: int) -> dict[str, Any]:
    """Return ``choices[].logprobs`` of a chat completion for the tokens from position ``first`` on."""
    content = []
    for place in range(first, len(token_ids)):
        entries = [_entry(text, value) for text, value in _ranked(job, token_ids[place], place, max(1, num_top))]
        content.append({**entries[0], "top_logprobs": entries[:num_top]})
    return {"content": content}


def completion_logprobs(job: Job, token_ids: Sequence[int], first: int, num_top: int) -> dict[str, Any]:
    """Return ``choices[].logprobs`` of a completion for the tokens from position ``first`` on."""
    texts = [job.piece_at(token, place) for place, token in enumerate(token_ids)]
    offsets = [0, *accumulate(map(len, texts))]
    ranked = [dict(_ranked(job, token_ids[place], place, max(1, num_top))) for place in range(first, len(texts))]
    return {
        "text_offset": offsets[first:-1],
        "token_logprobs": [max(entries.values()) for entries in ranked],
        "tokens": texts[first:],
        "top_logprobs": ranked,
    }


def _ranked(job: Job, token: int, place: int, num: int) -> Iterator[tuple[str, float]]:
    """Yield the token that came and others that might have come, the likeliest first."""
    value = -ratio_at(job.digest, place) / 2
    for rank in range(num):
        yield job.piece_at(token, place) if rank == 0 else f" {rank}~{token}", round(value - rank, 6)


def _entry(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(text.encode())}
