"""Engine slots in use, which the gateway processes of one node count together in a memory-mapped file."""

from __future__ import annotations

from pathlib import Path

from longboat.core.errors import ClusterError
from longboat.gateway.shared_grid import GridFullError, SharedGrid, open_grid

__all__ = ("SlotBoard", "open_slot_board")

SLOTS_FILE = "slots.bin"
_NUM_CELLS = 2


def open_slot_board(state_folder: Path | None) -> SlotBoard:
    """The node's board; this process's where the folder is None.

    :raises UserInputError: the folder cannot be used
    :raises ClusterError: too many processes use it, or one of them hangs
    """
    if state_folder is None:
        return SlotBoard(SharedGrid(None, num_cells=_NUM_CELLS))
    return SlotBoard(open_grid(state_folder / SLOTS_FILE, num_cells=_NUM_CELLS))


class SlotBoard:
    """How many requests run on each endpoint, over all processes of the node."""

    def __init__(self, grid: SharedGrid) -> None:
        self._grid = grid
        self._cells = grid.cells
        self._bases: dict[str, int] = {}
        self._beyond: dict[str, int] = {}

    def take(self, endpoint_key: str) -> None:
        """One more runs."""
        self._change(endpoint_key, 1)

    def give(self, endpoint_key: str) -> None:
        """One less runs."""
        self._change(endpoint_key, -1)

    def busy(self, endpoint_key: str) -> int:
        """Slots in use, over all processes of the node."""
        base = self._base(endpoint_key)
        if base < 0:
            return self._beyond[endpoint_key]
        self._grid.reap_when_due()
        return sum(self._cells[base : base + self._grid.num_rows * _NUM_CELLS : _NUM_CELLS])

    def own(self, endpoint_key: str) -> int:
        """Slots in use by this process."""
        base = self._base(endpoint_key)
        return self._beyond[endpoint_key] if base < 0 else self._cells[base + self._grid.row * _NUM_CELLS]

    def forget(self, endpoint_key: str) -> None:
        """The endpoint is gone, and nothing runs there: its place may be used for another."""
        self._bases.pop(endpoint_key, None)
        self._beyond.pop(endpoint_key, None)
        self._grid.forget(endpoint_key)

    def close(self) -> None:
        """This process's slots count no more."""
        self._grid.close()

    def _change(self, key: str, change: int) -> None:
        base = self._base(key)
        if base < 0:
            self._beyond[key] += change
        else:
            self._cells[base + self._grid.row * _NUM_CELLS] += change

    def _base(self, key: str) -> int:
        """-1 where the file has no place for it, so that it is counted in this process alone."""
        base = self._bases.get(key)
        if base is None:
            try:
                base = self._grid.base_of(key)
            except (GridFullError, ClusterError):
                base = -1
                self._beyond[key] = 0
            self._bases[key] = base
        return base
