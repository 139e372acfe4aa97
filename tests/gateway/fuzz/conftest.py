"""One arena for all of a file's tests: what an earlier input left behind must not hurt a later one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from arena import Arena


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()
