"""Lets an engine prove how it resumes streams, more than once where it must."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Callable
from pathlib import Path

from longboat.core.states import ResumeLevel
from longboat.engines.resume_proof import ResumeProof, prove
from longboat.gateway.http.message import ask

__all__ = ("ProofMemory", "ResumeProver")

PROOF_S = 60.0
PROOFS_AFTER_S = (0.0, 30.0, 300.0)
"""Pauses before each proof: an engine that is very busy at first, or whose sums differ then, gets more chances."""
LEVELS = (ResumeLevel.NONE, ResumeLevel.REPLAY, ResumeLevel.CARRIED)
PROOF_WAIT_S = 20.0
"""A stream that begins before the first proof is over can never be resumed, so readiness waits for the proof, which
takes about 100 tokens. An engine whose proof takes longer serves meanwhile, at no level."""
REMEMBERED = ResumeProof(level=LEVELS[-1], detail="a replica of this revision proved it on this node")
_REVISION = re.compile(r"[0-9a-f]{8,64}")


class ProofMemory:
    """The revisions that were proved on this node, one empty file for each: the next replica need not wait for that."""

    def __init__(self, run: Path) -> None:
        """run: the node's run folder, which belongs to this user alone"""
        self._folder = run / "proved"

    def has(self, revision: str) -> bool:
        """Return whether a replica of this revision proved the highest level on this node."""
        return _REVISION.fullmatch(revision) is not None and (self._folder / revision).is_file()

    def remember(self, revision: str) -> None:
        """Note that a replica of this revision proved the highest level."""
        if _REVISION.fullmatch(revision) is not None:
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700, exist_ok=True)
                (self._folder / revision).touch(mode=0o600)

    def forget(self, revision: str) -> None:
        """Note that a replica of this revision failed its proof."""
        if _REVISION.fullmatch(revision) is not None:
            with contextlib.suppress(OSError):
                (self._folder / revision).unlink(missing_ok=True)


class ResumeProver:
    """The proof of one engine; ``best`` is the highest level that it has proved."""

    def __init__(self, on_change: Callable[[], None], memory: ProofMemory | None = None) -> None:
        self._memory = memory
        self.best = ResumeProof(level=ResumeLevel.NONE, detail="not proved yet")
        self._on_change = on_change
        self._proved_once = asyncio.Event()

    def remember(self, revision: str) -> None:
        """Claim at once what an earlier replica of the revision proved on this node; ``run`` proves it again."""
        if self._memory is not None and self._memory.has(revision):
            self.best = REMEMBERED
            self._proved_once.set()

    def leave_out(self, why: str) -> None:
        """Try nothing: this engine's responses are not streams."""
        self.best = ResumeProof(level=ResumeLevel.NONE, detail=why)
        self._proved_once.set()

    async def run(self, url: str, api_key: str, model: str, revision: str = "") -> None:
        """Try the engine until it has proved the highest level, or has used its chances."""
        for pause_s in PROOFS_AFTER_S:
            await asyncio.sleep(pause_s)
            proof = await _proof(url, api_key, model)
            if pause_s == 0 or LEVELS.index(proof.level) > LEVELS.index(self.best.level):
                self.best = proof
                self._on_change()
            self._proved_once.set()
            if self._memory is not None:
                keep = self._memory.remember if proof.level is LEVELS[-1] else self._memory.forget
                keep(revision)
            if proof.level is LEVELS[-1]:
                return

    async def wait_first(self) -> None:
        """Wait for the first proof, but no longer than ``PROOF_WAIT_S``."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._proved_once.wait(), PROOF_WAIT_S)


async def _proof(url: str, api_key: str, model: str) -> ResumeProof:
    try:
        async with asyncio.timeout(PROOF_S * 2):
            return await prove(functools.partial(ask, url, api_key=api_key), model, timeout_s=PROOF_S)
    except Exception as error:  # a replica that cannot be tried still serves
        return ResumeProof(level=ResumeLevel.NONE, detail=f"could not be tried: {error!r}")
