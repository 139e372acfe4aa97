"""The reference page: its full example is the smallest file with every default, and it names every field."""

from __future__ import annotations

import re
from pathlib import Path

from longboat.spec.checks.unknown_fields import SECTIONS, fields_of
from longboat.spec.files.load import load_fleet

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "fleet-file.md").read_text()


def test_page_shows_one_fleet_in_its_shortest_and_longest_form() -> None:
    smallest, longest = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)[:2]
    assert load_fleet(smallest, "page") == load_fleet(longest, "page")


def test_page_names_every_field() -> None:
    for section in SECTIONS:
        missing = [name for name in fields_of(section) if f"`{name}`" not in PAGE]
        assert not missing, f"{section}: {missing}"
