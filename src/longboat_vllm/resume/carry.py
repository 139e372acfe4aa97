"""Reads the gateway's private terms of a request, sent beside its body: journal, seed, and carried tokens.

Request headers, honoured only with the engine's own key:

- ``x-longboat-journal: 1``: token ids as comment lines before each event of a stream; ``whole``: before a non-streaming
  response, while it is made
- ``x-longboat-adapter: NAME@REVISION``: contents of the adapter that the body names
- ``x-longboat-seed: INT``: the seed where the body names none
- ``x-longboat-carry: LENGTH``: the body's first LENGTH bytes are
  ``{"mode": "carried" | "replay", "prior": [[id, …], …]}``, the token ids that each choice had before; the rest is the
  client's request as it was sent before
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

__all__ = (
    "ADAPTER",
    "CARRY",
    "CURRENT",
    "FORCED_TOKENS",
    "JOURNAL",
    "PRIOR_TOKENS",
    "SEED",
    "BadCarryError",
    "CarriedRequest",
    "Wish",
    "looks_at_tokens",
    "prior_of",
    "read_carry",
    "read_wish",
    "repeats_logprobs",
    "unsupported",
)

JOURNAL = b"x-longboat-journal"
SEED = b"x-longboat-seed"
CARRY = b"x-longboat-carry"
ADAPTER = b"x-longboat-adapter"
_HEADERS = (JOURNAL, SEED, CARRY, ADAPTER)

PRIOR_TOKENS = "longboat_prior"
"""Extra argument of sampling parameters: ids that the engine takes as its own output so far."""
FORCED_TOKENS = "longboat_forced"
"""Extra argument of sampling parameters: ids that the engine samples first, one step each."""

_MAX_SEED = 2**31 - 1
_MODES = ("carried", "replay")
_PLAIN_PARTS = frozenset(("text", "input_text", "output_text", "refusal", "thinking", "tool_result", "tool_use"))


class BadCarryError(ValueError):
    """Malformed terms of the gateway."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The terms in a request's headers."""

    journal: bool = False
    whole: bool = False
    seed: int | None = None
    carry_bytes: int | None = None  # length of the gateway's part of the body; None: nothing is carried
    adapter: str = ""  # ``NAME@REVISION``; empty: the request names none


@dataclass(slots=True)
class CarriedRequest:
    """One HTTP request inside the engine; choices of all its prompts are numbered through."""

    journal: bool = False  # ids are sent before each event
    whole: bool = False  # ids are sent before a non-streaming response
    seed: int | None = None  # for choices of a request that names no seed
    mode: str = ""
    prior: list[list[int]] = field(default_factory=list)  # ids per choice, of a request that began elsewhere
    told_at_once: int = 1  # carried tokens reported together; parsers that get few at a time see what they know
    num_choices: int = 0  # choices for which generation was started so far
    unsent: dict[int, list[int]] = field(default_factory=dict)  # ids per choice without an event yet
    counts: dict[int, int] = field(default_factory=dict)  # number of ids per choice with an event
    # outputs for carried tokens, by vLLM's request id, until they are passed on
    told: dict[str, list[Any]] = field(default_factory=dict)
    firsts: dict[str, int] = field(default_factory=dict)  # first choice of each of vLLM's request ids
    # per choice, vLLM's own list of its tokens so far
    grown: dict[int, Callable[[], list[int]]] = field(default_factory=dict)

    def prior_of(self, choice: int) -> list[int]:
        """Return the ids that ``choice`` had before; empty: it starts from the beginning."""
        return self.prior[choice] if choice < len(self.prior) else []

    def new_ids(self) -> dict[int, list[int]]:
        """Take the ids per choice of a non-streaming response that were not sent yet."""
        found: dict[int, list[int]] = {}
        for choice, grown in self.grown.items():
            at = self.counts.get(choice, 0)
            if ids := list(grown()[at:]):
                found[choice] = ids
                self.counts[choice] = at + len(ids)
        return found

    def note(self, choice: int, ids: Iterable[int]) -> None:
        """Remember that ``choice`` has these new ids."""
        self.unsent.setdefault(choice, []).extend(ids)


