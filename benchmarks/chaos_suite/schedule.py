"""Which fault comes when and where: drawn from a seed, nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ("ANY_ENGINE_FAULTS", "ENGINE_FAULTS", "FAULTS", "GATEWAY_FAULTS", "LINK_FAULTS", "Fault", "make_schedule")

ENGINE_FAULTS = (
    *("kill", "term", "stop", "pause", "hang", "agent-kill", "kill-all", "slow"),
    *("break", "truncate", "garbage", "nonsense", "report", "stall", "error"),
)
ANY_ENGINE_FAULTS = ("kill", "term", "stop", "pause", "agent-kill", "kill-all", "link-cut", "link-slow")
"""Those that need nothing of the engine itself."""

LINK_FAULTS = ("link-cut", "link-slow")
GATEWAY_FAULTS = ("gateway-kill", "gateway-term", "disk-full")
FAULTS = (*ENGINE_FAULTS, *LINK_FAULTS, *GATEWAY_FAULTS)

_WEIGHTS = {"kill": 5, "term": 2, "stop": 2, "kill-all": 1, "link-cut": 3}
_WEIGHTS |= {"disk-full": 1, "gateway-kill": 2, "hang": 1, "slow": 1}
_LASTS_S = {
    "stop": (4.0, 5.0),
    "pause": (4.0, 6.0),
    "hang": (4.0, 6.0),
    "link-cut": (3.0, 5.0),
    "link-slow": (2.0, 4.0),
    "slow": (2.0, 3.0),
}
_LASTS_S |= {"disk-full": (2.0, 3.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    at_s: since the load began; target: number of the engine or gateway; lasts_s: until it is undone; 0: it is not
    after_tokens, times: of answers that are to suffer it
    """

    at_s: float
    kind: str
    target: int
    lasts_s: float = 0.0
    after_tokens: int = 0
    times: int = 1


def make_schedule(
    seed: int,
    count: int,
    *,
    every_s: float,
    num_engines: int,
    num_gateways: int,
    kinds: Sequence[str],
    back_s: float = 1.5,
) -> list[Fault]:
    """``count`` faults, on average ``every_s`` apart; each kind at least once where ``count`` allows.

    back_s: what an engine needs to come back.
    Faults that last take one engine at a time, and never the last one: ``kill-all`` is the fault that does.
    """
    rng = random.Random(f"faults {seed}")
    first = rng.sample(list(kinds), k=min(count, len(kinds)))
    chosen = first + rng.choices(list(kinds), [_WEIGHTS.get(kind, 2) for kind in kinds], k=count - len(first))
    rng.shuffle(chosen)
    at_s, free_s = 1.0, [0.0] * num_engines
    faults: list[Fault] = []
    for kind in chosen:
        at_s += every_s * rng.uniform(0.6, 1.4)
        low, high = _LASTS_S.get(kind, (0.0, 0.0))
        lasts_s = rng.uniform(low, high)
        if kind in GATEWAY_FAULTS:
            target = rng.randrange(num_gateways)
        else:
            at_s = max(at_s, _when_all_but_one(free_s))
            target = rng.choice([number for number, free in enumerate(free_s) if free <= at_s])
            free_s[target] = at_s + lasts_s + back_s
        faults.append(
            Fault(
                at_s=round(at_s, 3), kind=kind, target=target, lasts_s=round(lasts_s, 3),
                after_tokens=rng.randint(0, 24), times=rng.randint(1, 4),
            )
        )  # fmt: skip
    return faults


def _when_all_but_one(free_s: Sequence[float]) -> float:
    """The first moment at which two engines are whole, so that one of them may be hit; with one engine: now."""
    return sorted(free_s)[min(1, len(free_s) - 1)]
