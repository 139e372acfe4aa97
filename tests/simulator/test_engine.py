"""Tests of a simulated engine: it gives what an engine gives that makes each step and moves each block."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_engine import NaiveEngine, NaiveJob

from longboat.routing.prefixes.prompt import BLOCK_BYTES, Prompt
from longboat.simulator.engine.decode_batch import DecodeBatch
from longboat.simulator.engine.engine import SimEngine
from longboat.simulator.engine.host import Host
from longboat.simulator.engine.jitter import Jitter
from longboat.simulator.engine.job import Job
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime
from longboat.simulator.results.histogram import Histogram
from longboat.simulator.timeline import Timeline
from longboat.simulator.traces.block_names import chained_names, even_ends

BLOCK = 4
TIME = StepTime(
    base_s=0.01, prompt_base_s=0.004, prompt_token_s=1e-3, prompt_pair_s=1e-6, sequence_s=1e-3, kv_token_s=1e-5,
    wake_s=0.007,
)  # fmt: skip


class Listener:
    """Keeps the ends of jobs, and the times between tokens."""

    def __init__(self) -> None:
        self.ended_s: dict[Job, float] = {}
        self.itl_s = Histogram()
        self.steps = 0

    def first_token(self, job: Job, now_s: float) -> None:
        pass

    def ended(self, job: Job, now_s: float) -> None:
        assert job not in self.ended_s
        self.ended_s[job] = now_s

    def gaps(self, first_s: float, growth_s: float, steps: int, sequences: int) -> None:
        self.itl_s.add_series(first_s, growth_s, steps, sequences)


def play(jobs: list[Job], limits: EngineLimits, jitter: Jitter | None = None) -> tuple[SimEngine, Listener]:
    timeline, listener = Timeline(), Listener()
    engine = SimEngine(TIME, limits, timeline, listener, jitter=jitter)
    coming = sorted(jobs, key=lambda job: job.arrived_s)
    while coming or len(timeline):
        if coming and coming[0].arrived_s <= timeline.next_s:
            job = coming.pop(0)
            engine.submit(job, job.arrived_s)
        else:
            timeline.step()
    return engine, listener


def job_of(arrived_s: float, parts: list[int], tail: int, output: int, key: str) -> Job:
    """Make a job whose whole blocks hold ``parts``, and that has ``tail`` more tokens."""
    tokens = len(parts) * BLOCK + tail
    blocks = [*parts, 1_000_000 + int(key)] if tail else parts
    prompt = Prompt(key, tokens, blocks=chained_names(blocks), ends=even_ends(tokens, BLOCK))
    return Job(prompt, output, arrived_s)


def naive_of(job: Job) -> NaiveJob:
    whole = job.prompt.num_tokens // BLOCK
    names = [job.prompt.blocks[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES] for at in range(whole)]
    return NaiveJob(job.arrived_s, job.prompt.num_tokens, job.output_tokens, names)


REQUESTS = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.lists(st.integers(0, 2), min_size=1, max_size=8),
        st.integers(0, BLOCK - 1),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=14,
)


@settings(deadline=None, max_examples=100)
@given(
    requests=REQUESTS,
    kv_blocks=st.integers(19, 60),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(9, 40),
    data_parts=st.integers(1, 3),
)
def test_gives_what_an_engine_gives_that_makes_each_step(
    requests: list[tuple[float, list[int], int, int]],
    kv_blocks: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    data_parts: int,
) -> None:
    limits = EngineLimits(
        kv_blocks=kv_blocks,
        block_tokens=BLOCK,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        data_parts=data_parts,
    )
    jobs = [job_of(at + n * 1e-7, parts, tail, out, str(n)) for n, (at, parts, tail, out) in enumerate(requests)]
    jobs.sort(key=lambda job: job.arrived_s)
    slow = [naive_of(job) for job in jobs]
    NaiveEngine(TIME, limits).run(slow)
    engine, listener = play(jobs, limits)
    assert engine.batch.cache.free == kv_blocks and not engine.batch.jobs()
    for job, expected in zip(jobs, slow, strict=True):
        assert job.first_s == pytest.approx(expected.first_s, abs=1e-9)
        assert listener.ended_s[job] == pytest.approx(expected.end_s, abs=1e-9)
        assert (job.cached_tokens, job.preemptions) == (expected.cached, expected.preemptions)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 40), st.integers(0, 80))
def test_steps_fit_where_there_are_the_blocks_that_they_need(targets: list[int], steps: int, blocks: int) -> None:
    decodes = DecodeBatch(BLOCK)
    for number, target in enumerate(targets):
        job = Job(Prompt(f"{number}", target), 100, 0.0)
        job.target = target
        decodes.enter(job)
    assert decodes.fits(steps, blocks) == (decodes.blocks_needed(steps) <= blocks)


def test_counts_every_gap_between_tokens() -> None:
    jobs = [job_of(0.3 * n, [n], 0, 50, str(n)) for n in range(8)]
    _, listener = play(jobs, EngineLimits(kv_blocks=1000, block_tokens=BLOCK))
    assert listener.itl_s.count == 8 * 49
    spent_s = sum(listener.ended_s[job] - job.first_s for job in jobs)
    assert listener.itl_s.total == pytest.approx(spent_s)


def test_a_job_that_stops_with_its_engine_keeps_the_tokens_that_came() -> None:
    timeline, listener = Timeline(), Listener()
    engine = SimEngine(TIME, EngineLimits(kv_blocks=1000, block_tokens=BLOCK), timeline, listener)
    job = job_of(0.0, [1, 2], 1, 100, "1")
    engine.submit(job, 0.0)
    timeline.step()
    before = engine.tokens_of(job, job.first_s)
    later_s = job.first_s + TIME.decode_s(10, 1, 10) + 1e-6
    assert before == 1 and engine.tokens_of(job, later_s) == 11
    assert engine.stop(later_s) == [job] and job.generated == 11
    while len(timeline):
        timeline.step()
    assert not listener.ended_s


def test_a_prompt_of_chunks_shares_its_steps_with_sequences_that_decode() -> None:
    short, long = job_of(0.0, [1], 0, 20, "1"), job_of(0.02, list(range(2, 30)), 0, 2, "2")
    limits = EngineLimits(kv_blocks=1000, block_tokens=BLOCK, max_num_batched_tokens=32)
    _, listener = play([short, long], limits)
    assert listener.ended_s[long] < listener.ended_s[short]
    assert listener.itl_s.quantile(1.0) > 2 * TIME.decode_s(1, 1, 10)


def test_data_parts_compute_prompts_beside_as_many_sequences_as_one_part_has_tokens() -> None:
    decoding = [job_of(0.0, [n], 0, 100, f"{n}") for n in range(1, 9)]
    late = job_of(0.05, list(range(10, 14)), 0, 2, "late")
    sequences = {"kv_blocks": 1000, "block_tokens": BLOCK, "max_num_seqs": 16}
    _, listener = play([*decoding, late], EngineLimits(**sequences, max_num_batched_tokens=8, data_parts=2))
    assert listener.ended_s[late] < min(listener.ended_s[job] for job in decoding)


def test_one_prompt_is_computed_by_one_data_part() -> None:
    def last_s(jobs: list[Job], data_parts: int) -> float:
        limits = EngineLimits(kv_blocks=1000, block_tokens=BLOCK, max_num_batched_tokens=16, data_parts=data_parts)
        return max(play(jobs, limits)[1].ended_s.values())

    def prompt(name: int) -> Job:
        return job_of(0.0, list(range(name, name + 20)), 0, 1, f"{name}")

    assert last_s([prompt(100)], 2) == pytest.approx(last_s([prompt(100)], 1))
    assert last_s([prompt(100), prompt(200)], 2) < last_s([prompt(100), prompt(200)], 1)


def test_an_engine_that_rested_takes_longer_for_its_first_step() -> None:
    first, soon, late = (job_of(at_s, [n], 0, 1, str(n)) for n, at_s in enumerate((0.0, 0.04, 1.0)))
    play([first, soon, late], EngineLimits(kv_blocks=1000, block_tokens=BLOCK))
    warm_s = TIME.mixed_s(BLOCK, BLOCK * BLOCK / 2, 0, 0)
    spent_s = [job.first_s - job.arrived_s for job in (first, soon, late)]
    assert spent_s == pytest.approx([warm_s + TIME.wake_s, warm_s, warm_s + TIME.wake_s])


def test_jitter_changes_the_length_of_each_step_and_not_what_it_does() -> None:
    limits = EngineLimits(kv_blocks=1000, block_tokens=BLOCK)
    plain, shaken = ([job_of(0.0, [n], 0, 40, str(n)) for n in range(4)] for _ in range(2))
    _, calm = play(plain, limits)
    _, listener = play(shaken, limits, Jitter((-0.004, 0.004), seed=1))
    assert listener.itl_s.count == calm.itl_s.count
    assert listener.itl_s.quantile(0.1) < calm.itl_s.quantile(0.0) - 0.003
    assert listener.itl_s.quantile(0.9) > calm.itl_s.quantile(0.9) + 0.003
    again = [job_of(0.0, [n], 0, 40, str(n)) for n in range(4)]
    play(again, limits, Jitter((-0.004, 0.004), seed=1))
    assert [job.first_s for job in again] == [job.first_s for job in shaken]


class TestEnginesOfOneHost:
    """Engines whose steps take longer while others compute beside them."""

    STEP = StepTime(base_s=0.01, prompt_token_s=1e-9)
    CROWDING = 0.6

    def ends(self, starts: list[float], outputs: list[int]) -> list[float]:
        """Play one job on each of several engines of a host, and return when each ends."""
        timeline, listener, host = Timeline(), Listener(), Host(self.CROWDING)
        limits = EngineLimits(kv_blocks=1000)
        engines = [SimEngine(self.STEP, limits, timeline, listener, host=host) for _ in starts]
        jobs = [
            Job(Prompt(f"{at}", 1), output, start)
            for at, (start, output) in enumerate(zip(starts, outputs, strict=True))
        ]
        coming = sorted(range(len(jobs)), key=lambda at: jobs[at].arrived_s)
        while coming or len(timeline):
            if coming and jobs[coming[0]].arrived_s <= timeline.next_s:
                at = coming.pop(0)
                engines[at].submit(jobs[at], jobs[at].arrived_s)
            else:
                timeline.step()
        return [listener.ended_s[job] for job in jobs]

    def test_alone_a_step_takes_its_time(self) -> None:
        assert self.ends([0.0, 5.0], [100, 100]) == pytest.approx([1.0, 6.0])

    def test_together_each_step_takes_longer_by_each_neighbour(self) -> None:
        assert self.ends([0.0, 0.0, 0.0], [100, 100, 100]) == pytest.approx([2.2, 2.2, 2.2], rel=0.01)

    def test_only_while_the_neighbour_computes(self) -> None:
        first, second = self.ends([0.0, 0.505], [100, 20])
        assert second == pytest.approx(0.505 + 20 * 0.016)
        crowded = 0.32 / 0.016
        assert first == pytest.approx(0.51 + (crowded * 0.016) + (100 - 51 - crowded) * 0.01, abs=0.011)