CURRENT: ContextVar[CarriedRequest | None] = ContextVar("longboat_request", default=None)
"""The HTTP request that the running task works for, where the gateway sent terms with it."""


def read_wish(headers: Iterable[tuple[bytes, bytes]]) -> Wish | None:
    """Return what a request's headers ask for; None where it has none of the gateway's headers.

    Raises BadCarryError for an impossible value.
    """
    found = {name: value for name, value in headers if name in _HEADERS}
    if not found:
        return None
    seed = _number(SEED, found[SEED], _MAX_SEED) if SEED in found else None
    carry_bytes = _number(CARRY, found[CARRY], 2**31) if CARRY in found else None
    journal = found.get(JOURNAL)
    adapter = found.get(ADAPTER, b"").decode("latin-1")
    is_whole = journal == b"whole"
    return Wish(journal=journal == b"1", whole=is_whole, seed=seed, carry_bytes=carry_bytes, adapter=adapter)


def _number(name: bytes, value: bytes, limit: int) -> int:
    if not value.isdigit() or int(value) > limit:
        raise BadCarryError(f"{name.decode()} must be a whole number up to {limit}")
    return int(value)


def read_carry(prefix: bytes) -> tuple[str, list[list[int]]]:
    """Return mode and prior of the JSON in front of a body. Raises BadCarryError where it is malformed."""
    try:
        carried = json.loads(prefix)
        mode, prior = carried["mode"], carried["prior"]
    except (ValueError, TypeError, KeyError) as error:
        raise BadCarryError(f"the carried tokens are malformed: {error!r}") from error
    is_ids = isinstance(prior, list) and all(isinstance(ids, list) and all(map(_is_id, ids)) for ids in prior)
    if mode not in _MODES or not is_ids:
        raise BadCarryError("carried tokens need a mode (carried or replay) and a list of token ids per choice")
    return mode, prior


def _is_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def unsupported(body: Any, *, takes_media: bool = True) -> str:
    """Return the part of a request's body that no engine can take over; empty where there is none.

    takes_media: whether streams about images and sounds are continued exactly. vLLM computes them again as it does
    after a preemption
    """
    if not isinstance(body, dict):
        return "a body that is not a JSON object"
    if body.get("use_beam_search"):
        return "beam search"
    if body.get("prompt_logprobs") is not None:
        return "prompt_logprobs"
    if (body.get("best_of") or 1) > (body.get("n") or 1):
        return "best_of"
    if body.get("previous_response_id") or body.get("background"):
        return "a response kept by another engine"
    if body.get("kv_transfer_params"):
        return "a prompt computed by another engine"
    if any(_is_served_tool(tool) for tool in body.get("tools") or ()):
        return "tools that the engine itself calls"
    if takes_media:
        return ""
    return "input that is not text" if _has_media(body.get("messages")) or _has_media(body.get("input")) else ""


def repeats_logprobs(body: dict[str, Any]) -> bool:
    """Return whether the response's end repeats the log-probabilities of all tokens: Responses and whole responses do.

    Those of carried tokens are unknown, so such a response must be replayed.
    """
    is_whole = not body.get("stream") and body.get("logprobs") not in (None, False)
    return is_whole or "message.output_text.logprobs" in (body.get("include") or ())


def looks_at_tokens(body: dict[str, Any]) -> bool:
    """Return whether the response shows how its tokens were grouped: by log-probabilities, tool calls, counts."""
    counts = (body.get("stream_options") or {}).get("continuous_usage_stats")
    return body.get("logprobs") not in (None, False) or bool(body.get("tools") or counts)


def _is_served_tool(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type", "function") not in ("function", "custom")


def _has_media(messages: Any) -> bool:
    contents = [message.get("content") for message in messages or () if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(isinstance(part, dict) and part.get("type", "text") not in _PLAIN_PARTS for part in parts)


def prior_of(params: Any) -> list[int]:
    """Return the ids that a request's sampling parameters carry."""
    extra_args = getattr(params, "extra_args", None) or {}
    return extra_args.get(PRIOR_TOKENS) or []
