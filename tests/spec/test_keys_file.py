"""The file of key hashes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from longboat.core.errors import UserInputError
from longboat.core.policy import KeyRecord
from longboat.spec.files.keys_file import KeyBook, key_book_values, load_keys, save_keys

BOOK = KeyBook(salt="s", keys=(KeyRecord(key_id="k", tenant="a", sha256="0" * 64, created_s=1.5, note="n"),))


def test_what_is_saved_is_loaded_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "fleet.json"
    save_keys(path, BOOK)
    save_keys(path, BOOK)
    assert load_keys(path) == BOOK
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["fleet.json"]


def test_no_file_is_no_book(tmp_path: Path) -> None:
    assert load_keys(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expires_s", "2027-01-01"),
        ("expires_s", 1e30),
        ("created_s", 1e30),
        ("created_s", float("nan")),
        ("created_s", None),
        ("created_s", True),
        ("created_s", -1),
        ("note", None),
        ("tenant", 5),
        ("key_id", ["k"]),
        ("sha256", "\N{LATIN SMALL LETTER E WITH ACUTE}" * 64),
        ("sha256", 5),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_its_place(tmp_path: Path, name: str, value: object) -> None:
    values = key_book_values(KeyBook(salt="s", keys=BOOK.keys * 2))
    values["keys"][1][name] = value
    (tmp_path / "k").write_text(json.dumps(values))
    with pytest.raises(UserInputError, match=re.escape(f"cannot be read: keys[1].{name}: ")):
        load_keys(tmp_path / "k")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"salt": "s", "keys": [{"key": 1}]}', '{"salt": "s", "keys": 3}', '{"salt": null, "keys": []}'],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "k").write_text(text)
    with pytest.raises(UserInputError, match="cannot be read"):
        load_keys(tmp_path / "k")
