"""Where the parts of a chaos run are: all on this machine, or each engine on a host of the network lab."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from netlab.lab import Lab

__all__ = ("LabPlace", "Place", "PlainPlace", "best_place")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

SLOW_BITS_PER_S = 10_000_000
FAST_BITS_PER_S = 40_000_000_000


class Place(Protocol):
    """has_links: whether links can be cut; interface: by which engines are reached.

    Host 0 is where gateways and clients are, others have an engine each.
    """

    has_links: bool
    interface: str

    def way_in(self, host: int) -> Sequence[str]: ...
    def address(self, host: int) -> str: ...
    def cut(self, host: int) -> None: ...
    def slow(self, host: int) -> None: ...
    def mend(self, host: int) -> None: ...
    def __enter__(self) -> Place: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class PlainPlace:
    """One machine, loopback."""

    has_links = False
    interface = "lo"

    def way_in(self, host: int) -> Sequence[str]:
        return ()

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def cut(self, host: int) -> None:
        raise NotImplementedError("links are cut in the network lab only")

    slow = mend = cut

    def __enter__(self) -> PlainPlace:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


class LabPlace:
    """A host of the network lab for the gateways, and one for each engine."""

    has_links = True
    interface = "eth0"

    def __init__(self, num_engines: int) -> None:
        from netlab.lab import Lab

        self._lab: Lab = Lab(num_engines + 1)
        self._cut: set[int] = set()

    def way_in(self, host: int) -> Sequence[str]:
        namespaces = self._lab.hosts[host].namespaces
        assert namespaces is not None
        return namespaces.way_in()

    def address(self, host: int) -> str:
        return self._lab.hosts[host].address

    def cut(self, host: int) -> None:
        self._cut.add(host)
        self._lab.cut(self._lab.hosts[host])

    def slow(self, host: int) -> None:
        self._lab.set_rate(self._lab.hosts[host], SLOW_BITS_PER_S)

    def mend(self, host: int) -> None:
        if host in self._cut:
            self._cut.discard(host)
            self._lab.restore(self._lab.hosts[host])
        else:
            self._lab.set_rate(self._lab.hosts[host], FAST_BITS_PER_S)

    def __enter__(self) -> LabPlace:
        return self

    def __exit__(self, *exc: object) -> None:
        self._lab.close()


def best_place(num_engines: int, *, plain: bool) -> tuple[Place, str]:
    """The network lab where this machine allows it, and is not asked to be ``plain``; and why not, in words."""
    if plain:
        return PlainPlace(), "on one machine, as asked: no link is cut"
    from netlab.lab import why_unavailable

    reason = why_unavailable()
    if reason:
        return PlainPlace(), f"on one machine, no link is cut: {reason}"
    return LabPlace(num_engines), f"in the network lab, {num_engines + 1} hosts"


def without_ray(env: Mapping[str, str]) -> dict[str, str]:
    """An environment that no fleet of this machine has a part in."""
    return {name: value for name, value in env.items() if not name.startswith(("RAY_", "LONGBOAT_"))}
