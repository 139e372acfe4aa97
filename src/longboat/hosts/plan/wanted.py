"""What every host should have: one release, its Python, the engines, the fleet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ("Wanted", "WantedEngine", "wheel_python")

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedEngine:
    """An engine that every host should have."""

    # As the file names it: vllm@0.32.0.
    text: str
    kind: str
    version: str
    # Platform (cpu, cuda) → free disk that its environment needs.
    free_bytes: Mapping[str, int]

    def platform(self, *, has_driver: bool) -> str:
        """Return the platform of a host: the engine's only one, or else what the host has."""
        if len(self.free_bytes) == 1:
            return next(iter(self.free_bytes))
        return "cuda" if has_driver else "cpu"

    def environment(self, *, has_driver: bool) -> str:
        """Return the name of its environment on a host."""
        return f"{self.kind}-{self.version}-{self.platform(has_driver=has_driver)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the operator's machine has ready for the hosts."""

    # Digest of what is installed: wheel, lock, Python. Another digest is another release.
    release: str
    # The version, for people.
    version: str
    # Python of the release: 3.11.
    python: str
    # Python of the engines' environments.
    engine_python: str = "3.11"
    # Ray and Python of the release, for people: nodes with others form no cluster with it. Empty: not known.
    runtime: str = ""
    # Architecture that the release and uv are built for (x86_64).
    machine: str = "x86_64"
    # Whether hosts need no package index.
    is_bundle: bool = False
    # Whether the bundle brings Python itself.
    brings_python: bool = False
    # SHA-256 of uv's program, of the cluster's token and of the fleet file; empty where there is none.
    uv: str = ""
    token: str = ""
    fleet: str = ""
    engines: tuple[WantedEngine, ...] = ()
    # Free disk that Longboat needs.
    software_bytes: int = 2 * GIB
    # Ports that must be free on every host, with the part that listens there.
    ports: Mapping[int, str] = field(default_factory=dict)
    # The clocks of two hosts may differ by this.
    max_clock_s: float = 30.0


def wheel_python(name: str) -> str:
    """Return the Python that a wheel's file name asks for (``3.11``); empty where any will do."""
    found = re.search(r"-cp3(\d{1,2})-cp3\d{1,2}-", name)
    return f"3.{found[1]}" if found else ""
