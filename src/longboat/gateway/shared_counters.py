"""Counters, and engine slots in use, that the gateway processes of one node share through memory-mapped files."""

from __future__ import annotations

from pathlib import Path

from longboat.gateway.counters import Counters

__all__ = ("SharedCounters", "SlotBoard", "open_counters", "open_slot_board")


def open_counters(state_folder: Path | None, *, now_s: float) -> Counters:
    """Counters of this node, shared by the processes that name one folder; of this process alone where it is None.

    now_s: Unix seconds
    :raises UserInputError: the folder cannot be used
    """
    raise NotImplementedError


class SlotBoard:
    """How many requests run on each endpoint, over all processes of the node.

    ``SlotBoard.in_process()`` (no folder) counts this process only.
    """

    def take(self, endpoint_key: str) -> None:
        """One more runs."""
        raise NotImplementedError

    def give(self, endpoint_key: str) -> None:
        """One less runs."""
        raise NotImplementedError

    def busy(self, endpoint_key: str) -> int:
        """Slots in use, over all processes of the node."""
        raise NotImplementedError

    def own(self, endpoint_key: str) -> int:
        """Slots in use by this process."""
        raise NotImplementedError

    def forget(self, endpoint_key: str) -> None:
        """The endpoint is gone: its place may be used for another."""
        raise NotImplementedError

    def close(self) -> None:
        """This process's slots count no more."""
        raise NotImplementedError


def open_slot_board(state_folder: Path | None) -> SlotBoard:
    """The node's board; this process's where the folder is None. :raises UserInputError: the folder cannot be used"""
    raise NotImplementedError
