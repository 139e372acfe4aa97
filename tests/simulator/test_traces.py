"""Tests of traces: what each format means, and that a mistake names the file, the line and what works."""

from __future__ import annotations

import os
from base64 import b64encode
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.errors import UserInputError
from longboat.simulator.traces.azure import read_azure
from longboat.simulator.traces.block_names import chained, chained_names, mix
from longboat.simulator.traces.formats import reader_for
from longboat.simulator.traces.mooncake import read_mooncake
from longboat.simulator.traces.recorded import read_recorded
from longboat.simulator.traces.sessions import Sessions, generate_sessions, parse_sessions
from longboat.simulator.traces.shaping import shaped
from longboat.simulator.traces.trace_request import TraceRequest

MOONCAKE = '{"timestamp": %d, "input_length": 600, "output_length": 5, "hash_ids": [0, %d]}\n'
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
RECORDED = {
    "time_s": 100.5,
    "model": "m",
    "prompt_tokens": 300,
    "output_tokens": 20,
    "blocks": b64encode(b"a" * 8 + b"b" * 8).decode(),
    "ends": [400, 1200],
    "session": "s",
}


@given(blocks=st.lists(st.integers(-(1 << 70), 1 << 70), max_size=5), salt=st.integers(-5, 1 << 66))
def test_names_of_blocks_are_a_chain(blocks: list[int], salt: int) -> None:
    name, names = mix(salt), []
    for block in blocks:
        name = chained(name, block)
        names.append(name.to_bytes(8, "little"))
    assert chained_names(iter(blocks), salt) == b"".join(names)


def test_prompts_of_mooncake_share_names_up_to_where_they_differ() -> None:
    first, second = read_mooncake([MOONCAKE % (0, 1), MOONCAKE % (1500, 2)], "t")
    assert first.blocks[:8] == second.blocks[:8] and first.blocks[8:] != second.blocks[8:]
    assert (second.at_s, list(second.ends)) == (1.5, [512, 600])


def test_times_of_azure_count_from_the_first_request() -> None:
    lines = [AZURE, "2023-11-16 18:15:59.5000000,374,44\n", "2023-11-16 18:16:00.7500000,1000,0\n"]
    first, second = read_azure(lines, "t")
    assert (first.at_s, second.at_s, second.output_tokens) == (0.0, 1.25, 1)
    assert not set(blocks_of(first)) & set(blocks_of(second))


def test_ends_of_a_recorded_prompt_become_tokens() -> None:
    (found,) = read_recorded([orjson.dumps(RECORDED).decode()], "t")
    assert (list(found.ends), found.session, found.max_tokens) == ([100, 300], "s", None)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([MOONCAKE % (5, 1), '{"timestamp": 6, "input_len'], ":2: not JSON|cut off"),
        ([MOONCAKE % (5000, 1), MOONCAKE % (2000, 2)], ":2: the request is 3 s before|sort the file"),
        (['{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}'], ":1: input_length is 0"),
        (['{"timestamp": 0, "output_length": 1, "hash_ids": []}'], ":1: input_length is missing"),
        (['{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}'], "2 blocks of 512"),
        (['{"timestamp": "x", "input_length": 6, "output_length": 1, "hash_ids": [1]}'], ":1: timestamp is 'x'"),
        ([MOONCAKE % (0, 1), "[1]"], ":2: a JSON list"),
        (['{"hash_ids": "x", "input_length": 1}'], ":1: hash_ids must be a list"),
        ([AZURE, "2023-11-16 18:15:59,374\n"], ":2: GeneratedTokens is missing"),
        ([AZURE, "yesterday,374,1\n"], ":2: TIMESTAMP is 'yesterday'"),
        ([AZURE, "2023-11-16 18:15:59,many,1\n"], ":2: ContextTokens is 'many'"),
        ([AZURE, f"2023-11-16 18:15:59,1,{'9' * 5000}\n"], ":2: GeneratedTokens is '999|100000000"),
        ([AZURE, "x" * 200_000], ":2: not CSV|field limit|cut off"),
        ([AZURE, "2023-11-16 18:15:59,1,1\n", "2023-11-16 18:1"], ":3: TIMESTAMP is|cut off"),
        ([AZURE, "2023-11-16 18:15:59,1,1\n", "2023-11-16 18:15:58,1,1\n"], ":3: the request is 1 s before"),
        ([AZURE, "2023-11-16 18:15:59,1,1\n", "9999-12-31 23:59:59,1,1\n"], ":3: the request is|at most 604800"),
        ([MOONCAKE % (0, 1), MOONCAKE.replace("%d", "1e308", 1) % 2], ":2: timestamp is 1e+308|below 1e+18"),
        ([orjson.dumps(RECORDED | {"blocks": "?"}).decode()], ":1: blocks are not base64"),
        ([orjson.dumps(RECORDED | {"ends": [3]}).decode()], ":1: ends must be a list of 2"),
        ([orjson.dumps(RECORDED | {"ends": [3, 3]}).decode()], ":1: ends must grow"),
        ([orjson.dumps(RECORDED | {"prompt_tokens": 1.5}).decode()], ":1: prompt_tokens is 1.5"),
        ([""], "is empty"),
        (["hello\n"], "begins no known trace"),
    ],
)
def test_a_mistake_names_the_line_and_what_works(lines: list[str], words: str) -> None:
    with pytest.raises(UserInputError) as raised:
        list(reader_for(lines[0], "trace")(lines, "trace", 0))
    told = f"{raised.value.message} {raised.value.hint}"
    assert all(word in told for word in words.split("|")) and raised.value.hint


