"""Weights on this node: fetched where they are missing, checked, and pinned for as long as they are used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from longboat.core.errors import TransferError, UserInputError
from longboat.file_lock import FileLock
from longboat.telemetry import logger
from longboat.weights.fetch.fetcher import Fetcher, FetchOptions
from longboat.weights.pieces.manifest import Manifest, parts_of
from longboat.weights.pieces.rate import Progress
from longboat.weights.sources.location import locate
from longboat.weights.sources.open_store import StorageOptions
from longboat.weights.sources.shards import check_shards
from longboat.weights.sources.storage import Storage
from longboat.weights.store.piece_folder import WrongHashError
from longboat.weights.store.store import Store
from longboat.weights.swarm.node_client import NodeClient
from longboat.weights.swarm.swarm_link import SwarmAddress, SwarmLink

__all__ = ("HeldWeights", "NodeWeights", "WeightsOptions")

LOOK_EVERY_S: Final = 0.2
log = logger("weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOptions:
    """Everything that the fleet file says of weights, as one node needs it."""

    storage: StorageOptions = field(default_factory=StorageOptions)
    fetch: FetchOptions = field(default_factory=FetchOptions)
    disk_bytes: int | None = None  # budget of all weights of a node; None: what the disk has


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWeights:
    """A whole model that is not evicted while this is kept."""

    key: str
    path: Path  # folder, or the one file, for engines
    pin: FileLock

    def release(self) -> None:
        """Let the model be evicted from now on, when no other process uses it."""
        self.pin.release()


class NodeWeights:
    """The weights of this node. swarm: where the node shares them; None: it reads the storage alone.

    latest_swarm: returns where the node shares them now, for fetches that outlive a tracker; None: not known
    """

    def __init__(
        self,
        home: Path,
        options: WeightsOptions = WeightsOptions(),
        swarm: SwarmAddress | None = None,
        env: Mapping[str, str] = os.environ,
        *,
        latest_swarm: Callable[[], SwarmAddress | None] = lambda: None,
    ) -> None:
        self.store = Store(home)
        self._options = options
        self._swarm = swarm
        self._env = env
        self._latest_swarm = latest_swarm

    def hold(self, source: str, on_progress: Callable[[Progress], None] = lambda progress: None) -> HeldWeights:
        """Return a source's weights, fetched first where they are missing or have changed in the source.

        Blocks while they are fetched. Where another process of the node fetches them, waits for it. Raises
        TransferError where the source fails, ClusterError where the disk does. Where the source cannot be asked, the
        weights that the node has are used.
        """
        storage = Storage(source, self._options.storage, env=self._env)
        try:
            manifest = storage.manifest()
        except (TransferError, UserInputError) as error:
            if (held := self._older(source)) is None:
                raise
            log.warning("%s: the weights that this node has are used", error)
            return held
        while True:
            if (held := self._held(manifest.key, source)) is not None:
                return held
            lock = self.store.fetch_lock(manifest.key)
            if lock is None:
                self._wait(manifest, on_progress)
                continue
            with lock:
                if self.store.published(manifest.key) is None:
                    self._fetch(manifest, storage, on_progress)

    def _older(self, source: str) -> HeldWeights | None:
        """Return the whole model of a source that was used last; None where there is none."""
        keys = self.store.whole(source)
        return next((held for key in keys if (held := self._held(key, source)) is not None), None)

    def _held(self, key: str, source: str) -> HeldWeights | None:
        """Pin a whole model; None where it is not there, or another process removes it."""
        if self.store.published(key) is None or (pin := self.store.pin(key)) is None:
            return None
        is_there = False
        try:
            is_there = self.store.published(key) is not None  # or it was removed between the look and the pin
        finally:
            if not is_there:
                pin.release()
        if not is_there:
            return None
        first, *_ = parts_of(locate(source).name)
        return HeldWeights(key=key, path=self.store.engine_path(key, first), pin=pin)

    def _fetch(self, manifest: Manifest, storage: Storage, on_progress: Callable[[Progress], None]) -> None:
        check_shards(storage, manifest)
        folder = self.store.begin(manifest, self._options.disk_bytes)
        client = NodeClient(self._swarm.token) if self._swarm else None

        def report(progress: Progress) -> None:
            self.store.progress(manifest.key).write(progress)
            on_progress(progress)

        try:
            link = SwarmLink(folder, self._options.fetch.limits, client, self._swarm, self._latest_swarm)
            fetcher = Fetcher(folder, storage, link, client, self._options.fetch, report)
            fetcher.run()
            try:
                self.store.publish(folder)
            except WrongHashError:
                fetcher.doubt_missing()
                raise
        finally:
            if client is not None:
                client.close()

    def _wait(self, manifest: Manifest, on_progress: Callable[[Progress], None]) -> None:
        """Wait a moment for the process that fetches."""
        if progress := self.store.progress(manifest.key).read():
            on_progress(progress)
        time.sleep(LOOK_EVERY_S)
