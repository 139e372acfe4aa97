"""The constants of the time model, as calibration left them: defaults, times factors by engine and by kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longboat.planner.predict.terms import defaults_for

__all__ = ("Calibration", "Measured", "Spread", "host_name")

Factors = Mapping[str, float]


def host_name(machine: str, engine: str) -> str:
    """Return the key of a machine's own factors."""
    return f"{machine} | {engine}"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measured times of a group (model, machine, engine), compared with the model's prediction."""

    itl_factor: float  # measured / predicted, median of ``num_rows``
    ttft_factor: float  # the same of the time to the first token
    num_rows: int
    here: bool = False  # measured on the user's own cluster


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Measured / predicted of rows that calibration did not see: 80 % of them lie between ``low`` and ``high``."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The learned constants."""

    common: Factors = field(default_factory=dict)  # factors on the defaults, by term
    engines: Mapping[str, Factors] = field(default_factory=dict)  # the same by name of an engine
    kernels: Mapping[str, Factors] = field(default_factory=dict)  # the same by class of kernels
    # The same by machine and engine as ``host_name`` joins them, of the user's own machines.
    hosts: Mapping[str, Factors] = field(default_factory=dict)
    machines: tuple[str, ...] = ()  # names of machines among the rows
    groups: Mapping[tuple[str, str, str], Measured] = field(default_factory=dict)  # by model, machine and engine
    itl_spread: Spread = Spread(low=0.6, high=1.7)  # of groups that were not measured
    ttft_spread: Spread = Spread(low=0.4, high=2.5)
    measured_itl_spread: Spread = Spread(low=0.85, high=1.2)  # of groups that were measured
    measured_ttft_spread: Spread = Spread(low=0.7, high=1.5)
    num_rows: int = 0
    source: str = ""  # where the rows come from
    date: str = ""  # when the rows were fitted
    _known: dict[tuple[str, str, str], Mapping[str, float]] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    def constants(self, *, engine: str, kernel: str, machine: str = "") -> Mapping[str, float]:
        """Return every term's constant for engine, kernels and machine; of what is unknown, without factors."""
        key = engine, kernel, machine
        if key not in self._known:
            self._known[key] = self._multiplied(engine, kernel, machine)
        return self._known[key]

    def _multiplied(self, engine: str, kernel: str, machine: str) -> dict[str, float]:
        levels = (
            self.common,
            self.engines.get(engine, {}),
            self.kernels.get(kernel, {}),
            self.hosts.get(host_name(machine, engine), {}),
        )
        found = defaults_for(kernel)
        for factors in levels:
            for name, factor in factors.items():
                found[name] *= factor
        return found
