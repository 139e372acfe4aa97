"""Variables in files, several files as one fleet, and the variables of engines."""

from __future__ import annotations

import pytest

from longboat.spec.diff import diff
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import Reading, load_fleet, read_files

ENV = {"MODEL": "builtin:tiny", "COUNT": "3", "EMPTY": "", "TOKEN": "hf_secret", "DIGITS": "123456"}


def read(*texts: str) -> Reading:
    files = [(f"f{number}.yaml", text) for number, text in enumerate(texts)]
    return read_files(files, folder="/", variables=ENV)


@pytest.mark.parametrize(
    ("written", "count"),
    [("${COUNT}", 3), ("1${COUNT}", 13), ("${GONE:-4}", 4), ("${EMPTY:-5}", 5), ("2", 2), ("${COUNT:-9}", 3)],
)
def test_a_number_without_quotes_stays_a_number(written: str, count: int) -> None:
    assert read("models: [{source: builtin:tiny}]\nname: x\n").fleet is not None
    text = f"models:\n  - source: ${{MODEL}}\n    replicas: {written}\n"
    assert read(text).whole().models[0].replicas == count


@pytest.mark.parametrize(
    ("written", "value"),
    [("$${HOME}", "${HOME}"), ("a$${X}b${COUNT}", "a${X}b3"), ("$COUNT", "$COUNT"), ("${TOKEN}", "hf_secret")],
)
def test_literal_and_filled_text(written: str, value: str) -> None:
    text = f"models:\n  - source: builtin:tiny\n    engine: {{env: {{A: '{written}'}}}}\n"
    assert read(text).whole().models[0].engine.env == {"A": value}


def test_parts_of_the_plugins_can_be_switched_off_for_a_model() -> None:
    def asked(name: str) -> Reading:
        return read(f"models:\n  - source: builtin:tiny\n    engine: {{kind: sglang, env: {{{name}: '0'}}}}\n")

    assert asked("LONGBOAT_SGLANG_PREFIXES").whole().models[0].engine.env == {"LONGBOAT_SGLANG_PREFIXES": "0"}
    (problem,) = asked("LONGBOAT_GANG").problems
    assert "Longboat sets LONGBOAT_GANG itself" in problem.what


def test_number_from_a_variable_of_an_engine_is_to_be_quoted_with_its_variable() -> None:
    (problem,) = read("models:\n  - source: builtin:tiny\n    engine:\n      env:\n        A: ${COUNT}\n").problems
    assert 'A: "${NAME}"' in problem.hint


def test_missing_variables_are_told_with_everything_else() -> None:
    text = "models:\n  - source: ${NO_MODEL}\n    replicas: many\n  - source: builtin:tiny\n    context: ${ }\n"
    reading = read(text)
    assert [problem.where for problem in reading.problems] == [
        "models[0].source",
        "models[1].context",
        "models[0].replicas",
    ]
    assert "line 2: the environment variable NO_MODEL is not set" in reading.problems[0].what
    assert "begins no variable" in reading.problems[1].what


def test_variables_stand_for_themselves_in_what_longboat_wrote() -> None:
    fleet = read("models:\n  - source: builtin:tiny\n    engine: {env: {A: '$${TOKEN}'}}\n").whole()
    assert load_fleet(dump_fleet(fleet), "running") == fleet


def test_later_files_change_and_add() -> None:
    base = """
name: prod
models:
  - {source: builtin:tiny, name: a, engine: fake, replicas: 1, placement: {labels: {zone: one}}}
  - name: cloud
    engine: {kind: external, urls: [https://api.example.com/v1]}
gateway: {port: 8000, queue: {max_waiting: 5}}
"""
    over = """
models:
  - {name: a, engine: {startup: plain}, replicas: 4, placement: {labels: {rack: r1}}}
  - {source: builtin:tiny, name: b}
gateway: {queue: {age_s: 3}}
"""
    fleet = read(base, over).whole()
    assert fleet.names == ("a", "b", "cloud")
    one = fleet.models[0]
    assert (one.engine.kind, one.engine.startup, one.replicas) == ("fake", "plain", 4)
    assert one.placement.labels == {"zone": "one", "rack": "r1"}
    assert (fleet.gateway.port, fleet.gateway.queue.max_waiting, fleet.gateway.queue.age_s) == (8000, 5, 3)


def test_a_mistake_names_the_file_and_the_line_that_wrote_it() -> None:
    base = "models:\n  - name: cloud\n    engine: {kind: external, urls: [https://x.example/v1]}\n  - builtin:tiny\n"
    over = "models:\n  - name: extra\n    source: builtin:tiny\n    replicas: many\n  - name: tiny\n    context: -1\n"
    reading = read(base, over)
    found = {problem.where: reading.line_of(problem) for problem in reading.problems}
    assert found == {"models[1].replicas": ("f1.yaml", 4), "models[0].context": ("f1.yaml", 6)}


def test_a_file_that_is_no_mapping_is_named() -> None:
    assert "f1.yaml" in read("builtin:tiny", "- 1").problems[0].what
    assert read("builtin:tiny", "").whole().names == ("tiny",)


@pytest.mark.parametrize(
    "env", ["{HF_TOKEN: 918273}", "{VLLM_API_KEY: '918273'}", "{'a b': '918273'}", "[918273]", "{LONGBOAT_X: '918273'}"]
)
def test_messages_about_engine_variables_hold_no_value(env: str) -> None:
    reading = read(f"models: [{{source: builtin:tiny, engine: {{env: {env}}}}}]")
    assert len(reading.problems) == 1
    assert "918273" not in str(reading.problems)


def test_digits_of_a_secret_are_not_shown() -> None:
    reading = read("models:\n  - source: builtin:tiny\n    engine:\n      env:\n        A: ${DIGITS}\n")
    assert "123456" not in str(reading.problems)
    assert "quotes" in reading.problems[0].hint


def test_a_changed_variable_is_shown_without_its_values() -> None:
    text = "models: [{source: builtin:tiny, engine: {env: {A: old-secret, B: same, C: gone-secret}}}]"
    new = text.replace("old-", "new-").replace(", C: gone-secret", ", D: more-secret")
    lines = diff(load_fleet(text, "a"), load_fleet(new, "b")).lines()
    assert lines == [
        "~ tiny.engine.env.A: (old value) -> (new value)",
        "~ tiny.engine.env.C: (old value) -> unset",
        "~ tiny.engine.env.D: unset -> (new value)",
    ]
    assert "secret" not in repr(load_fleet(text, "a"))


def test_two_models_of_one_name_in_one_file_are_refused_beside_other_files_too() -> None:
    twice = "models:\n  - {source: builtin:tiny, name: a}\n  - {source: builtin:tiny, name: a, context: 64}\n"
    once = "models: [{source: builtin:tiny, name: a}]\n"
    for texts in ((twice,), (twice, "name: prod\n"), ("name: prod\n", twice), (once, twice), (twice, once)):
        reading = read(*texts)
        assert any("a" in problem.what and problem.where == "models[1].name" for problem in reading.problems), texts
