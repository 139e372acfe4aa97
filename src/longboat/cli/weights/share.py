"""``longboat weights share``: this machine gives its weights, and is the tracker of a swarm."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from longboat.core.errors import UserInputError
from longboat.folders import home_folder
from longboat.weights.store.store import Store
from longboat.weights.swarm.swarm_member import SwarmMember

__all__ = ("VARIABLE", "open_member", "read_token", "run_share")

VARIABLE = "LONGBOAT_WEIGHTS_TOKEN"
LEAST_TOKEN = 16


def run_share(address: str, port: int, token_file: Path | None) -> None:
    """Share until SIGINT or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with open_member(address, port, read_token(token_file)) as member:
        print(f"weights are shared on {member.address.member}", flush=True)
        ended.wait()


def open_member(address: str, port: int, token: str, trackers: tuple[str, ...] = ()) -> SwarmMember:
    """Return this machine as a member. Raises UserInputError where it cannot listen there."""
    try:
        return SwarmMember(Store(home_folder()), token, address, port, trackers=trackers)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserInputError(
            f"{address}:{port} cannot be listened on: {why}", hint="give an address of this machine, and a free port"
        ) from None


def read_token(file: Path | None) -> str:
    """Return the token of the swarm. Raises UserInputError where there is none, or a short one."""
    try:
        token = file.read_text().strip() if file else os.environ.get(VARIABLE, "").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UserInputError(f"{file} cannot be read: {why}", hint="name a file with the token") from None
    if len(token) < LEAST_TOKEN:
        what = f"the swarm's token has {len(token)} characters" if token else "no token of the swarm is given"
        raise UserInputError(
            f"{what}; it needs at least {LEAST_TOKEN} characters",
            hint=f"openssl rand -hex 32 > FILE makes one: give it by --token-file FILE or {VARIABLE}",
        )
    return token
