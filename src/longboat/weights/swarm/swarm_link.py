"""A node's link to the swarm of one model: the first tracker that answers, and a tracker of its own where none does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from longboat.core.errors import TransferError
from longboat.weights.pieces.tracker import StorageLimits, Tracker
from longboat.weights.pieces.turns import Answer, Inventory, Turn
from longboat.weights.store.piece_folder import PieceFolder
from longboat.weights.swarm.node_client import NodeClient

__all__ = ("SwarmAddress", "SwarmLink")

RETRY_S: Final = 2.0
"""A tracker that did not answer is asked again after this long, and after twice as long each time."""
MOST_RETRY_S: Final = 60.0
"""The longest such wait, where another tracker answers."""
MOST_RETRY_ALONE_S: Final = 8.0
"""The longest such wait, where no tracker answers."""
ALONE_AFTER_S: Final = 8.0
"""A node that hears no tracker for this long reads the storage by itself: a busy tracker must not start a storm."""
LOOK_EVERY_S: Final = 1.0
ALONE: Final = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmAddress:
    """Where a node stands in the swarm."""

    member: str  # HOST:PORT at which this node gives pieces
    trackers: tuple[str, ...]  # HOST:PORT of each, in the same order on all nodes
    token: str  # that all nodes know


@dataclass(frozen=True, slots=True)
class _Failure:
    """A tracker's silence."""

    at_s: float  # when it was noticed the last time
    wait_s: float  # how long the tracker is not asked then


class SwarmLink:
    """The turns of one node for one model.

    All nodes ask the trackers in the same order, so that they meet at the same one. The state of a tracker is soft:
    a node that it does not know says what it has, and both continue.
    """

    def __init__(
        self,
        folder: PieceFolder,
        limits: StorageLimits,
        client: NodeClient | None,
        address: SwarmAddress | None,
        latest: Callable[[], SwarmAddress | None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._key = folder.manifest.key
        self._client = client
        self._address = address
        self._latest = latest  # returns the address that this node has now
        self._looked_at_s = time.monotonic()
        self._own = Tracker(limits)
        self._failed: dict[str, _Failure] = {}  # trackers that did not answer the last time
        self._current = ""  # tracker that knows what this node has and does
        self._silent_since_s: float | None = None  # when the first of the last turns without a tracker was

    def turn(self, turn: Turn) -> Answer:
        """Take a turn at the first tracker that answers. Where none does for long, the node reads the storage alone."""
        trackers = self._trackers()
        if turn.member != self.member:  # the node has another address since the turn was made
            turn = msgspec.structs.replace(turn, member=self.member)
        for at in trackers:
            try:
                answer = self._take(turn, at)
            except TransferError:
                before = self._failed.get(at)
                self._failed[at] = _Failure(time.monotonic(), before.wait_s * 2 if before else RETRY_S)
                if at == self._current:
                    self._current = ""  # it may have missed this turn
                continue
            self._failed.pop(at, None)
            self._silent_since_s = None
            return answer
        return self._take(turn, ALONE) if self._is_alone() else Answer()

    @property
    def is_shared(self) -> bool:
        """Whether other nodes may give pieces."""
        return self._address is not None

    @property
    def member(self) -> str:
        """The node's own address among members."""
        return self._address.member if self._address else ALONE

    def _take(self, turn: Turn, at: str) -> Answer:
        if at == self._current and (answer := self._ask(turn, at)).is_member:
            return answer
        inventory = Inventory(hashes={index: value.hex() for index, value in self._folder.record.present().items()})
        answer = self._ask(msgspec.structs.replace(turn, inventory=inventory), at)
        self._current = at
        return answer

    def _is_alone(self) -> bool:
        if self._address is None:
            return True
        now_s = time.monotonic()
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        return now_s - self._silent_since_s >= ALONE_AFTER_S

    def _ask(self, turn: Turn, at: str) -> Answer:
        if at == ALONE or self._client is None:
            return self._own.turn(self._key, turn, time.monotonic())
        return self._client.turn(at, self._key, turn)

    def _trackers(self) -> Sequence[str]:
        if self._address is None or self._client is None:
            return ()
        self._look()
        return [at for at in self._address.trackers if self._is_due(at, time.monotonic())]

    def _look(self) -> None:
        """Follow the node to other trackers, or to another token, from time to time."""
        assert self._client is not None
        if time.monotonic() - self._looked_at_s < LOOK_EVERY_S:
            return
        self._looked_at_s = time.monotonic()
        latest = self._latest()
        if latest is not None and latest != self._address:
            self._address, self._client.token = latest, latest.token
            self._failed, self._current = {}, ""

    def _is_due(self, at: str, now_s: float) -> bool:
        failure = self._failed.get(at)
        most_s = MOST_RETRY_S if self._silent_since_s is None else MOST_RETRY_ALONE_S
        return failure is None or now_s - failure.at_s >= min(failure.wait_s, most_s)
