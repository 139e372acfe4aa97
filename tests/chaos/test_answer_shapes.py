"""An answer that should be JSON or fit a regex is looked at, by the API that it came from."""

from __future__ import annotations

from typing import Any

import pytest
from chaos_suite.asks import Ask, make_asks
from chaos_suite.shapes import unfit

GOOD = '{"name": "Ea", "knots": 12, "crew": ["row"]}'


def _ask(kind: str) -> Ask:
    return make_asks(7, 1, "boat", (kind,), is_long=True)[0]


def _facts(kind: str, text: str, *, cut: bool = False) -> dict[str, Any]:
    if kind.startswith("messages"):
        stop = "max_tokens" if cut else "tool_use"
        return {"0.kind": ["tool_use", "row"], "0.said": text, "stop": [stop, None]}
    if kind.startswith("responses"):
        item = {"type": "function_call", "name": "row", "arguments": text}
        return {"0": item, "status": "incomplete" if cut else "completed"}
    place = "0.call0.arguments" if "tool" in kind else "0.text"
    return {place: text, "0.finish": ["length" if cut else "stop", None]}


KINDS = ["chat-schema", "chat-tool", "chat-named-tool", "responses-tool"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "bad", ["", "{", "[]", '{"name": "Ea", "knots": 12}', GOOD.replace("12", "1200"), GOOD.replace('"row"', "1")]
)
def test_json_by_the_schema_fits_and_no_other(kind: str, bad: str) -> None:
    assert unfit(_ask(kind), _facts(kind, GOOD)) == []
    assert unfit(_ask(kind), _facts(kind, bad))
    assert unfit(_ask(kind), _facts(kind, bad, cut=True)) == []


@pytest.mark.parametrize("bad", ["", "{", "Ea"])
def test_arguments_of_a_tool_that_cannot_be_strict_are_json(bad: str) -> None:
    ask = _ask("messages-tool")
    assert unfit(ask, _facts("messages-tool", '{"name": "Ea"}')) == []
    assert unfit(ask, _facts("messages-tool", bad))


def test_text_by_the_regex_fits_and_no_other() -> None:
    good = "a" * 20 + " 123 456 789 000"
    assert unfit(_ask("text-regex"), _facts("text-regex", good)) == []
    assert unfit(_ask("text-regex"), _facts("text-regex", good + "x"))


def test_answer_without_the_tool_that_it_must_call_is_unfit() -> None:
    assert unfit(_ask("chat-tool"), {"0.text": GOOD, "0.finish": ["stop", None]})


def test_fake_engines_keep_to_no_shape() -> None:
    (ask,) = make_asks(7, 1, "boat", ("chat-schema",))
    assert unfit(ask, _facts("chat-schema", "row")) == []
