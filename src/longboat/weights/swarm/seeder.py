"""Keeps this node's whole models known to the trackers, so that other nodes fetch them from here."""

from __future__ import annotations

import threading
from typing import Final

from longboat.core.errors import ClusterError, LongboatError
from longboat.telemetry import logger
from longboat.weights.pieces.tracker import StorageLimits
from longboat.weights.pieces.turns import Turn
from longboat.weights.store.piece_folder import PieceFolder
from longboat.weights.store.store import Store
from longboat.weights.swarm.node_client import NodeClient
from longboat.weights.swarm.swarm_link import SwarmAddress, SwarmLink

__all__ = ("Seeder",)

EVERY_S: Final = 2.0
STOP_S: Final = 1.0
log = logger("weights")


class Seeder:
    """Turns for the models that the store has, in a thread of its own."""

    def __init__(self, store: Store, address: SwarmAddress) -> None:
        self._store = store
        self._address = address
        self._client = NodeClient(address.token)
        self._links: dict[str, tuple[PieceFolder, SwarmLink]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seeder", daemon=True)

    def start(self) -> None:
        """Begin to take turns."""
        self._thread.start()

    def follow(self, address: SwarmAddress) -> None:
        """Take the next turns with the trackers of this address."""
        self._address, self._links = address, {}

    def stop(self) -> None:
        """End the turns. One that waits for a tracker is not waited for to its end."""
        self._stopping.set()
        self._thread.join(STOP_S)
        self._client.close()

    def take_turns(self) -> int:
        """Take one turn for each whole model; return how many other nodes lack pieces of one."""
        num_hungry = 0
        keys = {stored.key for stored in self._store.list() if stored.is_whole}
        links = self._links
        for gone in links.keys() - keys:
            del links[gone]
        for key in sorted(keys):
            if self._stopping.is_set():
                break
            if (known := self._link(links, key)) is not None:
                folder, link = known
                turn = Turn(
                    member=self._address.member,
                    num_pieces=len(folder.pieces),
                    piece_bytes=folder.manifest.piece_bytes,
                )
                num_hungry += link.turn(turn).num_hungry if folder.pieces else 0
        return num_hungry

    def _link(self, links: dict[str, tuple[PieceFolder, SwarmLink]], key: str) -> tuple[PieceFolder, SwarmLink] | None:
        if key not in links:
            try:
                folder = self._store.published(key)
            except ClusterError as error:  # the others are offered
                log.warning("the weights %s cannot be offered to other nodes: %s", key, error)
                return None
            if folder is None:
                return None
            links[key] = (folder, SwarmLink(folder, StorageLimits(), self._client, self._address))
        return links[key]

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            try:
                self.take_turns()
            except (LongboatError, OSError) as error:  # a thread's root: the next turns must come
                log.warning("this node's weights cannot be offered to others: %s", error)
