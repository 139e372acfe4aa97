"""Writes the table of docs/guides/one-card.md, and a fleet file for each card, in the planner's words."""

from __future__ import annotations

import re
from pathlib import Path

from longboat.cli.check.first_model import Choice, choose, look
from longboat.cli.check.init import file_text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guides" / "one-card.md"
EXAMPLES = ROOT / "docs" / "examples"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)
CARDS = {8: "RTX 4060 Ti 8GB", 12: "RTX 3060 12GB", 24: "RTX 4090", 48: "L40S", 80: "H100"}
"""GB of memory → a common card of that size, as ``--on`` takes it."""
USERS = 8


def choices() -> dict[int, Choice]:
    """Return the model of each size of card."""
    return {size: choose(look(card), USERS) for size, card in CARDS.items()}


def table(found: dict[int, Choice]) -> str:
    """Return the rows of the page."""
    rows = ["| card | for example | model | tokens/s, first token, then |", "| --- | --- | --- | --- |"]
    for size, choice in found.items():
        file = f"[one-card-{size}gb.yaml](../examples/one-card-{size}gb.yaml)"
        rows.append(f"| {size} GB: {file} | {CARDS[size]} | `{choice.source}` | {choice.expected} |")
    return "\n".join(rows) + "\n"


def example(size: int, choice: Choice) -> str:
    """Return a fleet file; its first line says on which machines it is checked."""
    first = f'# check: --on "{CARDS[size]}"\n'
    return first + file_text(look(CARDS[size]), choice, USERS, "127.0.0.1", 8000)


def main() -> None:
    """Write the page and the files."""
    found = choices()
    PAGE.write_text(TABLE.sub(lambda _: table(found), PAGE.read_text()))
    for size, choice in found.items():
        (EXAMPLES / f"one-card-{size}gb.yaml").write_text(example(size, choice))


if __name__ == "__main__":
    main()
