"""What notes cost SGLang's radix tree, without an engine: run by ``bench_sglang_prefixes`` in SGLang's environment.

Printed for each size of pages: the time to insert a new prompt without and with notes, and to send the notes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from array import array
from statistics import median
from typing import Any

from longboat_sglang import without_cuda
from longboat_sglang.prefixes.tree import Sender

PAGES = (1, 8, 16, 64)
PROMPTS, TOKENS, VOCABULARY = 400, 2048, 131_072


def tree(page: int, notes: bool) -> Any:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    params = CacheInitParams(
        disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=None, page_size=page,
        enable_kv_cache_events=notes, tree_components=(ComponentType.FULL,), tree_core_backend="rust",
    )  # fmt: skip
    return UnifiedRadixCache(params)


def measure(page: int, notes: bool) -> tuple[float, float]:
    """Return the medians of the time to insert a prompt and of the time to send the notes about it (ms)."""
    import torch
    import zmq
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    cache, chance, places = tree(page, notes), random.Random(page), torch.arange(TOKENS)
    address = f"ipc://{tempfile.mkdtemp()}/kv"
    reader = zmq.Context.instance().socket(zmq.PULL)
    reader.bind(address)
    sender = Sender(cache.tree_core._binding.take_events, address)
    inserts, sends = [], []
    for _ in range(PROMPTS):
        prompt = array("q", (chance.randrange(VOCABULARY) for _ in range(TOKENS)))
        start_s = time.perf_counter()
        cache.insert(InsertParams(key=RadixKey(prompt), value=places))
        inserted_s = time.perf_counter()
        sender.send()
        inserts.append(inserted_s - start_s)
        sends.append(time.perf_counter() - inserted_s)
    reader.close(linger=0)
    sender._socket.close(linger=0)
    return 1000 * median(inserts), 1000 * median(sends)


def main() -> None:
    without_cuda.prepare()
    for page in PAGES:
        plain, _ = measure(page, notes=False)
        noted, send = measure(page, notes=True)
        print(f"page {page:2}: insert {plain:.3f} ms, with notes {noted:.3f} ms, send {send:.3f} ms", flush=True)


if __name__ == "__main__":
    sys.exit(main())
