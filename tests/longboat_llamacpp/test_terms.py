"""What the gateway asks of llama.cpp's front end beside a request."""

from __future__ import annotations

import json

import pytest

from longboat_llamacpp.terms import BadTermsError, NotContinuedError, read_terms

STREAM = b'{"stream": true, "prompt": "row"}'
JOURNAL = {"x-longboat-journal": "1"}


def carried(mode: str, prior: object) -> tuple[dict[str, str], bytes]:
    prefix = json.dumps({"mode": mode, "prior": prior}).encode()
    return {**JOURNAL, "x-longboat-carry": str(len(prefix))}, prefix + STREAM


def test_a_request_without_terms_passes_unchanged() -> None:
    terms = read_terms({}, b"not JSON")
    assert (terms.body, terms.journal) == (b"not JSON", False)


def test_the_seed_is_given_where_the_body_names_none() -> None:
    terms = read_terms({**JOURNAL, "x-longboat-seed": "7"}, STREAM)
    assert json.loads(terms.body)["seed"] == 7
    own = read_terms({**JOURNAL, "x-longboat-seed": "7"}, b'{"stream": true, "seed": 3}')
    assert json.loads(own.body)["seed"] == 3


def test_a_journal_is_kept_of_streams_only() -> None:
    assert read_terms(JOURNAL, STREAM).journal
    assert not read_terms(JOURNAL, b'{"prompt": "row"}').journal
    assert not read_terms({"x-longboat-journal": "whole"}, STREAM).journal


def test_the_tokens_before_are_taken_off_the_body() -> None:
    terms = read_terms(*carried("replay", [[1, 2], []]))
    assert terms.prior == ((1, 2), ())
    assert json.loads(terms.body)["prompt"] == "row"


def test_a_response_cannot_be_carried() -> None:
    with pytest.raises(NotContinuedError):
        read_terms(*carried("carried", [[1]]))


@pytest.mark.parametrize(
    "headers",
    [
        {"x-longboat-seed": "-1"},
        {"x-longboat-seed": "99999999999"},
        {"x-longboat-carry": "x"},
        {"x-longboat-carry": "4"},
    ],
    ids=str,
)
def test_malformed_terms_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(BadTermsError):
        read_terms(headers, STREAM)


@pytest.mark.parametrize("prior", [None, "x", [1], [["a"]], [[-1]], [[True]]], ids=str)
def test_malformed_tokens_are_refused(prior: object) -> None:
    with pytest.raises(BadTermsError):
        read_terms(*carried("replay", prior))
