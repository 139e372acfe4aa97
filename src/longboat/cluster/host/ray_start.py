"""Runs ``ray start`` with more patience: Ray gives its raylet 30 s to register, too few on a very busy machine.

usage: python -m longboat.cluster.host.ray_start WORDS OF ray start
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from longboat.cluster.host.ray_processes import child_named

__all__ = ("main", "patient")

PATIENCE_S = 240.0
PAUSE_S = 0.5

Given = ParamSpec("Given")
Found = TypeVar("Found")


def patient(
    find: Callable[Given, Found],
    is_starting: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[Given, Found]:
    """Return ``find`` with new tries after a RuntimeError, while ``is_starting`` and for at most PATIENCE_S."""

    def find_patiently(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        end_s = clock() + PATIENCE_S
        while True:
            try:
                return find(*args, **kwargs)
            except RuntimeError:
                if clock() > end_s or not is_starting():
                    raise
            sleep(PAUSE_S)

    return find_patiently


def main() -> None:
    """Be ``ray start`` with the words of the command line."""
    from ray._private import services
    from ray.scripts import scripts

    own = os.getpid()
    services.get_node = patient(services.get_node, lambda: child_named(own, "raylet") is not None)
    sys.argv = ["ray", "start", *sys.argv[1:]]
    scripts.main()


if __name__ == "__main__":
    main()
