"""What each tenant used of each model on each UTC day, kept in one SQLite file by all gateway processes of a node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ("UsageRow", "UsageStore", "day_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """day: ``2026-11-21`` (UTC)."""

    day: str
    tenant: str
    model: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


def day_of(now_s: float) -> str:
    """The UTC day of Unix seconds."""
    raise NotImplementedError


class UsageStore:
    """Adds in memory, writes once a second in a thread. A file that fails stops the writing, never the adding."""

    def __init__(self, path: Path | None) -> None:
        """path: None keeps everything in memory."""
        raise NotImplementedError

    def open(self) -> None:
        """Make or open the file. :raises UserInputError: it is no usage file, or cannot be written."""
        raise NotImplementedError

    def add(
        self,
        tenant: str,
        model: str,
        *,
        now_s: float,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int = 0,
        requests: int = 1,
    ) -> None:
        """Count one answer. now_s: Unix seconds of its start, so that it counts for the day its budget was taken from."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what was added. Blocks: call it in a thread. A file that fails sets ``problem``, and loses nothing."""
        raise NotImplementedError

    async def run(self) -> None:
        """Flush every second until cancelled, and once more then."""
        raise NotImplementedError

    def totals_today(self, tenant: str, now_s: float) -> int:
        """Prompt and completion tokens of all processes and models, as written, and of this process, unwritten."""
        raise NotImplementedError

    def all_totals_today(self, now_s: float) -> dict[str, int]:
        """The same for every tenant: what ``Counters.restore_today`` takes."""
        raise NotImplementedError

    def report(self, days: int, now_s: float) -> list[UsageRow]:
        """Rows of the last ``days`` UTC days, today included; by day, tenant, model. Unwritten counts are included."""
        raise NotImplementedError

    problem: str | None
    """Why nothing is written at the moment; None where all is well."""

    def close(self) -> None:
        """Flush and close."""
        raise NotImplementedError
