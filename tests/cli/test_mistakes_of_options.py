"""Mistakes in the words of a command: the message has the value, the limit and the next step; nothing starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from longboat.cli.app import app
from longboat.cli.check.init import ask_host
from longboat.core.errors import UserInputError


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("up", "f.yaml", "--timeout", "abc"), "'abc' is not a number; write it like 30 or 0.5"),
        (("up", "f.yaml", "--timeout", "-5"), "-5 is below 0, the smallest value"),
        (("logs", "tiny", "--lines", "x"), "'x' is not a whole number; write it like 30"),
        (("gateway", "run", "--port", "99999"), "99999 is above 65535, the largest value"),
        (("node", "start", "--head", "--num-cpus", "-1"), "-1 is below 0, the smallest value"),
        (("chat", "--max-tokens", "0"), "0 is below 1, the smallest value"),
        (("init", "--users", "0"), "0 is below 1, the smallest value"),
        (("scale", "tiny", "-1"), "-1 is below 0, and this command takes no number below 0"),
        (("scale", "tiny", "-12"), "-12 is below 0, and this command takes no number below 0"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_named_with_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_init_asks_again_for_an_address_that_this_machine_lacks() -> None:
    with CliRunner().isolation(input="192.0.2.1\n127.0.0.1\n") as streams:
        assert ask_host("") == "127.0.0.1"
        assert "192.0.2.1 is not an address of" in streams[0].getvalue().decode()


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (("drain", "repl", "tiny/x"), "'repl' cannot be drained", "longboat drain replica tiny/x"),
        (("drain", "replica", "tiny/"), "'tiny/' is not a replica", "MODEL/REPLICA"),
        (("chat", "--url", "notaurl", "-p", "hi"), "--url 'notaurl' is not an address", "http://127.0.0.1:8000"),
        (("node", "start", "--port", "7000"), "neither a new cluster nor one to join is chosen", "--join ADDRESS"),
        (("node", "start", "--head", "--join", "10.0.0.1"), "--head and --join together", "give one of --head"),
        (("node", "start", "--head", "--local"), "--head and --local together", "give one of --head"),
        (("keys", "list", "--file", "none.json"), "there is no key file none.json", "longboat keys create --file"),
        (("keys", "create", "--file", "k.json", "--tenant", "a b"), "'a b' cannot be the name", "--tenant team-a"),
        (("keys", "create", "--tenant", "a b"), "'a b' cannot be the name", "--tenant team-a"),
        (("keys", "list", "--file", "{}.json"), "longboat keys did not write it", "make new keys"),
        (("demo", "none.yaml"), "there is no fleet file none.yaml", "longboat demo"),
        (("backup", "none/x.tar.gz"), "No such file or directory", "mkdir -p none"),
        (("plan", "evaluate", "none.csv"), "none.csv cannot be read: No such file or directory", "prediction.md"),
        (
            ("cost", "Llama-3.1-8B", "--on", "H100", "--electricity", "Mars"),
            "unknown electricity",
            "longboat plan list",
        ),
        (("init", "--yes", "--host", "192.0.2.1", "x.yaml"), "192.0.2.1 is not an address of", "0.0.0.0"),
        (("init", "--yes", "--model", "foo", "x.yaml"), "'foo' is a relative path", "hf:ORGANISATION/NAME"),
    ],
)
def test_a_mistake_is_named_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], what: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "{}.json").write_text("{}")
    with pytest.raises(UserInputError) as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert what in caught.value.message
    assert hint in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["{}.json"]
