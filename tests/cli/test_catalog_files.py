"""The user's own catalog files."""

from __future__ import annotations

from pathlib import Path

import pytest

from longboat.catalog.library import built_in_library
from longboat.cli.shared.catalog_files import read_library
from longboat.core.errors import UserInputError

CARD = """
[[accelerator]]
name = "Our card"
vendor = "other"
memory_mib = {memory}
bandwidth_gb_s = 100.0
source = "its label"
checked = 2026-11-21
"""


def test_without_own_files_it_is_ours(tmp_path: Path) -> None:
    assert read_library(home=tmp_path) is built_in_library()


def test_named_files_come_over_those_of_the_home_folder(tmp_path: Path) -> None:
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "cards.toml").write_text(CARD.format(memory=8192))
    named = tmp_path / "named.toml"
    named.write_text(CARD.format(memory=16384))
    assert read_library(home=tmp_path).accelerators.find("our card").memory_mib == 8192
    assert read_library([named], home=tmp_path).accelerators.find("our card").memory_mib == 16384


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="missing"):
        read_library([tmp_path / "missing.toml"], home=tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text(CARD.format(memory='"8 GB"'))
    with pytest.raises(UserInputError, match=r"broken\.toml: accelerator\[0\]\.memory_mib"):
        read_library([broken], home=tmp_path)
