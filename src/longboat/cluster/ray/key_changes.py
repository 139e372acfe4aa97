"""The keys of a fleet: with its controller while it is up, and in a file on the machine that changes them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from longboat.cluster.fleet.applications import FleetSession
from longboat.cluster.fleet.deployed import (
    controller_values,
    document_with,
    key_book_in,
    running_values,
    values_with_keys,
)
from longboat.cluster.node.write_turn import until_written
from longboat.cluster.protocol.messages import keys_digest
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.policy import KeyRecord
from longboat.file_lock import FileLock
from longboat.folders import home_folder
from longboat.spec.files.keys_file import KeyBook, load_keys, new_salt, save_keys
from longboat.telemetry import logger

if TYPE_CHECKING:
    from longboat.cluster.protocol.messages import FleetReport

__all__ = (
    "KeySession",
    "add_key",
    "change_keys",
    "find_key",
    "fleet_key_book",
    "keep_keys",
    "keys_locked",
    "keys_path",
    "read_keys",
    "remove_key",
    "tenants_with_keys",
    "wait_for_gateways",
    "without_key",
)

log = logger("keys")

GATEWAYS_WAIT_S = 15.0
POLL_S = 0.1
LOCK_WAIT_S = 20.0
MAX_SHOWN = 16  # characters of a wrong id: a longer text may be a key


class KeySession(FleetSession, Protocol):
    """The parts of a session with the cluster that a change of keys needs."""

    def try_report(self) -> FleetReport | None: ...


def add_key(session: KeySession, record: KeyRecord) -> KeyBook:
    """Add a key to the running fleet's. Raises UserInputError where it would open nothing."""
    _check_tenant(session, record.tenant)
    return change_keys(session, lambda book: replace(book, keys=(*book.keys, record)))


def remove_key(session: KeySession, key_id: str) -> KeyBook:
    """Revoke a key of the running fleet. Raises UserInputError where there is none of this id."""
    return change_keys(session, lambda book: without_key(book, key_id))


def without_key(book: KeyBook, key_id: str) -> KeyBook:
    """Return the book without a key. Raises UserInputError where there is none of this id."""
    gone = find_key(book.keys, key_id)
    return replace(book, keys=tuple(key for key in book.keys if key != gone))


def find_key(keys: Sequence[KeyRecord], key_id: str) -> KeyRecord:
    """Find the key of this id. Raises UserInputError where there is none, without repeating a whole key."""
    for key in keys:
        if key.key_id == key_id:
            return key
    if "-" not in key_id and len(key_id) <= MAX_SHOWN:
        raise UserInputError(f"there is no key {key_id}", hint="longboat keys list shows the ids")
    parts = key_id.split("-")
    whole = next((key for key in keys if len(parts) > 1 and key.key_id == parts[1]), None)
    raise UserInputError(
        "a key's id is only the part between its two dashes",
        hint=f"write {whole.key_id} for this one" if whole else "longboat keys list shows the ids",
    )


def keep_keys(session: KeySession) -> None:
    """Write the running fleet's keys into the file, so that the next ``up`` knows which were made and revoked."""
    values = controller_values(session.apps.all())
    if values and key_book_in(values) is not None:
        fleet_key_book(session, str(values["fleet"]))


def keys_path(fleet: str) -> Path:
    """Return the file with the hashes of a fleet's keys, on the machine whose commands made them."""
    return home_folder() / "keys" / f"{fleet}.json"


def fleet_key_book(session: KeySession, fleet: str, *, asks_for_keys: bool = True) -> KeyBook:
    """Return the keys of a fleet that is, or is about to be, up: the running ones, else those in the file.

    The file is made equal to them, so that the keys outlive the fleet. A fleet that asks for no keys leaves it alone.
    """
    running = key_book_in(controller_values(session.apps.all()))
    if not asks_for_keys:
        return running or KeyBook()
    path = keys_path(fleet)
    with keys_locked(path):
        in_file = load_keys(path)
        book = running or in_file or KeyBook()
        book = book if book.salt else KeyBook(salt=new_salt(), keys=book.keys)
        if book != in_file:
            save_keys(path, book)
    return book


