"""Which cluster a command talks to: the one in RAY_ADDRESS, else the one that this machine belongs to."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.cluster.host.cluster_token import TOKEN_VARIABLES, HeadTroubleError
from longboat.cluster.host.standing import Standing, standing_here
from longboat.core.errors import ClusterError, LongboatError, no_fleet
from longboat.folders import run_folder

if TYPE_CHECKING:
    from longboat.cli.shared.quick_session import QuickSession
    from longboat.cluster.protocol.messages import FleetReport
    from longboat.cluster.ray.session import Session

__all__ = ("cluster_env", "connect", "connect_quickly", "explained", "quick_session", "report_of", "word_of_ray")

RAY_WORD = Path("/tmp/ray/ray_current_cluster")  # noqa: S108
"""Where ``ray start`` writes the address of the cluster it started or joined, when no other folder was chosen."""


def cluster_env() -> dict[str, str] | None:
    """Variables that lead to the cluster; None where this machine belongs to none, or to one that ``up`` can resume.

    Raises ClusterError where this machine is a node that does not run: another cluster here would be a second one.
    """
    if address := os.environ.get("RAY_ADDRESS"):
        return _with_token(address)
    from longboat.cluster.host.record import connect_env

    if (here := standing_here(run_folder())) is not None:
        if not here.runs and not here.record.started_by_up:
            raise ClusterError(here.what, hint=here.hint)
        return connect_env(here.record) if here.runs else None
    return _with_token(address) if (address := word_of_ray(RAY_WORD, os.getuid())) else None


def _with_token(address: str) -> dict[str, str]:
    return {"RAY_ADDRESS": address} | {name: os.environ[name] for name in TOKEN_VARIABLES if name in os.environ}


def word_of_ray(word: Path, uid: int) -> str:
    """Return the address that ``ray start`` wrote down on this machine; empty where nothing listens there.

    Only the word of user ``uid`` counts: code runs on the cluster it leads to, and anyone may write below /tmp.
    """
    try:
        if any(path.lstat().st_uid != uid for path in (word, word.parent)):
            return ""
        address = word.read_text().strip()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=1.0):
            return address
    except (OSError, ValueError):
        return ""


def connect_quickly() -> Session | QuickSession:
    """Connect to the cluster at hand through this node's daemon where there is one, without loading Ray.

    Raises ClusterError when there is no cluster.
    """
    return quick_session() or connect()


def quick_session() -> QuickSession | None:
    """Return a session through this node's daemon; None where there is none.

    Raises ClusterError where this machine is a node that does not run.
    """
    from longboat.cli.shared.quick_session import QuickSession

    env = cluster_env()
    if env is not None:
        with contextlib.suppress(ClusterError):
            return QuickSession(run_folder(), env, connect)
    return None


def connect() -> Session:
    """Connect to the cluster at hand.

    Raises ClusterError when there is none.
    """
    from longboat.cluster.ray.session import Session

    env = cluster_env()
    here = None if os.environ.get("RAY_ADDRESS") else standing_here(run_folder())
    if env is None:
        if here is not None:
            raise ClusterError(here.what, hint=here.hint)
        raise ClusterError(
            "this machine belongs to no cluster",
            hint="longboat up FILE starts one here; longboat node start --join ADDRESS joins one",
        )
    try:
        return Session(env)
    except ClusterError as error:
        raise _explained(error) from error


def report_of(session: Session | QuickSession) -> FleetReport:
    """Return the report of the running fleet. Raises ClusterError where none is up."""
    if (report := session.report()) is None:
        raise no_fleet()
    return report


def explained(error: LongboatError) -> LongboatError:
    """Return an error that says what this machine is, where the cluster's dashboard does not answer."""
    from longboat.cluster.node.head_question import HeadAwayError

    return _explained(error) if isinstance(error, HeadAwayError) else error


def _explained(error: ClusterError) -> ClusterError:
    here, address = standing_here(run_folder()), os.environ.get("RAY_ADDRESS", "")
    if here is None or address not in ("", here.record.gcs_address):  # a session leaves its address in the variable
        return error
    return _told_by(here, error)


def _told_by(here: Standing, error: ClusterError) -> ClusterError:
    """Say why the cluster of this node does not answer, as far as that can be seen on this machine."""
    if here.trouble:
        return ClusterError(here.what, hint=here.hint)
    if isinstance(error, HeadTroubleError):
        return ClusterError(f"{here.what}, and {error.message}", hint=error.hint)
    hint = "its head is away: this node joins again by itself when the head is back"
    if here.record.role == "head":
        hint = "if it has just been killed, it comes back by itself within seconds"
    return ClusterError(f"{here.what}, and the cluster does not answer: {error.message}", hint=hint)
