"""Python imports this at its start, where this folder is on its path: ``bench_tricks.py`` puts it there."""

from __future__ import annotations

import os

if name := os.environ.get("BENCH_TRICK_OFF"):
    if name == "mypyc":
        os.environ["LONGBOAT_NATIVE"] = "0"
    import switches

    if name in switches.TRICKS:
        switches.switch_off(name)
