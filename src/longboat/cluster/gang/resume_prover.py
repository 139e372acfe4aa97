"""Lets an engine prove how it resumes streams, more than once where it must."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from longboat.core.states import ResumeLevel
from longboat.engines.resume_proof import ResumeProof, prove

__all__ = ("ResumeProver",)

PROOF_S = 60.0
PROOFS_AFTER_S = (0.0, 30.0, 300.0)
"""Pauses before each proof: an engine that is very busy at first, or whose sums differ then, gets more chances."""
LEVELS = (ResumeLevel.NONE, ResumeLevel.REPLAY, ResumeLevel.CARRIED)
PROOF_WAIT_S = 20.0
"""A stream that begins before the first proof is over can never be resumed, so readiness waits for the proof, which
takes about 100 tokens. An engine whose proof takes longer serves meanwhile, at no level."""


class ResumeProver:
    """The proof of one engine; ``best`` is the highest level that it has proved."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.best = ResumeProof(level=ResumeLevel.NONE, detail="not proved yet")
        self._on_change = on_change
        self._proved_once = asyncio.Event()

    def leave_out(self, why: str) -> None:
        """Try nothing: this engine's responses are not streams."""
        self.best = ResumeProof(level=ResumeLevel.NONE, detail=why)
        self._proved_once.set()

    async def run(self, url: str, api_key: str, model: str) -> None:
        """Try the engine until it has proved the highest level, or has used its chances."""
        for pause_s in PROOFS_AFTER_S:
            await asyncio.sleep(pause_s)
            proof = await _proof(url, api_key, model)
            if pause_s == 0 or LEVELS.index(proof.level) > LEVELS.index(self.best.level):
                self.best = proof
                self._on_change()
            self._proved_once.set()
            if proof.level is LEVELS[-1]:
                return

    async def wait_first(self) -> None:
        """Wait for the first proof, but no longer than ``PROOF_WAIT_S``."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._proved_once.wait(), PROOF_WAIT_S)


async def _proof(url: str, api_key: str, model: str) -> ResumeProof:
    try:
        async with asyncio.timeout(PROOF_S * 2):
            return await prove(url, api_key, model, timeout_s=PROOF_S)
    except Exception as error:  # a replica that cannot be tried still serves
        return ResumeProof(level=ResumeLevel.NONE, detail=f"could not be tried: {error!r}")
