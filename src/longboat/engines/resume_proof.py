"""Proves over HTTP how an engine goes on with an answer that was cut: greedy, seeded, and under a grammar."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.core.states import ResumeLevel

__all__ = ("ProofCase", "ResumeProof", "prove")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofCase:
    """One way of continuing that was tried. name: mode and kind, as in ``carried: greedy``"""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeProof:
    """What an engine proved. detail: one sentence for people, why no higher level"""

    level: ResumeLevel
    cases: tuple[ProofCase, ...] = ()
    detail: str = ""


async def prove(url: str, api_key: str, model: str, *, timeout_s: float) -> ResumeProof:
    """The highest level at which the engine at ``url`` continues identically. Never raises for what an engine does.

    timeout_s: for all cases together; what was not proved by then counts as failed
    """
    return ResumeProof(level=ResumeLevel.NONE, detail="not tried")
