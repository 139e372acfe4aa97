"""Whether a file is of the fleet that runs, as the quick end of ``longboat up`` sees it."""

from __future__ import annotations

import pytest

from longboat.cli.fleet.unchanged import _means
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet

FILE = "models: [{source: 'builtin:tiny', engine: fake, replicas: 2}]"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (dump_fleet(load_fleet(FILE, "x")), True),
        ("models: [{replicas: 2, engine: {kind: fake}, source: 'builtin:tiny'}]", True),
        (FILE.replace("2", "3"), False),
    ],
    ids=["dumped", "written otherwise", "changed"],
)
def test_a_text_means_the_fleet_however_it_is_written(text: str, same: bool) -> None:
    assert _means(text, load_fleet(FILE, "x")) is same
