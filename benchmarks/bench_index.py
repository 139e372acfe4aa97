"""Measures the index of prefixes: what a decision costs beside a copy of the same bytes, events a second, memory.

``make bench-index``. Every figure is the best of several, because other work on the machine only makes them worse.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from longboat.gateway.api.body_fields import BodyKind
from longboat.gateway.api.prompt_blocks import prompt_blocks
from longboat.routing.prefixes.shared_index import SharedIndex

__all__ = ("main",)

_REPLICAS = 128
_BATCH = 16  # blocks of an event
_PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5_000_000, help="block events (5,000,000)")
    parser.add_argument("--mib", type=int, default=64, help="the index's cap in MiB (64)")
    options = parser.parse_args()
    index = SharedIndex(options.mib << 20, _REPLICAS)
    print(f"index: {index.max_bytes / 2**20:.1f} MiB, room for {index.max_blocks:,} blocks, {index.max_slots} replicas")
    _events(index, options.events)
    for num_tokens in (2_000, 100_000):
        _decision(index, num_tokens)


def _events(index: SharedIndex, num: int) -> None:
    rng = random.Random(1)
    names = [rng.randbytes(8 * _BATCH) for _ in range(65_536)]
    held: list[tuple[int, bytes]] = []
    quarter, used_s, done = num // 4, 0.0, 0
    for _ in range(4):
        started_s = time.process_time()
        for at in range(quarter // _BATCH // 2):
            blocks = names[at % 65_536][8:] + (done + at).to_bytes(8, "little")  # not seen before
            index.place(at % _REPLICAS, blocks)
            held.append((at % _REPLICAS, blocks))
            if len(held) > 10_000:
                index.remove(*held.pop(rng.randrange(10_000)))
        used_s += time.process_time() - started_s
        done += quarter
        print(f"  {done:>9,} events: {_resident_mib():6.1f} MiB resident in this process")
    print(f"events: {num / used_s:,.0f} blocks/s of one core, in batches of {_BATCH}")


def _decision(index: SharedIndex, num_tokens: int) -> None:
    body = _chat(num_tokens)
    names, _ = prompt_blocks(body, BodyKind.CHAT, b"seed")
    for slot in range(_REPLICAS):
        index.place(slot, names[: len(names) // 8 * slot // _REPLICAS * 8])
    floor_us = _best_us(lambda: bytearray(body))
    hash_us = _best_us(lambda: prompt_blocks(body, BodyKind.CHAT, b"seed"))
    find_us = _best_us(lambda: index.depths(names, _REPLICAS))
    print(
        f"prompt of {num_tokens:,} tokens ({len(body):,} bytes, {len(names) // 8} blocks), {_REPLICAS} replicas: "
        f"hash {hash_us:.1f} us, look up {find_us:.1f} us; a copy of the body takes {floor_us:.1f} us "
        f"(ratio {(hash_us + find_us) / floor_us:.1f})"
    )


def _chat(num_tokens: int) -> bytes:
    rng = random.Random(2)
    size = 4 * num_tokens // 20
    messages = [{"role": "user", "content": rng.randbytes(size).hex()[: size - 30]} for _ in range(20)]
    return json.dumps({"model": "m", "messages": messages}, separators=(",", ":")).encode()


def _best_us(work: Callable[[], object]) -> float:
    best_s = float("inf")
    for _ in range(200):
        started_s = time.perf_counter()
        work()
        best_s = min(best_s, time.perf_counter() - started_s)
    return best_s * 1e6


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 2**20


if __name__ == "__main__":
    main()
