"""The fixture ``netlab``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from netlab.lab import Lab, why_unavailable

__all__ = ("MakeLab", "netlab")

MakeLab = Callable[..., Lab]


@pytest.fixture
def netlab() -> Iterator[MakeLab]:
    """Makes labs: ``lab = netlab(2)``; they are gone after the test. Skips where the kernel does not allow them."""
    if reason := why_unavailable():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield lambda num_hosts=2, **options: stack.enter_context(Lab(num_hosts, **options))
