"""What a new worker asks of the warm parent, and what the parent does with it. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ("ForkRequest", "Verdict", "judge")

_STRANGERS = 3


class Verdict(enum.Enum):
    """What the parent does with a request."""

    FORK = "fork"
    CHANGE = "change"  # become the parent of this environment, and let the worker ask again
    REFUSE = "refuse"  # the worker starts plainly


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """The worker process that Ray started, as its fork must be."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    leads_group: bool  # of processes: Ray ends a worker with its group
    oom_score: str
    fingerprint: str  # of the installed code

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> ForkRequest:
        """Read a request. Raises KeyError, TypeError and ValueError where it is none."""
        argv, env = request["argv"], request["env"]
        if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
            raise ValueError("argv must be a list of strings")
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise ValueError("env must be an object of strings")
        leads_group, oom_score = bool(request["leads_group"]), str(int(request["oom_score"]))
        return cls(tuple(argv), env, str(request["cwd"]), leads_group, oom_score, str(request["fingerprint"]))


def judge(
    request: ForkRequest, warm_for: Mapping[str, str] | None, fingerprint: str, *, num_strangers: int, has_forks: bool
) -> Verdict:
    """Decide what the parent does.

    Ray reads its variables while it is loaded, the worker's job among them. So a parent serves one environment, usually
    that of all supervisors. It changes to another one where no fork of its own is left, or where several workers in a
    row asked for it.

    warm_for: the environment in which the parent loaded Ray; None: it has not loaded Ray yet
    fingerprint: of the code that the parent loaded
    num_strangers: how many workers of other environments asked in a row, this one included
    """
    if warm_for is not None and request.env == warm_for and request.fingerprint == fingerprint:
        return Verdict.FORK
    if warm_for is None or not has_forks or num_strangers >= _STRANGERS:
        return Verdict.CHANGE
    return Verdict.REFUSE
