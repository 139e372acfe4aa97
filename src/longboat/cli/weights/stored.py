"""``longboat weights list|verify|evict``: what this machine has."""

from __future__ import annotations

import json
import time

import msgspec

from longboat.cli.shared.console import make_console, simple_table
from longboat.core.errors import TransferError, UserInputError
from longboat.core.sizes import readable_size
from longboat.folders import home_folder
from longboat.spec.types.source import same_source
from longboat.weights.store.store import Store, Stored

__all__ = ("run_evict", "run_list", "run_verify")


def run_list(*, as_json: bool) -> None:
    """Print all weights of this machine."""
    found = Store(home_folder()).list()
    if as_json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    elif found:
        _print_table(found)
    else:
        make_console(stderr=True).print("no weights; longboat weights pull SOURCE fetches some")


def run_verify(names: tuple[str, ...], *, as_json: bool) -> None:
    """Compare weights with their hashes. Raises TransferError where bytes are wrong."""
    store = Store(home_folder())
    wrong: dict[str, list[str]] = {}
    parts: dict[str, str] = {}  # of weights that are not whole: how much of them is here
    keys = _keys(store, names) if names else [stored.key for stored in store.list()]
    for key in keys:
        folder = store.opened(key)
        if folder is not None:
            wrong[key] = list(dict.fromkeys(piece.path for piece in folder.wrong_pieces()))
            if store.published(key) is None:
                parts[key] = f"{readable_size(folder.have_bytes)} of {readable_size(folder.manifest.num_bytes)}"
    if as_json:
        print(json.dumps(wrong, indent=2))
    else:
        for key, files in wrong.items():
            print(f"{key}: {_verdict(files, parts.get(key, ''))}")
    if any(wrong.values()):
        bad = ", ".join(key for key, files in wrong.items() if files)
        hint = "longboat weights evict removes it; longboat weights pull fetches it"
        error = TransferError(f"wrong bytes in {bad}", hint=hint)
        error.after_document = as_json
        raise error


def _verdict(wrong: list[str], part: str) -> str:
    """Return what a check found. part: how much of weights is here that are not whole"""
    if wrong:
        return f"wrong bytes in {', '.join(wrong)}"
    if part:
        return f"not whole: {part} is here, without a wrong byte; longboat weights pull fetches the rest"
    return "every piece is right"


def run_evict(names: tuple[str, ...]) -> None:
    """Remove weights. Raises ClusterError while they are used."""
    store = Store(home_folder())
    for key in _keys(store, names):
        store.evict(key)
        print(f"{key} is removed")


def _keys(store: Store, names: tuple[str, ...]) -> list[str]:
    """Return the keys that names or sources stand for. Raises UserInputError for an unknown one."""
    found = store.list()
    keys: list[str] = []
    for name in names:
        chosen = [one.key for one in found if name == one.key or same_source(name) == same_source(one.source)]
        if not chosen:
            raise UserInputError(f"this machine has no weights {name!r}", hint="longboat weights list shows them")
        keys += chosen
    return list(dict.fromkeys(keys))


def _print_table(found: list[Stored]) -> None:
    table = simple_table("WEIGHTS", "SOURCE", "SIZE", "STATE", "LAST USED", wraps=("SOURCE",))
    for stored in found:
        ago_s = max(0.0, time.time() - stored.used_at_s)
        table.add_row(stored.key, stored.source, readable_size(stored.total_bytes), _state(stored), _ago(ago_s))
    make_console().print(table)


def _state(stored: Stored) -> str:
    if stored.is_whole:
        return "in use" if stored.in_use else "ready"
    if stored.progress is not None:
        return str(stored.progress)
    return f"cut at {stored.have_bytes * 100 // max(1, stored.total_bytes)} %"


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "now"
