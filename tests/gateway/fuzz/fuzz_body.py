"""Coverage-guided fuzzing of the readers of bodies and answers: ``make fuzz READER=body`` (needs ``atheris``; Linux).

The first byte of an input chooses the reader, the rest is the body. A slow reader that cannot be fooled is the judge.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["longboat.gateway"]):
    from longboat.gateway.api.body import BodyError, BodyKind, read_facts, splice
    from longboat.gateway.api.multipart import read_form, splice_form
    from longboat.gateway.api.usage import AnswerKind, UsageReader

KINDS = tuple(kind for kind in BodyKind if kind not in (BodyKind.FORM, BodyKind.NONE))
ANSWERS = tuple(AnswerKind)
CONTENT_TYPE = b"multipart/form-data; boundary=B"
SALT = "s" * 40


class _TwiceError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _TwiceError
    return made


def judged(body: bytes) -> dict[str, Any] | None:
    """The document by the slow reader; None where it is no JSON object, or a key comes twice."""
    try:
        document = json.loads(body.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError, _TwiceError):
        return None
    return document if isinstance(document, dict) else None


def read_body(kind: BodyKind, body: bytes) -> None:
    try:
        facts = read_facts(body, kind, refuse_fleet_fields=True)
    except BodyError:
        return
    document = judged(body)
    assert document is not None, "accepted what the judge refuses"
    assert facts.model == document["model"]
    assert facts.num_prompt_tokens_estimate >= 0
    new = judged(splice(body, facts, model="other", add_usage=True, cache_salt=SALT))
    assert new is not None, "spliced into no JSON"
    assert new.pop("model") == "other"
    changed = {"model", "cache_salt", "stream_options"}
    assert {k: v for k, v in new.items() if k not in changed} == {k: v for k, v in document.items() if k not in changed}


def read_multipart(body: bytes) -> None:
    try:
        form = read_form(body, CONTENT_TYPE, refuse_fleet_fields=True)
        new = splice_form(body, form, model="other", add_usage=True)
    except BodyError:
        return
    assert read_form(new, CONTENT_TYPE, refuse_fleet_fields=True).model == "other"


def read_answer(kind: AnswerKind, body: bytes) -> None:
    reader = UsageReader(kind, added=True)
    blocks = [block + b"\n\n" for block in body.split(b"\n\n")] if kind is not AnswerKind.JSON else [body]
    out = b"".join(reader.feed(block, index == len(blocks) - 1) for index, block in enumerate(blocks))
    assert len(out) <= len(b"".join(blocks))
    usage = reader.result()
    for count in (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens):
        assert count is None or count >= 0


def one_input(data: bytes) -> None:
    """Raises whatever a reader raises that is no BodyError, and AssertionError where it was fooled."""
    if not data:
        return
    choice, body = data[0] % (len(KINDS) + 1 + len(ANSWERS)), data[1:]
    if choice < len(KINDS):
        read_body(KINDS[choice], body)
    elif choice == len(KINDS):
        read_multipart(body)
    else:
        read_answer(ANSWERS[choice - len(KINDS) - 1], body)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
