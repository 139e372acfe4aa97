"""An engine's KV cache: blocks with reference counts, shared by prefix, evicted when they were unused the longest."""

from __future__ import annotations

from typing import Protocol

__all__ = ("BlockCache", "CacheWatcher", "Segment")


class Segment:
    """Consecutive KV blocks that are cached, shared and evicted together: those of one block of a trace."""

    __slots__ = ("after", "before", "blocks", "name", "refs")

    def __init__(self, name: bytes, blocks: int) -> None:
        self.name = name  # hash of the prompt up to the segment's end; empty: no prompt is known to begin with it
        self.blocks = blocks
        self.refs = 1  # sequences that use it; at 0 it may be evicted
        self.before: Segment | None = None  # in the order of eviction, while no sequence uses it
        self.after: Segment | None = None


class CacheWatcher(Protocol):
    """One that wants to know what a cache stores and evicts."""

    def changed(self) -> None:
        """Note that the first change came since the changes were last taken."""


class BlockCache:  # size: each method is one thing that happens to blocks
    """The blocks of one engine. A block is empty, used by sequences, or cached and free to be evicted."""

    __slots__ = ("_ends", "_segments", "changes", "empty", "free", "total", "watcher")

    def __init__(self, total: int) -> None:
        self.total = total
        self.empty = total  # blocks that hold nothing
        self.free = total  # blocks that a sequence may get: empty ones, and those to evict
        self._segments: dict[bytes, Segment] = {}
        # A circle: after it comes the segment that is evicted first, before it the one that was used last.
        self._ends = Segment(b"", 0)
        self._ends.after = self._ends.before = self._ends
        self.watcher: CacheWatcher | None = None
        self.changes: dict[bytes, bool] = {}  # names stored (True) or evicted since the changes were last taken

    def __contains__(self, name: bytes) -> bool:
        return name in self._segments

    def __len__(self) -> int:
        return len(self._segments)

    def find(self, names: bytes) -> list[Segment]:
        """Return the segments of the longest prefix that is here. names: of a prompt's blocks, 8 bytes each"""
        found: list[Segment] = []
        for at in range(0, len(names), 8):
            segment = self._segments.get(names[at : at + 8])
            if segment is None:
                break
            found.append(segment)
        return found

    def take(self, segments: list[Segment]) -> None:
        """Use cached segments."""
        for segment in segments:
            if not segment.refs:
                self._unlink(segment)
                self.free -= segment.blocks
            segment.refs += 1

    def unused_blocks(self, segments: list[Segment]) -> int:
        """Return the blocks of those segments that no sequence uses: taking them makes as many fewer free."""
        count = 0
        for segment in segments:
            if not segment.refs:
                count += segment.blocks
        return count

    def allocate(self, blocks: int) -> None:
        """Take free blocks; there must be as many. Cached segments are evicted for them in their order."""
        while self.empty < blocks:
            oldest = self._ends.after
            assert oldest is not None and oldest is not self._ends, "more blocks were asked for than are free"
            self._evict(oldest)
        self.empty -= blocks
        self.free -= blocks

    def store(self, name: bytes, blocks: int) -> Segment | None:
        """Give a name to blocks that a sequence allocated and computed; None where another segment has that name."""
        if name in self._segments:
            return None
        segment = self._segments[name] = Segment(name, blocks)
        self._note(name, True)
        return segment

    def release(self, segments: list[Segment]) -> None:
        """End the use of a sequence's segments, first to last: the last one is evicted before those that precede it."""
        for at in range(len(segments) - 1, -1, -1):
            segment = segments[at]
            segment.refs -= 1
            if not segment.refs:
                self._link(segment)
                self.free += segment.blocks

    def release_unnamed(self, blocks: int) -> None:
        """End the use of computed blocks that have no name: they stay until they are evicted, as others do."""
        if blocks:
            segment = Segment(b"", blocks)
            segment.refs = 0
            self._link(segment)
            self.free += blocks

    def give_back(self, blocks: int) -> None:
        """End the use of blocks that hold nothing whole: they are the first to be used again."""
        self.empty += blocks
        self.free += blocks

    def take_changes(self) -> dict[bytes, bool]:
        """Return the names stored (True) or evicted (False) since the last call."""
        changes, self.changes = self.changes, {}
        return changes

    def clear(self) -> None:
        """Evict all that no sequence uses."""
        while self._ends.after is not self._ends:
            assert self._ends.after is not None
            self._evict(self._ends.after)

    def _evict(self, segment: Segment) -> None:
        self._unlink(segment)
        self.empty += segment.blocks
        if segment.name:
            del self._segments[segment.name]
            self._note(segment.name, False)

    def _note(self, name: bytes, held: bool) -> None:
        if self.watcher is not None:
            if not self.changes:
                self.watcher.changed()
            self.changes[name] = held

    def _link(self, segment: Segment) -> None:
        last = self._ends.before
        assert last is not None
        segment.before, segment.after = last, self._ends
        last.after = self._ends.before = segment

    def _unlink(self, segment: Segment) -> None:
        before, after = segment.before, segment.after
        assert before is not None and after is not None
        before.after, after.before = after, before
        segment.before = segment.after = None
