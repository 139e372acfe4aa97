"""The KV blocks of one job: what it finds in the cache, reserves, names as it computes, and leaves behind."""

from __future__ import annotations

from longboat.routing.prefixes.prompt import BLOCK_BYTES
from longboat.simulator.engine.block_cache import BlockCache, Segment
from longboat.simulator.engine.job import Job

__all__ = ("blocks_of", "free_blocks", "name_blocks", "reserve")


def blocks_of(tokens: int, block_tokens: int) -> int:
    """Return the blocks that hold as many tokens."""
    return -(-tokens // block_tokens)


def reserve(job: Job, cache: BlockCache, block_tokens: int, caching: bool) -> bool:
    """Give a job the cached prefix of its prompt and blocks for the rest; False, with no effect: too few are free."""
    prompt = job.prompt
    target = prompt.num_tokens + job.generated
    found = _found(job, cache, target) if caching else []
    shared = 0
    for segment in found:
        shared += segment.blocks
    needed = max(0, blocks_of(target, block_tokens) - shared)
    if needed > cache.free - cache.unused_blocks(found):
        return False
    cache.take(found)
    cache.allocate(needed)
    job.segments = found
    job.target = target
    job.reserved = shared + needed
    job.computed = min(_tokens_at(job, len(found)), target - 1) // block_tokens * block_tokens
    job.passed = len(found)
    if job.cached_tokens < 0:
        job.cached_tokens = job.computed
    return True


def name_blocks(job: Job, cache: BlockCache, block_tokens: int) -> None:
    """Let others find what the job's next chunk computes: those that are taken in later compute it no second time."""
    names, ends = job.prompt.blocks, job.prompt.ends
    reach = job.computed + job.chunk
    at = job.passed
    before = _tokens_at(job, at) // block_tokens  # blocks of the KV cache before the next block of the prompt
    while at < len(ends):
        end = ends[at]
        if end > reach:
            break
        whole = end // block_tokens
        segment = cache.store(names[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES], whole - before)
        if segment is not None:
            job.segments.append(segment)
        before = whole
        at += 1
    job.passed = at


def free_blocks(job: Job, cache: BlockCache, block_tokens: int) -> None:
    """Release all blocks of a job. What it computed stays in the cache until it is evicted."""
    computed = job.computed
    held = max(job.reserved, blocks_of(computed, block_tokens))
    named = 0
    for segment in job.segments:
        named += segment.blocks
    whole = computed // block_tokens
    cache.give_back(held - max(whole, named))
    _leave(job, cache, block_tokens, max(0, whole - named))
    cache.release(job.segments)
    job.segments = []
    job.computed = 0


def _leave(job: Job, cache: BlockCache, block_tokens: int, unnamed: int) -> None:
    """Leave computed blocks without a segment: those of the output get their names, where they have any."""
    answer: list[Segment] = []
    names, start = job.answer_blocks, job.prompt.ends[-1] if job.prompt.ends else 0
    for at, end in enumerate(job.answer_ends):
        width = end // block_tokens - start // block_tokens
        if end > job.computed or width > unnamed:
            break
        segment = cache.store(names[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES], width)
        if segment is not None:
            answer.append(segment)
            unnamed -= width
        start = end
    cache.release_unnamed(unnamed)
    cache.release(answer)


def _found(job: Job, cache: BlockCache, target: int) -> list[Segment]:
    """Return the cached prefix; at least one token is left to compute, and a block that holds it is not shared."""
    found = cache.find(job.prompt.blocks)
    ends = job.prompt.ends
    while found and ends[len(found) - 1] >= target and found[-1].blocks <= 1:
        found.pop()
    return found


def _tokens_at(job: Job, depth: int) -> int:
    return job.prompt.ends[depth - 1] if depth else 0