def test_a_trace_that_is_played_again_shares_nothing_with_the_first_time() -> None:
    lines = [MOONCAKE % (0, 1), MOONCAKE % (1000, 2)]
    found = list(shaped(lambda turn: read_mooncake(lines, "t", turn), requests=5))
    assert [request.at_s for request in found] == [0.0, 1.0, 1.5, 2.5, 3.0]
    assert not set(blocks_of(found[0])) & set(blocks_of(found[2]))


def test_a_trace_of_one_moment_has_no_rate_to_be_repeated_at() -> None:
    lines = [MOONCAKE % (0, 1)]
    assert len(list(shaped(lambda turn: read_mooncake(lines, "t", turn), requests=1))) == 1
    with pytest.raises(UserInputError, match="all at one moment"):
        list(shaped(lambda turn: read_mooncake(lines, "t", turn), requests=5))


def test_a_rate_and_jitter_keep_the_order_of_times() -> None:
    lines = [MOONCAKE % (1000 * n, n) for n in range(50)]
    found = list(shaped(lambda turn: read_mooncake(lines, "t", turn), rate_scale=4.0, jitter_s=3.0, seed=5))
    times = [request.at_s for request in found]
    assert times == sorted(times) and len(times) == 50
    assert 49 / 4 <= times[-1] <= 49 / 4 + 3.0
    again = list(shaped(lambda turn: read_mooncake(lines, "t", turn), rate_scale=4.0, jitter_s=3.0, seed=5))
    assert times == [request.at_s for request in again]


def test_a_trace_without_requests_is_refused() -> None:
    with pytest.raises(UserInputError, match="no requests"):
        list(shaped(lambda turn: read_azure([AZURE], "t", turn)))


def test_turns_of_a_conversation_begin_with_what_was_said() -> None:
    load = Sessions(rate=0.5, systems=2, system=200, turns=6.0, hours=0.1, block=16)
    by_talk: dict[str, list[TraceRequest]] = {}
    for request in generate_sessions(load, 3):
        by_talk.setdefault(request.session, []).append(request)
    for turns in by_talk.values():
        for before, after in pairwise(turns):
            known = [*blocks_of(before)[: before.prompt_tokens // 16], *names(before.answer_blocks)]
            assert blocks_of(after)[: len(known)] == known
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
    assert len({request.blocks[: 8 * (200 // 16)] for turns in by_talk.values() for request in turns}) == 2


@pytest.mark.parametrize("turns", [1.0, 1.5, 2.0, 5.0])
def test_conversations_have_the_turns_that_are_asked_for_on_average(turns: float) -> None:
    load = Sessions(rate=5.0, turns=turns, user=10, output=10, system=10, hours=0.5, longest=100_000_000)
    counts = Counter(request.session for request in generate_sessions(load, 1))
    assert counts.total() / len(counts) == pytest.approx(turns, rel=0.03)


def test_sessions_are_the_same_for_the_same_seed() -> None:
    first, second = ([r.blocks for r in islice(generate_sessions(Sessions(), 7), 200)] for _ in range(2))
    assert first == second


def test_a_count_of_sessions_with_a_fraction_is_named_as_no_whole_number() -> None:
    with pytest.raises(UserInputError, match=r"'4\.5' is not a whole number"):
        parse_sessions("sessions:systems=4.5")


@pytest.mark.parametrize("text", ["sessions:rat=4", "sessions:rate=many", "sessions:rate=0", "sessions:turns"])
def test_settings_of_sessions_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UserInputError) as raised:
        parse_sessions(text)
    assert raised.value.hint


@pytest.mark.skipif("LONGBOAT_TRACES" not in os.environ, reason="LONGBOAT_TRACES names no folder of traces")
@pytest.mark.parametrize("name", ["mooncake_conversation_trace.jsonl", "AzureLLMInferenceTrace_2023_conv.csv"])
def test_published_traces_can_be_read(name: str) -> None:
    path = Path(os.environ["LONGBOAT_TRACES"]) / name
    with path.open() as lines:
        reader = reader_for(next(lines), name)
    with path.open() as lines:
        assert sum(1 for _ in reader(lines, name, 0)) > 10_000


def blocks_of(request: TraceRequest) -> list[bytes]:
    return names(request.blocks)


def names(blocks: bytes) -> list[bytes]:
    return [blocks[at : at + 8] for at in range(0, len(blocks), 8)]
