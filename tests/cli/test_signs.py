"""What commands write where the terminal's encoding lacks some signs."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest

from longboat.cli.app import main
from longboat.cli.signs import write_every_sign


class Out(io.TextIOWrapper):
    """A stream of an encoding."""

    def __init__(self, encoding: str, errors: str = "strict") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors=errors)

    def text(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


def written(text: str, encoding: str, errors: str = "strict") -> str:
    """Return what a stream gets where a command prints ``text``."""
    with contextlib.redirect_stdout(out := Out(encoding, errors)):
        write_every_sign()
        print(text)
    return out.text()


@pytest.mark.parametrize("chosen", [("ascii",), ("ascii", "backslashreplace"), ("iso-8859-1",)])
def test_signs_are_written_as_ascii_has_them(chosen: tuple[str, ...]) -> None:
    assert written("a → b … 5 ─ ▌", *chosen) == "a -> b ... 5 - #\n"


@pytest.mark.parametrize("encoding", ["iso-8859-1", "utf-8"])
def test_signs_that_the_encoding_has_stay(encoding: str) -> None:
    assert written("é × ±", encoding) == "é × ±\n"


def test_a_document_stays_one() -> None:
    document = {"name": "é 😀"}
    assert json.loads(written(json.dumps(document, ensure_ascii=False), "ascii")) == document


def test_names_of_files_that_are_no_text_are_written() -> None:
    assert written(b"\xff".decode("utf-8", "surrogateescape"), "utf-8") == "\\udcff\n"


def test_a_chosen_way_is_left_alone() -> None:
    assert written("→", "ascii", "replace") == "?\n"


def test_a_plan_is_written_to_any_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["longboat", "plan", "Llama-3.1-8B", "--on", "2x(2xA4000)", "--offline"])
    with contextlib.redirect_stdout(out := Out("ascii")), pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert " ... " in out.text() and "?" not in out.text()
