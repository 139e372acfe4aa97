"""What ``longboat simulate`` was asked for, with every number checked."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.core.errors import UserInputError
from longboat.routing.policies.registry import DEFAULT_POLICY, POLICIES, policy_of
from longboat.simulator.fleet.fleet import FleetEvent

__all__ = ("SimulateRequest", "parse_event", "parse_policies")

MAX_REPLICAS = 100_000
_EVENT = 'write --event "fail replica-0 60", "join replica-0 90", "clear replica-1 120" or "slow replica-2 30 2.5"'


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateRequest:
    """The options of the command. None: not given."""

    fleet: str
    trace: str
    policies: str = DEFAULT_POLICY
    on: str = ""
    model: str | None = None
    replicas: int | None = None
    gateways: int = 1
    rate_scale: float = 1.0
    requests: int | None = None
    jitter_s: float = 0.0
    speed_spread: float = 0.0
    slots: int | None = None
    kv_tokens: int | None = None
    step_time: str = ""
    events: tuple[str, ...] = ()
    seed: int = 0

    def check(self) -> None:
        """Raise UserInputError for what is missing, or for the first number that cannot be."""
        for name, text in (("--fleet", self.fleet), ("--trace", self.trace)):
            if not text:
                raise UserInputError(
                    f"{name} is missing", hint="longboat simulate --fleet fleet.yaml --trace sessions:rate=4,turns=6"
                )
        checks = (
            ("--replicas", self.replicas, 1, MAX_REPLICAS),
            ("--gateways", self.gateways, 1, 1000),
            ("--rate-scale", self.rate_scale, 1e-6, 1e6),
            ("--requests", self.requests, 1, 10**10),
            ("--jitter", self.jitter_s, 0, 1e6),
            ("--speed-spread", self.speed_spread, 0, 1),
            ("--slots", self.slots, 1, 1_000_000),
            ("--kv-tokens", self.kv_tokens, 16, 10**12),
        )
        for name, value, least, most in checks:
            if value is not None and not least <= value <= most:
                nearest = most if value > most else least
                raise UserInputError(
                    f"{name} {value} is not between {least} and {most}",
                    hint=f"the nearest is {name} {nearest}",
                )


def parse_policies(text: str) -> tuple[str, ...]:
    """Read ``cost,round_robin``, or ``all``. Raises UserInputError for a name that is not a policy."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return POLICIES
    if not names:
        raise UserInputError("--policies is empty", hint=f"policies: {', '.join(POLICIES)}; or all")
    return tuple(dict.fromkeys(policy_of(name).name for name in names))


def parse_event(text: str, keys: frozenset[str]) -> FleetEvent:
    """Read ``slow replica-2 30 2.5``: at second 30, steps begin to take 2.5 times as long. keys: of the replicas"""
    words = text.split()
    kind = words[0] if words else ""
    if kind not in ("fail", "join", "clear", "slow") or len(words) != (4 if kind == "slow" else 3):
        raise UserInputError(f"--event {text!r} is not understood", hint=_EVENT)
    if words[1] not in keys:
        raise UserInputError(f"--event {text!r}: there is no {words[1]}", hint=f"replica-0 to replica-{len(keys) - 1}")
    try:
        at_s, slowness = float(words[2]), float(words[3]) if kind == "slow" else 1.0
    except ValueError:
        raise UserInputError(f"--event {text!r}: a time or a factor is not a number", hint=_EVENT) from None
    if not 0 <= at_s < 1e9 or not 1e-3 <= slowness <= 1e6:
        raise UserInputError(f"--event {text!r}: a time below 0, or a factor not above 0", hint=_EVENT)
    return FleetEvent(at_s=at_s, key=words[1], kind=kind, slowness=slowness)  # type: ignore[arg-type]
