"""The gateway's private terms of a request to the fake engine: a journal, a seed, a stream carried over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from longboat.core.states import ResumeLevel
from longboat_fake.http.refusal import RefusedError
from longboat_vllm.prefixes.header import PREFIX_HEADER, NamedPrompt, read_prefix_header

__all__ = ("PRIVATE_HEADERS", "SILENCE_S", "Terms", "read_terms", "refuse_uncarried")

JOURNAL, SEED, CARRY = "x-longboat-journal", "x-longboat-seed", "x-longboat-carry"
ADAPTER = "x-longboat-adapter"
PREFIX = PREFIX_HEADER.decode()
PRIVATE_HEADERS = (JOURNAL, SEED, CARRY, ADAPTER, PREFIX)
"""Headers that only the fleet's own gateway may send."""

SILENCE_S = 1.0
"""A response with a journal reports the engine's steps after this much silence."""

_MAX_SEED = 2**31 - 1
_UNCARRIED = ("use_beam_search", "prompt_logprobs", "best_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The gateway's terms for one request."""

    has_journal: bool = False  # token ids are sent before each event
    tells_whole: bool = False  # token ids are sent before a non-streaming response
    seed: int | None = None  # used where the request names none
    # for each choice, the ids that another replica made; None: the response begins here
    priors: tuple[tuple[int, ...], ...] | None = None
    is_replayed: bool = False  # the ids are made again one step at a time, not taken over in one batch
    adapter: str = ""  # ``NAME@REVISION`` of the adapter that responds; empty: the model itself
    named: NamedPrompt | None = None  # how the gateway names the blocks of the prompt

    def name_of(self, model: str) -> str:
        """Return the name that responds: the adapter's, or that of the model."""
        return self.adapter.rpartition("@")[0] or model

    def prior(self, choice: int) -> tuple[int, ...]:
        """Return the ids of one choice. Raises RefusedError where the journal has fewer choices."""
        if self.priors is None:
            return ()
        if choice >= len(self.priors):
            raise RefusedError(400, f"the journal has {len(self.priors)} choices, but the request has more")
        return self.priors[choice]


def read_terms(headers: Mapping[str, str], body: bytes, level: ResumeLevel) -> tuple[Terms, bytes]:
    """Return the gateway's terms and the client's own body, for an engine that resumes at ``level``.

    Raises RefusedError: 409 for a way of resuming that this engine lacks, 400 for malformed input.
    """
    seed = _seed(headers.get(SEED))
    length = headers.get(CARRY)
    priors, is_replayed = None, False
    if length is not None:
        size = int(length) if length.isdecimal() else len(body) + 1
        if size > len(body):
            raise RefusedError(400, f"{CARRY}: {length!r} is not a length within the body")
        priors, is_replayed = _carried(body[:size], level)
        body = body[size:]
    if level is ResumeLevel.NONE:
        return Terms(adapter=headers.get(ADAPTER, ""), named=_named(headers.get(PREFIX))), body
    journal = headers.get(JOURNAL)
    has_journal, tells_whole = journal == "1", journal == "whole"
    terms = Terms(
        has_journal=has_journal,
        tells_whole=tells_whole,
        seed=seed,
        priors=priors,
        is_replayed=is_replayed,
        adapter=headers.get(ADAPTER, ""),
        named=_named(headers.get(PREFIX)),
    )
    return terms, body


def refuse_uncarried(body: Mapping[str, Any]) -> None:
    """Raise RefusedError (409) where no engine can take over a request of this kind."""
    for name in _UNCARRIED:
        if body.get(name):
            raise RefusedError(409, f"a response with {name} cannot be carried over", name)


def _named(text: str | None) -> NamedPrompt | None:
    try:
        return None if text is None else read_prefix_header(text.encode("latin-1"))
    except ValueError as error:
        raise RefusedError(400, f"{PREFIX}: {error}") from error


def _seed(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) > _MAX_SEED:
        raise RefusedError(400, f"{SEED}: {text!r} is not a number from 0 to {_MAX_SEED}")
    return int(text)


def _carried(data: bytes, level: ResumeLevel) -> tuple[tuple[tuple[int, ...], ...], bool]:
    try:
        asked = orjson.loads(data)
        mode, priors = asked["mode"], tuple(tuple(map(int, ids)) for ids in asked["prior"])
    except (ValueError, TypeError, KeyError) as error:
        raise RefusedError(400, f"the carried tokens are malformed: {error!r}") from error
    if mode not in ("carried", "replay"):
        raise RefusedError(400, f"mode must be carried or replay, not {mode!r}")
    if level is ResumeLevel.NONE or (level is ResumeLevel.REPLAY and mode == "carried"):
        raise RefusedError(409, f"this engine does not resume by mode {mode}")
    return priors, mode == "replay"
