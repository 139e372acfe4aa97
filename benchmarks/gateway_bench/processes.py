"""Process trees under test: started with a mark, found by it, their CPU and memory read from /proc, taken down."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ("MARK", "Proxy", "ask", "cpu_s", "free_port", "marked", "rss_bytes", "wait_for_url")

MARK = "LONGBOAT_BENCH_MARK"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def marked(mark: str) -> list[int]:
    """Pids of a proxy's process, of all that carry its ``mark`` (NAME:PID), and of everything below them.

    Some programs write their title over their environment: those are found as children.
    """
    name, _, root = mark.rpartition(":")
    sign = f"{MARK}={name}".encode()
    parents = dict(_parents())
    found = {pid for pid in parents if pid == int(root) or sign in _environment(pid).split(b"\0")}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds that these processes used since they began, with children that ended and were waited for."""
    total = 0.0
    for pid in pids:
        try:
            total += time.clock_gettime((~pid << 3) | 2)  # the process's own clock: nanoseconds, not ticks
            total += sum(map(int, _stat(pid)[13:15])) / TICKS_PER_S
        except OSError:
            continue
    return total


def rss_bytes(pids: Iterable[int]) -> int:
    """Resident memory of these processes, shared pages counted in each."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        except OSError:
            continue
    return total


def _parents() -> Iterable[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                yield int(name), int(_stat(int(name))[1])
            except OSError:
                continue


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(
    url: str, headers: Mapping[str, str], *, body: bytes | None = None, timeout_s: float = 10.0
) -> tuple[int, bytes]:
    """Status and body of one GET, or of a POST of ``body``. :raises OSError, http.client.HTTPException: no answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET" if body is None else "POST", parts.path, body, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def wait_for_url(url: str, deadline_s: float, headers: Mapping[str, str], process: subprocess.Popen[bytes]) -> None:
    """Until ``url`` answers 200. :raises TimeoutError: it does not. :raises RuntimeError: the process ended."""
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise RuntimeError(f"ended with exit code {process.returncode} before {url} answered")
        with suppress(OSError, http.client.HTTPException):
            if ask(url, headers, timeout_s=2.0)[0] == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer in {deadline_s:.0f} s")


class Proxy:
    """One started program and everything that it started, by its mark."""

    def __init__(
        self, name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, stdin: bytes = b""
    ) -> None:
        self.name = name
        sign = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
        self.log = folder / f"{name}.log"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "LONGBOAT_"))}
        variables = {**kept, **(env or {}), MARK: sign}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                list(argv), cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.mark = f"{sign}:{self.process.pid}"
        assert self.process.stdin is not None
        self.process.stdin.write(stdin)
        self.process.stdin.close()

    def pids(self) -> list[int]:
        return marked(self.mark)

    def rss_bytes(self) -> int:
        return rss_bytes(self.pids())

    def stop(self, patience_s: float = 5.0) -> None:
        """Ask, then kill; nothing that carries the mark is left."""
        pids = self.pids()
        self.process.terminate()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for pid in {*pids, *self.pids()} - {self.process.pid}:
            _kill(pid)
        self.process.wait()

    def last_lines(self, count: int = 5) -> str:
        """The end of the program's own log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return
