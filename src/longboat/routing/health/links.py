"""Finds connections between a gang's ranks that a link carries no more, from what the kernel counts. Pure.

Where packets vanish, no process ends and no connection is reset: the sender repeats what was not acknowledged, for many
minutes. Acknowledgements come from the other kernel at once, however busy the process there is; one that reads nothing
closes its window, and the kernel's questions about a window are not repetitions. So a connection without an
acknowledgement for seconds, while its data was repeated several times, has lost its link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ("WELL", "Connection", "LinkRecord", "LinkState")

MIN_REPEATS = 3
"""Fewer repetitions in a row are a link that loses packets. Kernels repeat after 0.2, 0.6 and 1.4 s and then later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One established connection of a rank, as the kernel shows it."""

    inode: int  # its name on this host
    peer: str  # address of the other end
    num_repeats: int  # repetitions since the last acknowledgement


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """The worst connection of a rank with another rank."""

    unacked_s: float = 0.0  # since data on it was repeated for the first time without an acknowledgement
    peer: str = ""


WELL = LinkState()


class LinkRecord:
    """The connections of one rank whose data was repeated, each since when."""

    def __init__(self) -> None:
        self._repeating: dict[int, tuple[float, int]] = {}  # inode → since when, and how often by the last reading

    def read(self, connections: Iterable[Connection], now_s: float) -> LinkState:
        """Take in all connections with repetitions; return the one that has waited the longest."""
        repeating: dict[int, tuple[float, int]] = {}
        worst = WELL
        for connection in connections:
            since_s, before = self._repeating.get(connection.inode, (now_s, 0))
            if connection.num_repeats < before:  # an acknowledgement came in between
                since_s = now_s
            repeating[connection.inode] = since_s, connection.num_repeats
            unacked_s = now_s - since_s
            if connection.num_repeats >= MIN_REPEATS and unacked_s > worst.unacked_s:
                worst = LinkState(unacked_s=unacked_s, peer=connection.peer)
        self._repeating = repeating
        return worst