def read_keys(session: KeySession) -> KeyBook:
    """Return the keys of the running fleet. Raises ClusterError where none is up."""
    return key_book_in(_running_values(session)) or KeyBook()


def tenants_with_keys(session: KeySession) -> tuple[str, ...]:
    """Return the tenants whose keys open the running fleet; none where it asks for no keys."""
    from longboat.spec.files.load import load_fleet
    from longboat.spec.policy import tenant_names

    return tenant_names(load_fleet(str(_running_values(session)["text"]), "the running fleet").gateway)


def change_keys(session: KeySession, change: Callable[[KeyBook], KeyBook]) -> KeyBook:
    """Change the running fleet's keys, and the file; returns them once Serve has them. Nothing is restarted.

    Another machine may write at the same moment: what was written is read back, and written again where it was lost.
    A file that cannot be written is a warning: the running fleet has the change.
    """
    fleet = str(_running_values(session)["fleet"])

    def attempt() -> KeyBook | None:
        with session.writing():
            apps = session.apps.all()
            values = controller_values(apps)
            book = change(key_book_in(values) or KeyBook(salt=new_salt()))
            session.rest.put(document_with(apps, values_with_keys(values, book)))
            return book if read_keys(session) == book else None

    with keys_locked(keys_path(fleet)):
        book = until_written(attempt, "this fleet's keys")
        _save(keys_path(fleet), book)
    return book


def _save(path: Path, book: KeyBook) -> None:
    """Write the file of keys that Serve has already. Where that fails, the change holds anyway."""
    try:
        save_keys(path, book)
    except OSError as error:
        log.warning("the keys are changed, but %s is not: %s. longboat down writes it", path, error.strerror or error)


def wait_for_gateways(session: KeySession, book: KeyBook, within_s: float = GATEWAYS_WAIT_S) -> tuple[int, int]:
    """Wait until the gateways know the keys; returns how many do, and how many there are, when the time is over."""
    deadline_s = time.monotonic() + within_s
    wanted = keys_digest(key.key_id for key in book.keys)
    num_informed = num_all = 0
    while time.monotonic() < deadline_s:
        if (report := session.try_report()) is not None:
            num_all = len(report.gateways)
            known = [g for g in report.gateways if g.policy_digest == report.policy_digest and not g.problem]
            num_informed = len(known) if report.keys_digest == wanted else 0
            if num_informed == num_all:
                break
        time.sleep(POLL_S)
    return num_informed, num_all


def _check_tenant(session: KeySession, tenant: str) -> None:
    """Check that a key would open something; raises UserInputError otherwise."""
    from longboat.spec.checks.wording import near
    from longboat.spec.files.load import load_fleet
    from longboat.spec.policy import tenant_names

    values = controller_values(session.apps.all())
    if not values:
        return
    fleet = load_fleet(str(values["text"]), "the running fleet")
    names = tenant_names(fleet.gateway)
    if not names:
        raise UserInputError(
            f"the fleet {fleet.name} asks for no keys", hint="write auth: keys under gateway:, and longboat up FILE"
        )
    if tenant not in names:
        close = near(tenant, list(names))
        listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        hint = f"did you mean {close}?" if close else f"there is: {listed}"
        raise UserInputError(f"the fleet {fleet.name} has no tenant {tenant!r}", hint=hint)


def _running_values(session: KeySession) -> dict[str, Any]:
    return running_values(session.apps.all())


@contextlib.contextmanager
def keys_locked(path: Path) -> Iterator[None]:
    """Let commands of this user on this machine wait for each other. Raises ClusterError where one never ends."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock.awaited(path.parent / f".{path.name}.lock", LOCK_WAIT_S)
    except OSError as error:
        raise UserInputError(
            f"{path.parent} cannot hold keys: {error.strerror}",
            hint="use a folder that you may write to: by LONGBOAT_HOME, or in --file",
        ) from error
    if lock is None:
        raise ClusterError(f"another command has been changing these keys for {LOCK_WAIT_S:.0f} s", hint="try it again")
    with lock:
        yield
