"""Reads from /proc which connections of a rank's processes with other hosts repeat data without an acknowledgement."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from longboat.cluster.usage.proc_usage import process_tree
from longboat.routing.health.links import WELL, Connection, LinkRecord, LinkState

__all__ = ("RankLinks", "kernel_words", "repeating_connections")

_READ_EVERY_S, _SUSPECT_EVERY_S = 1.0, 0.25
"""The kernel takes milliseconds to write its table, so that it is read often only while a connection repeats data."""

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED = "01"
_MAPPED = "::ffff:"
"""Begins IPv4 addresses in the table of IPv6."""


class RankLinks:
    """The connections of one rank, by its main process, with ``peers``: the addresses of its gang's other hosts."""

    def __init__(self, pid: int, peers: Collection[str] = ()) -> None:
        self._pid = pid
        self.watch(peers)
        self._record = LinkRecord()
        self._state = WELL
        self._next_s = 0.0

    def watch(self, peers: Collection[str]) -> None:
        """Read the connections with these peers from now on."""
        self._peers = kernel_words(peers)

    def read(self) -> LinkState:
        """Return the state of the worst link; the tables are read now and then."""
        now_s = time.monotonic()
        if self._peers and now_s >= self._next_s:
            suspects = [found for table in _TABLES for found in repeating_connections(_lines(table), self._peers)]
            inodes = _inodes(self._pid) if suspects else frozenset[int]()
            ours = [found for found in suspects if found.inode in inodes]
            self._state = self._record.read(ours, now_s)
            self._next_s = now_s + (_SUSPECT_EVERY_S if ours else _READ_EVERY_S)
        return self._state


def kernel_words(addresses: Iterable[str]) -> dict[str, str]:
    """Return addresses by how the kernel's tables write them: as words, which are numbers in this host's order."""
    words = {}
    for address in addresses:
        if ":" not in address:
            words[_word(socket.AF_INET, address)] = address
        words[_word(socket.AF_INET6, address if ":" in address else _MAPPED + address)] = address
    return words


def _word(family: socket.AddressFamily, address: str) -> str:
    packed = socket.inet_pton(family, address)
    return "".join(f"{word:08X}" for word in struct.unpack(f"={len(packed) // 4}I", packed))


def repeating_connections(lines: Iterable[str], peers: Mapping[str, str]) -> Iterator[Connection]:
    """Yield the established connections with ``peers`` that repeat data, from the lines of a table of the kernel.

    peers: addresses by their words in the table
    """
    for line in lines:
        if not any(word in line for word in peers):  # a gateway's host has a line for each of its clients
            continue
        fields = line.split(None, 10)
        if len(fields) < 10 or fields[3] != _ESTABLISHED or not (num_repeats := int(fields[6], 16)):
            continue
        if peer := peers.get(fields[2].partition(":")[0]):
            yield Connection(inode=int(fields[9]), peer=peer, num_repeats=num_repeats)


def _lines(table: str) -> list[str]:
    try:
        return Path(table).read_text().splitlines()[1:]
    except OSError:  # a kernel without IPv6, or without these tables
        return []


def _inodes(root_pid: int) -> frozenset[int]:
    """Return the sockets of a process and its descendants."""
    found = set()
    for pid in process_tree(root_pid):
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(descriptor.path)
                    if target.startswith("socket:["):
                        found.add(int(target[8:-1]))
    return frozenset(found)
