"""Measures the index of prefixes and a decision: beside a copy of the same bytes, events a second, memory.

``make bench-index``. Every figure is CPU time, and the best of several, because other work on the machine only makes
them worse. A decision is all that a gateway does to choose a replica: it hashes the prompt, looks the blocks up and
weighs the replicas. Run ``python hatch_build.py`` before: a decision in plain Python takes some four times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from longboat.core.states import Endpoint
from longboat.gateway.api.body_fields import BodyKind
from longboat.gateway.api.prompt_blocks import prompt_blocks
from longboat.gateway.config import GatewayLimits
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing import router as router_module
from longboat.routing.policies.registry import policy_of
from longboat.routing.prefixes.prompt import Prompt
from longboat.routing.prefixes.shared_index import SharedIndex
from longboat.routing.router import Router

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
        _lookup(index, num_tokens)
    kind = "plain Python" if router_module.__file__.endswith(".py") else "compiled"
    for is_loaded in (False, True):
        for num_tokens in (2_000, 100_000):
            print(f"decision ({kind}), {_decision(num_tokens, is_loaded)}")


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


def _lookup(index: SharedIndex, num_tokens: int) -> None:
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


def _decision(num_tokens: int, is_loaded: bool) -> str:
    """Time whole decisions among replicas that are idle and hold nothing, or that are unlike each other in all."""
    body = _chat(num_tokens)
    upstreams = [_upstream(number) for number in range(_REPLICAS)]
    found = {}
    for policy in ("cost", "round_robin"):
        router = Router(policy_of(policy), SharedIndex(64 << 20, _REPLICAS))
        if is_loaded:
            _load(router, upstreams, prompt_blocks(body, BodyKind.CHAT, b"seed")[0])

        def decide(router: Router = router) -> None:
            names, ends = prompt_blocks(body, BodyKind.CHAT, b"seed")
            prompt = Prompt("request", num_tokens, blocks=names, ends=ends)
            router.choose(prompt, upstreams, turn=1, now_s=1.0)

        found[policy] = _best_us(decide)
    state = "loaded" if is_loaded else "idle"
    return (
        f"{_REPLICAS} {state} replicas, prompt of {num_tokens:,} tokens: {found['cost']:.1f} us; "
        f"with round robin {found['round_robin']:.1f} us (ratio {found['cost'] / found['round_robin']:.1f})"
    )


def _upstream(number: int) -> Upstream:
    url = f"http://10.0.0.{number}:8000"
    upstream = Upstream(Endpoint(model="m", replica=f"m-{number}", generation=1, url=url), GatewayLimits())
    upstream.capacity = upstream.sequences = 256
    return upstream


def _load(router: Router, upstreams: list[Upstream], names: bytes) -> None:
    """Give the replicas requests, some of them decoding, and beginnings of the prompt of unlike lengths."""
    draw = random.Random(3)
    for number in range(20 * _REPLICAS):
        upstream = upstreams[draw.randrange(_REPLICAS)]
        prompt = Prompt(str(number), draw.randrange(100, 8000))
        router.sent(prompt, upstream.key, cached_tokens=0, now_s=0.1)
        if draw.random() < 0.8:
            router.first_token(prompt, cached_tokens=0, now_s=0.2)
    for number, upstream in enumerate(upstreams):
        router.limit(upstream.key, upstream.sequences)
        router.index.place(router.load_of(upstream.key).slot, names[: len(names) // 8 * number // _REPLICAS * 8])


def _chat(num_tokens: int) -> bytes:
    rng = random.Random(2)
    size = 4 * num_tokens // 20
    messages = [{"role": "user", "content": rng.randbytes(size).hex()[: size - 30]} for _ in range(20)]
    return json.dumps({"model": "m", "messages": messages}, separators=(",", ":")).encode()


def _best_us(work: Callable[[], object]) -> float:
    best_s = float("inf")
    for _ in range(200):
        started_s = time.process_time()
        work()
        best_s = min(best_s, time.process_time() - started_s)
    return best_s * 1e6


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 2**20


if __name__ == "__main__":
    main()
