"""Runs ``ray start`` with more patience: Ray gives its raylet 30 s to register, too few on a very busy machine.

A head starts no server for ``ray://`` clients: it would take 90 MB, a port, and a second of a core for its start. Of
Ray's dashboard it starts the part that steers Ray Serve: each of the other parts is a process.

usage: python -m longboat.cluster.host.ray_start [--standby] WORDS OF ray start

With ``--standby`` it loads Ray and waits for a line on its input; it ends without one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from longboat.cluster.host.adopted import watch_parent
from longboat.cluster.host.ray_processes import child_named
from longboat.cluster.workers.kept_parent import fork_workers

__all__ = ("NextStart", "can_connect", "forget_own_address", "main", "patient", "with_lean_dashboard")

PATIENCE_S = 240.0
PAUSE_S = 0.5
STANDBY = "--standby"
WHOLE_DASHBOARD = "LONGBOAT_RAY_DASHBOARD"
"""Variable; 1 has a head start all parts of Ray's dashboard, for its pages, its jobs and its state API."""

LEAN_DASHBOARD = "--modules-to-load=ServeHead"
_CONNECT_S = 0.5
_LOOK_EVERY_S = 2.0
_KEPT_S = 30.0

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


def can_connect(address: str, timeout_s: float) -> bool:
    """Return whether something listens at ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=timeout_s):
        return True
    return False


def forget_own_address(words: Sequence[str]) -> None:
    """Delete the address that an earlier ``ray start`` of this head wrote into Ray's folder.

    Ray refuses to start a head at its own earlier address while any raylet of the machine names that address, also one
    in another network namespace, such as a container of the host. Longboat knows that its port is free.

    words: of ``ray start``
    """
    if "--head" in words:
        folder = Path(words[words.index("--temp-dir") + 1])
        (folder / "ray_current_cluster").unlink(missing_ok=True)


def with_lean_dashboard(start: Callable[..., Any], env: Mapping[str, str]) -> Callable[..., Any]:
    """Return ``start`` with fewer parts of the dashboard, where ``env`` does not ask for all of them.

    start: Ray's ``start_ray_process``, of which the first two arguments are a command line and a kind of process
    """

    def start_lean(command: list[str], process_type: str, *args: Any, **kwargs: Any) -> Any:
        words = [LEAN_DASHBOARD] if process_type == "dashboard" else []
        return start([*command, *words], process_type, *args, **kwargs)

    return start if env.get(WHOLE_DASHBOARD) == "1" else start_lean


class NextStart:
    """The next ``ray start`` of a worker, prepared while the head cannot be reached: Ray ends such a node when the link
    returns, and takes seconds to load.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], head: str) -> None:
        """head: ``HOST:PORT``; empty on the head itself, where nothing is prepared"""
        self._argv = argv
        self._env = {**os.environ, **env}
        self._head = head
        self._prepared: subprocess.Popen[str] | None = None
        self._looked_at_s = self._away_at_s = 0.0

    def look(self) -> None:
        """Prepare the start where the head is away; give it up where the head has been back for a while."""
        now_s = time.monotonic()
        if not self._head or now_s - self._looked_at_s < _LOOK_EVERY_S:
            return
        self._looked_at_s = now_s
        if not can_connect(self._head, _CONNECT_S):
            self._away_at_s = now_s
            if self._prepared is None:
                words = list(self._argv)
                at = words.index(__name__) + 1
                self._prepared = self._popen([*words[:at], STANDBY, *words[at:]], stdin=subprocess.PIPE)
        elif now_s - self._away_at_s > _KEPT_S:
            self.end()

    def was_away_since(self, at_s: float) -> bool:
        """Return whether the head was away at some time after ``at_s``, of the monotonic clock."""
        return self._away_at_s > at_s

    def take(self) -> subprocess.Popen[str]:
        """Start Ray, from the prepared process where there is one."""
        process, self._prepared = self._prepared, None
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.write("\n")
                process.stdin.close()
                return process
            with process:
                process.kill()
        return self._popen(self._argv, stdin=subprocess.DEVNULL)

    def end(self) -> None:
        """End what was prepared."""
        process, self._prepared = self._prepared, None
        if process is not None:
            with process:
                process.kill()

    def _popen(self, argv: Sequence[str], stdin: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            argv,
            env=self._env,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )


def main() -> None:
    """Be ``ray start`` with the words of the command line."""
    given = dict(os.environ)  # before Ray adds to it
    from ray._private import services
    from ray.scripts import scripts

    own = os.getpid()
    services.get_node = patient(services.get_node, lambda: child_named(own, "raylet") is not None)
    services.start_ray_process = with_lean_dashboard(services.start_ray_process, given)
    scripts.get_ray_client_dependency_error = lambda: "no server for ray:// clients"  # Longboat connects as a driver
    words = sys.argv[1:]
    if words[:1] == [STANDBY]:
        del words[0]
        if not sys.stdin.readline():
            return
    forget_own_address(words)
    if run := given.get("LONGBOAT_RUN"):
        fork_workers(services, Path(run), given)
        watch_parent(Path(run), given)
    sys.argv = ["ray", "start", *words]
    scripts.main()


if __name__ == "__main__":
    main()
