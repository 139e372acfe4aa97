"""One fetch: takes turns with the tracker, reads pieces from storage and nodes, checks them and writes them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final

from longboat.core.errors import TransferError
from longboat.weights.pieces.manifest import FileEntry
from longboat.weights.pieces.rate import Progress, RateMeter
from longboat.weights.pieces.tracker import EXCLUDED_S, StorageLimits
from longboat.weights.pieces.turns import STORAGE, Answer, Done, Failed, Failure, Order, Turn
from longboat.weights.sources.storage import Storage
from longboat.weights.sources.storage_errors import MissingObjectError, ObjectChangedError, RefusedError
from longboat.weights.store.piece_folder import PieceFolder
from longboat.weights.swarm.node_client import NodeClient
from longboat.weights.swarm.swarm_link import SwarmLink

__all__ = ("FetchOptions", "Fetcher")

PAUSE_S: Final = 0.1
HEARTBEAT_S: Final = 1.0
REPORT_EVERY_S: Final = 0.5
NOTE_AFTER_S: Final = 2.0
"""Progress says what failed last where no piece came for this long."""
REFUSED_S: Final = EXCLUDED_S + 1.0
"""A node that the storage refuses waits this long before it gives up: for pieces of other nodes, and a second try."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request for a piece that runs."""

    order: Order
    began_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How a fetch behaves."""

    parallel: int = 8  # pieces at the same time
    # A fetch that brings no piece for this long is given up, unless requests that it began before the first failure
    # still run: each ends by itself where no bytes come, so a slow link has all the time that it needs.
    patience_s: float = 120.0
    limits: StorageLimits = field(default_factory=StorageLimits)  # of the storage, where the node reads alone


class Fetcher:  # size: the state of one fetch, most of it counts
    """The fetch of one model's missing pieces. Every piece that arrived stays, whatever ends the fetch."""

    def __init__(
        self,
        folder: PieceFolder,
        storage: Storage,
        link: SwarmLink,
        client: NodeClient | None,
        options: FetchOptions,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._folder = folder
        self._files: dict[str, FileEntry] = {file.path: file for file in folder.manifest.files}
        self._storage = storage
        self._link = link
        self._client = client
        self._options = options
        self._on_progress = on_progress
        self._running: dict[Future[Done | Failed], _Request] = {}
        self._failed_at_s: float | None = None  # when the first request failed since a piece came
        self._done: list[Done] = []
        self._failed: list[Failed] = []
        self._error: TransferError | None = None  # the last one that may pass
        self._meter = RateMeter(time.monotonic())
        self._from = {True: 0, False: 0}  # bytes of this fetch; True: from the storage
        self._arrived_at_s = self._turned_at_s = time.monotonic()
        self._reported_at_s = 0.0

    def run(self) -> None:
        """Fetch what is missing.

        Raises TransferError (or one of its kinds) where the source fails, ClusterError where the disk does.
        """
        with ThreadPoolExecutor(self._options.parallel, thread_name_prefix="weights") as pool:
            try:
                while not self._folder.record.is_whole:
                    self._take_turn(pool)
                    self._collect()
                    self._report()
                    self._lose_patience()
            finally:
                for future in self._running:
                    future.cancel()
        self._report(now=True)
        self._ask(0)  # the others learn at once that these pieces are here

    def doubt_missing(self) -> None:
        """Tell the tracker that the missing pieces came with wrong bytes, so that no node hands them on."""
        present = self._folder.record.present()
        self._failed = [
            Failed(piece=piece.index, source=STORAGE, why=Failure.WRONG)
            for piece in self._folder.pieces
            if piece.index not in present
        ]
        self._ask(0)

    def _take_turn(self, pool: ThreadPoolExecutor) -> None:
        """Report what came, and start what the tracker orders."""
        room = self._options.parallel - len(self._running)
        is_due = time.monotonic() - self._turned_at_s > HEARTBEAT_S
        if not (room or self._done or self._failed or is_due):
            return
        answer = self._ask(room)
        running = {request.order.piece for request in self._running.values()}
        for order in answer.orders:
            if order.piece not in running and not self._folder.record.has(order.piece):
                self._running[pool.submit(self._fetch, order)] = _Request(order, time.monotonic())

    def _ask(self, room: int) -> Answer:
        done, self._done = tuple(self._done), []
        failed, self._failed = tuple(self._failed), []
        self._turned_at_s = time.monotonic()
        return self._link.turn(
            Turn(
                member=self._link.member,
                num_pieces=len(self._folder.pieces),
                piece_bytes=self._folder.manifest.piece_bytes,
                want=room,
                done=done,
                failed=failed,
            )
        )

    def _collect(self) -> None:
        """Wait a moment for pieces, and count those that came. Raises what ends the fetch."""
        if not self._running:
            time.sleep(PAUSE_S)
            return
        finished, _ = wait(self._running, timeout=PAUSE_S, return_when=FIRST_COMPLETED)
        for future in finished:
            order = self._running.pop(future).order
            outcome = future.result()
            if isinstance(outcome, Failed):
                self._failed.append(outcome)
                self._failed_at_s = self._failed_at_s or time.monotonic()
                continue
            self._failed_at_s = self._error = None
            self._done.append(outcome)
            length = self._folder.pieces[order.piece].length
            self._arrived_at_s = time.monotonic()
            self._meter.add(length, self._arrived_at_s)
            self._from[order.source == STORAGE] += length

    def _fetch(self, order: Order) -> Done | Failed:
        """Fetch one piece, in a thread. Raises what no other try can mend."""
        piece = self._folder.pieces[order.piece]
        try:
            data = self._bytes(order)
        except (ObjectChangedError, MissingObjectError):
            raise
        except TransferError as error:
            self._error = error
            why = Failure.REFUSED if isinstance(error, RefusedError) else Failure.LOST
            return Failed(piece=order.piece, source=order.source, why=why)
        sha256 = hashlib.sha256(data).hexdigest()
        if order.sha256 and sha256 != order.sha256:
            giver = f"node {order.source}" if order.source else "the storage"
            self._error = TransferError(f"{giver} gave wrong bytes of {piece.path}")
            return Failed(piece=order.piece, source=order.source, why=Failure.WRONG)
        self._folder.put(piece, bytes(data) if isinstance(data, bytearray) else data, sha256)
        return Done(piece=order.piece, source=order.source, sha256=sha256)

    def _bytes(self, order: Order) -> bytes | bytearray:
        piece = self._folder.pieces[order.piece]
        if order.source == STORAGE:
            return self._storage.read(self._files[piece.path], piece.offset, piece.offset + piece.length)
        assert self._client is not None
        return self._client.piece(order.source, self._folder.manifest.key, piece.index, piece.length)

    def _report(self, *, now: bool = False) -> None:
        now_s = time.monotonic()
        if not now and now_s - self._reported_at_s < REPORT_EVERY_S:
            return
        self._reported_at_s = now_s
        note = self._error.message if self._error and now_s - self._arrived_at_s > NOTE_AFTER_S else ""
        self._on_progress(
            Progress(
                source=self._folder.manifest.source,
                total_bytes=self._folder.manifest.num_bytes,
                have_bytes=self._folder.have_bytes,
                from_storage_bytes=self._from[True],
                from_nodes_bytes=self._from[False],
                bytes_per_s=self._meter.bytes_per_s(now_s),
                note=note,
            )
        )

    def _lose_patience(self) -> None:
        """Give up where nothing comes any more. Raises the last error, and says what is kept."""
        waited_s = time.monotonic() - self._arrived_at_s
        if not self._is_refused() and (waited_s < self._options.patience_s or self._has_hope()):
            return
        kept = f"{len(self._folder.record.present())} of {len(self._folder.pieces)} pieces are kept"
        again = "then run it again: the fetch continues where it was"
        if self._error is None:
            raise TransferError(
                f"no piece of {self._folder.manifest.source} came for {waited_s:.0f} s; {kept}", hint=again
            )
        kind = type(self._error)
        raise kind(f"{self._error.message}; {kept}", hint=f"{self._error.hint or 'check the network'}; {again}")

    def _is_refused(self) -> bool:
        """Return whether the storage refuses this node for good, as far as it may be known."""
        if not isinstance(self._error, RefusedError) or self._failed_at_s is None or self._running:
            return False
        return not self._link.is_shared or time.monotonic() - self._failed_at_s > REFUSED_S

    def _has_hope(self) -> bool:
        """Return whether a request still runs that began before any failed since the last piece."""
        began_s = (request.began_at_s for request in self._running.values())
        return any(self._failed_at_s is None or at_s < self._failed_at_s for at_s in began_s)
