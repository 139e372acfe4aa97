"""Tests that extra arguments are refused where Longboat sets them, and flags are recognised in all spellings."""

from __future__ import annotations

import pytest

from longboat.engines.vllm.flags import ARGUMENTS, OWNED_FLAGS


@pytest.mark.parametrize(
    "words",
    [
        ("--port", "1"),
        ("--port=1",),
        ("--tensor_parallel_size", "2"),
        ("--tensor-parallel", "2"),
        ("-tp", "2"),
        ("-dpn", "2"),
        ("-asc", "4"),
        ("-ep",),
        ("--data-parallel-rpc-port=1",),
        ("--api-key", "x"),
        ("--hf-token", "x"),
        ("--headless",),
    ],
)
def test_flag_that_longboat_sets_is_refused_in_every_spelling(words: tuple[str, ...]) -> None:
    (problem,) = ARGUMENTS.problems(("--seed", "1", *words))
    assert problem.where == "[2]"
    assert words[0].partition("=")[0] in problem.what
    assert problem.hint in OWNED_FLAGS.values()


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--seed", "-1"),
        ("--max-num-seqs=4", "--no-enable-prefix-caching"),
        ("--hf-overrides", '{"port": 1}'),
        ("--compilation-config.mode", "none"),
        ("--model-impl", "auto"),
        ("-cc.mode=none",),
    ],
)
def test_other_flags_are_left_to_vllm(words: tuple[str, ...]) -> None:
    assert ARGUMENTS.problems(words) == ()


def test_word_that_is_no_flag_is_refused() -> None:
    (problem,) = ARGUMENTS.problems(("dtype", "float32"))
    assert "'dtype'" in problem.what


def test_flag_and_value_in_one_word_are_refused() -> None:
    (problem,) = ARGUMENTS.problems(("--seed=1", "--max-num-seqs 32"))
    assert problem.where == "[1]"
    assert problem.hint == 'write two: --max-num-seqs, "32"'
    assert ARGUMENTS.problems(('--override-generation-config={"a b": 1}', "--chat-template", "--a b")) == ()


def test_every_mistake_is_told() -> None:
    assert len(ARGUMENTS.problems(("--port", "1", "--host", "x", "--seed", "1"))) == 2


def test_flags_have_one_spelling() -> None:
    assert ARGUMENTS.flags(("--max_num_seqs=4", "--no-enforce-eager", "-tp", "2")) == {
        "--max-num-seqs",
        "--enforce-eager",
        "--tensor-parallel-size",
    }


def test_defaults_leave_out_what_the_user_gave() -> None:
    defaults = (("--a", "1"), ("--b",))
    assert ARGUMENTS.without_given(defaults, ("--a=2",)) == ["--b"]


@pytest.mark.parametrize(
    ("args", "number"),
    [
        ((), None),
        (("--max-num-seqs", "0"), None),
        (("--max-num-seqs", "12"), 12),
        (("--max-num-seqs=12", "--seed", "3"), 12),
        (("--max_num_seqs=4", "--max-num-seqs=5"), 5),
        (("--max-num-seqs",), None),
        (("--max-num-seqs", "many"), None),
        (("--max-num-batched-tokens", "12"), None),
        (("--max-num-seqs", "2k"), 2000),
        (("--max-num-seqs", "2K"), 2048),
        (("--max-num-seqs=1.5k",), 1500),
        (("--max-num-seqs=1.5K",), None),
        (("--max-num-seqs", "inf"), None),
    ],
)
def test_number_of_a_flag_is_found_however_it_is_written(args: tuple[str, ...], number: int | None) -> None:
    assert ARGUMENTS.number("--max-num-seqs", args) == number
