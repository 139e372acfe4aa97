"""Where the keys of a fleet are: with its controller while it is up, and in a file on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from longboat.cluster.fleet.deployed import controller_values, document_with, key_book_in, values_with_keys
from longboat.cluster.ray.session import Session
from longboat.core.errors import ClusterError, UserInputError
from longboat.folders import home_folder
from longboat.spec.files.keys_file import KeyBook, load_keys, new_salt, save_keys

__all__ = ("change_keys", "fleet_key_book", "keys_path", "read_keys", "wait_for_gateways")

TRIES = 3
GATEWAYS_WAIT_S = 15.0
POLL_S = 0.1


def keys_path(fleet: str) -> Path:
    """Return the file with the hashes of a fleet's keys, on the machine whose commands made them."""
    return home_folder() / "keys" / f"{fleet}.json"


def fleet_key_book(session: Session, fleet: str, *, asks_for_keys: bool = True) -> KeyBook:
    """Return the keys of a fleet that is, or is about to be, up: the running ones, else those in the file.

    The file is made equal to them, so that the keys outlive the fleet. A fleet that asks for no keys leaves it alone.
    """
    path = keys_path(fleet)
    running = key_book_in(controller_values(session.apps.all()))
    if not asks_for_keys:
        return running or KeyBook()
    with _only_we(path):
        in_file = load_keys(path)
        book = running or in_file or KeyBook()
        book = book if book.salt else KeyBook(salt=new_salt(), keys=book.keys)
        if book != in_file:
            save_keys(path, book)
    return book


def read_keys(session: Session) -> KeyBook:
    """Return the keys of the running fleet. Raises ClusterError where none is up."""
    return key_book_in(_running_values(session)) or KeyBook()


def change_keys(session: Session, change: Callable[[KeyBook], KeyBook]) -> KeyBook:
    """Change the running fleet's keys, and the file; returns them once Serve has them. Nothing is restarted.

    Another machine may write at the same moment: what was written is read back, and written again where it was lost.
    """
    fleet = str(_running_values(session)["fleet"])
    with _only_we(keys_path(fleet)):
        for _ in range(TRIES):
            apps = session.apps.all()
            values = controller_values(apps)
            book = change(key_book_in(values) or KeyBook(salt=new_salt()))
            session.rest.put(document_with(apps, values_with_keys(values, book)))
            if read_keys(session) == book:
                save_keys(keys_path(fleet), book)
                return book
    raise ClusterError("another command keeps changing this fleet's keys", hint="run the command again")


def wait_for_gateways(session: Session, book: KeyBook) -> tuple[int, int]:
    """Wait until the gateways know the keys; returns how many do, and how many there are, when the time is over."""
    deadline_s = time.monotonic() + GATEWAYS_WAIT_S
    num_informed = num_all = 0
    while time.monotonic() < deadline_s:
        if (report := session.try_report()) is not None:
            num_all = len(report.gateways)
            known = [g for g in report.gateways if g.policy_digest == report.policy_digest and not g.problem]
            num_informed = len(known) if report.num_keys == len(book.keys) else 0
            if num_informed == num_all:
                break
        time.sleep(POLL_S)
    return num_informed, num_all


def _running_values(session: Session) -> dict[str, Any]:
    values = controller_values(session.apps.all())
    if not values:
        raise ClusterError("no fleet is up on this cluster", hint="longboat up FILE starts one")
    return values


@contextlib.contextmanager
def _only_we(path: Path) -> Iterator[None]:
    """Commands of this user on this machine wait for each other."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (path.parent / f".{path.name}.lock").open("w")
    except OSError as error:
        raise UserInputError(
            f"{path.parent} cannot hold keys: {error.strerror}", hint="set LONGBOAT_HOME to a folder of your own"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
