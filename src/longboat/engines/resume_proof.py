"""Proves over HTTP how an engine continues a stream that was cut: greedy, seeded, and under a grammar."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from longboat.core.states import ResumeLevel

__all__ = ("ProofCase", "ResumeProof", "Send", "prove")


class Response(Protocol):
    """The engine's response to a request."""

    status: int
    body: bytes


Send = Callable[..., Awaitable[Response]]

_OK = 200
_MODES = (ResumeLevel.CARRIED, ResumeLevel.REPLAY)
_PROMPTS = ("The crew of a longboat rows", "1, 2, 3, five ships")  # the second is tried where the first failed
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "oars": {"type": "integer"}},
    "required": ["name", "oars"],
    "additionalProperties": False,
}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "boat", "schema": _SCHEMA}}
_SEEDED = {"temperature": 1.0, "top_p": 1.0, "seed": 20}
_KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "max_tokens": 10, "ignore_eos": True},
    "seeded": {**_SEEDED, "max_tokens": 10, "ignore_eos": True},
    "grammar": {**_SEEDED, "max_tokens": 20, "response_format": _FORMAT},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofCase:
    """One way of continuing that was tried."""

    name: str  # mode and kind, as in ``carried greedy``
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeProof:
    """The result of an engine's proof."""

    level: ResumeLevel
    cases: tuple[ProofCase, ...] = ()
    detail: str = ""  # why no higher level was proved, in one sentence; empty at the highest


async def prove(send: Send, model: str, *, timeout_s: float) -> ResumeProof:
    """Find the highest level at which an engine continues identically. Never raises for the engine's faults.

    A way of continuing counts only if every kind of response is identical; a kind that the engine does not offer at all
    (no grammars, say) is left out. About 100 tokens are generated. Each case has a second try with another prompt:
    on GPUs, sums may differ while other requests run.
    send: sends the engine a request, as ``longboat.gateway.http.message.ask`` does
    timeout_s: for all cases together; a case that was not proved by then counts as failed
    """
    cases: list[ProofCase] = []
    try:
        async with asyncio.timeout(timeout_s):
            return await _prove(functools.partial(send, timeout_s=timeout_s), model, cases)
    except TimeoutError:
        detail = f"not proved within {timeout_s:g} s"
    except (OSError, ValueError) as error:
        detail = f"the engine failed during its proof: {error!r}"
    return ResumeProof(level=ResumeLevel.NONE, cases=tuple(cases), detail=detail)


async def _prove(send: Send, model: str, cases: list[ProofCase]) -> ResumeProof:
    offered = await _offered(send)
    if isinstance(offered, str):
        return ResumeProof(level=ResumeLevel.NONE, detail=offered)
    details = [str(offered.get("detail") or "")]
    for mode in _MODES:
        if not offered.get(str(mode)):
            continue
        tried = [await _case(send, model, mode, kind) for kind in _KINDS]
        done = [case for case in tried if case is not None]
        cases += done
        failed = [case for case in done if not case.passed]
        if done and not failed:
            return ResumeProof(level=mode, cases=tuple(cases), detail="" if mode == _MODES[0] else _joined(details))
        details += [f"{case.name}: {case.detail}" for case in failed] or [
            f"{mode}: the engine offers no kind that could be tried"
        ]
    return ResumeProof(level=ResumeLevel.NONE, cases=tuple(cases), detail=_joined(details))


def _joined(details: Sequence[str]) -> str:
    return "; ".join(detail for detail in details if detail)


async def _offered(send: Send) -> Mapping[str, Any] | str:
    """Return what the engine says it can do; a sentence when it says nothing."""
    response = await send("/longboat/v1/resume")
    if response.status != _OK:
        return f"the engine has no Longboat plugin (HTTP {response.status})"
    offered = json.loads(response.body)
    return offered if isinstance(offered, dict) else "the engine's plugin did not answer with a JSON object"


async def _case(send: Send, model: str, mode: ResumeLevel, kind: str) -> ProofCase | None:
    """Try one kind, cut in its middle and continued; None where the engine does not offer the kind."""
    name, detail = f"{mode} {kind}", ""
    for prompt in _PROMPTS:
        body = {"model": model, "prompt": prompt, "stream": True, **_KINDS[kind]}
        whole = await _answer(send, body)
        if whole.refusal:
            return None
        if len(whole.ids) < 2:
            detail = "the response was too short to cut"
            continue
        continued = await _answer(send, body, mode, whole.ids[: len(whole.ids) // 2])
        detail = continued.refusal or _difference(whole, continued)
        if not detail:
            return ProofCase(name=name, passed=True)
    return ProofCase(name=name, passed=False, detail=detail)


@dataclass(slots=True)
class _Answer:
    """The content of one stream."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    refusal: str = ""  # why there is no stream

    def take(self, line: str) -> None:
        """Read one line of the stream. Raises ValueError for a malformed line."""
        if line.startswith(": ids 0 "):
            self.ids += [int(token) for token in line[len(": ids 0 ") :].split(",")]
        elif line.startswith("data: {"):
            event = json.loads(line[len("data: ") :])
            if "error" in event:
                self.refusal = f"the engine says: {event['error']}"[:200]
            for choice in event.get("choices") or ():
                self.text += choice.get("text") or ""
                self.finish = choice.get("finish_reason") or self.finish


async def _answer(
    send: Send, body: Mapping[str, Any], mode: ResumeLevel | None = None, prior: Sequence[int] = ()
) -> _Answer:
    """Return the stream for ``body``, after ``prior`` where a mode is given."""
    content = json.dumps(body).encode()
    headers = {"content-type": "application/json", "x-longboat-journal": "1"}
    if mode is not None:
        carried = json.dumps({"mode": str(mode), "prior": [list(prior)]}).encode()
        content, headers["x-longboat-carry"] = carried + content, str(len(carried))
    answer = _Answer()
    response = await send("/v1/completions", method="POST", body=content, headers=headers)
    text = response.body.decode(errors="replace")
    if response.status != _OK:
        answer.refusal = f"HTTP {response.status}: {text[:200]}"
        return answer
    for line in text.split("\n"):  # JSON may hold what else ends a line for Python, such as U+2028
        answer.take(line.removesuffix("\r"))
    return answer


def _difference(whole: _Answer, continued: _Answer) -> str:
    """Describe how a continued response differs from the whole one; empty where it is identical."""
    if continued.ids != whole.ids:
        pairs = zip(whole.ids, continued.ids, strict=False)
        equal = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        return f"the tokens differ from position {len(continued.ids) if equal is None else equal} on"
    if continued.text != whole.text:
        return "the tokens are the same, but the text differs"
    return "" if continued.finish == whole.finish else f"it ended with {continued.finish}, not {whole.finish}"
