"""The tricks, and how a process of the gateway does without one of them.

Compiled modules look up what they import from others that are not compiled, and their own plain globals, by name when
they run: these names are replaced here. A name that has gone is an error, so that no row is of a trick that stays on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

__all__ = ("OFF", "TRICKS", "switch_off")

OFF = "BENCH_TRICK_OFF"
GATEWAY = "longboat.gateway"


def switch_off(name: str) -> None:
    """Do without this trick, in this process, from here on."""
    TRICKS[name]()


def _replace(module: str, **names: Any) -> None:
    found = importlib.import_module(f"{GATEWAY}.{module}")
    for name, value in names.items():
        getattr(found, name)
        setattr(found, name, value)


def _nothing(*_: Any) -> None:
    """Say that nothing is known."""


def _without_places() -> None:
    """Take the model's place in a body for unknown."""
    body = importlib.import_module(f"{GATEWAY}.api.body")
    scan = body.scan

    def placeless(*args: Any) -> Any:
        found = scan(*args)
        return None if found is None else (*found[:-2], 0, 0)

    body.scan = placeless


def _without_chunk_path() -> None:
    """Hand each chunk to the connection, in Python."""
    protocol = importlib.import_module(f"{GATEWAY}.upstreams.protocol").EngineProtocol
    protocol.data_received = lambda self, data: self.owner.data_arrived(data)


def _without_whole_answers() -> None:
    _replace("exchange.answer_relay", _MAX_WHOLE_BYTES=-1)


def _without_batches() -> None:
    _replace("calls.accounting", _MAX_ENDED=1)


TRICKS: dict[str, Callable[[], None]] = {
    "head memo": lambda: _replace("calls.head", head_of=_nothing),
    "scan": lambda: _replace("api.body", scan=_nothing),
    "places": _without_places,
    "counts": lambda: _replace("api.usage", counts_at=_nothing, take_usage=_nothing),
    "chunk path": _without_chunk_path,
    "known answers": lambda: _replace("upstreams.response_head_cache", head_of=_nothing),
    "whole answers": _without_whole_answers,
    "batched settle": _without_batches,
    "mypyc": lambda: None,  # LONGBOAT_NATIVE=0 in the environment, before anything is imported
}
