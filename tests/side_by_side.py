"""Runs tests in several processes: ``pytest --processes N``.

Tests are collected once. Then processes are forked, and each that is free takes a file, or a folder whose tests share
something (``file_order.scope_of``). What a process reports is told in the process that collected, as if the tests had
run there. A test that ends its process fails, and another process goes on with the rest of its file.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn
from warnings import WarningMessage

import pytest

from file_order import scope_of

__all__ = ("PLACES", "shared_folder")

PLACES = "LONGBOAT_TEST_PLACES"
"""Variable with the two descriptors of a pipe, ``READ,WRITE``, that all runs of pytest under one ``make test`` have.

It holds a byte for each process that may run tests at a time. A process takes one before each file."""
_COLLECTED_BY = os.getpid()
"""The process that collects the tests, and lives the longest."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, metavar="N", help="run the files of tests in N processes")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without Python's garbage collector: nearly all that is made stays. It never looks at it later either."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    num = session.config.getoption("processes")
    if num < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    SideBySide(session, scopes_of(session.items, session.config.rootpath / "tests")).run(num)
    return True


def shared_folder(folders: pytest.TempPathFactory) -> tuple[Path, int]:
    """Return a folder for all processes of this run of tests, and the process that lives the longest."""
    own = folders.getbasetemp()
    folder = (own if os.getpid() == _COLLECTED_BY else own.parent) / "shared"
    folder.mkdir(exist_ok=True)
    return folder, _COLLECTED_BY


def scopes_of(items: Sequence[pytest.Item], folder: Path) -> list[list[pytest.Item]]:
    """Return what one process takes as a whole each, in the order of their first tests. folder: where all tests are"""
    scopes: dict[str, list[pytest.Item]] = {}
    for path, tests in groupby(items, key=lambda item: item.path):
        file = path.relative_to(folder) if path.is_relative_to(folder) else path
        scopes.setdefault(scope_of(file.as_posix()), []).extend(tests)
    return list(scopes.values())


@dataclass
class _Process:
    """A process that runs tests, as the one that collected sees it."""

    pid: int
    left: deque[pytest.Item] = field(default_factory=deque)
    """The tests of its scope that have not ended; the first one runs."""
    has_place: bool = False


class SideBySide:
    """Gives the scopes to processes, and tells what they report."""

    def __init__(self, session: pytest.Session, scopes: Sequence[list[pytest.Item]]) -> None:
        self._session = session
        self._scopes = deque(scopes)
        self._places = Places()
        self._processes: dict[Connection, _Process] = {}
        self._num_started = 0
        self._number_of = {test: number for number, test in enumerate(session.items)}
        self._base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self, num: int) -> None:
        """Run all tests in this many processes. Raises what ends pytest early, as ``--maxfail`` does."""
        try:
            for _ in range(min(num, len(self._scopes))):
                self._start()
            while self._processes:
                for connection in wait(list(self._processes)):
                    self._hear(connection)  # type: ignore[arg-type]
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for process in self._processes.values():
                os.kill(process.pid, signal.SIGINT)
            for process in self._processes.values():
                os.waitpid(process.pid, 0)

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._num_started += 1
        self._flush()
        pid = os.fork()
        if pid == 0:
            for other in (ours, *self._processes):
                other.close()
            _serve(self._session, theirs, self._places, self._base / f"process{self._num_started}")
        theirs.close()
        self._processes[ours] = _Process(pid)
        self._give(ours)

    def _flush(self) -> None:
        if terminal := self._session.config.pluginmanager.getplugin("terminalreporter"):
            terminal.flush()

    def _give(self, connection: Connection) -> None:
        """Give a process its next scope; there is none left: it may end."""
        tests = self._scopes.popleft() if self._scopes else []
        self._processes[connection].left = deque(tests)
        with suppress(BrokenPipeError):
            connection.send([self._number_of[test] for test in tests])

    def _hear(self, connection: Connection) -> None:
        process = self._processes[connection]
        try:
            kind, told = connection.recv()
        except (EOFError, ConnectionResetError):
            del self._processes[connection]
            self._see_its_end(process)
            return
        hook = self._session.config.hook
        if kind == "place":
            process.has_place = told
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self._session.config, data=told)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=told)
        elif kind == "ended":
            process.left.popleft()
            if not process.left:
                self._give(connection)

    def _see_its_end(self, process: _Process) -> None:
        """Say which test ended a process before its time; another one goes on after that test."""
        status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        if process.has_place:
            self._places.put_back()
        if process.left:
            test = process.left.popleft()
            text = f"the process of this test ended with status {status}"
            report = pytest.TestReport(test.nodeid, test.location, {}, "failed", text, "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
        if process.left:
            self._scopes.appendleft(list(process.left))
        if self._scopes:
            self._start()


class Places:
    """Places of processes that run tests at a time; without the variable, there is one for each process."""

    def __init__(self) -> None:
        self._read, self._write = map(int, os.environ.pop(PLACES, "-1,-1").split(","))

    def take(self) -> None:
        """Wait for a place."""
        if self._read >= 0:
            os.read(self._read, 1)

    def put_back(self) -> None:
        if self._write >= 0:
            os.write(self._write, b".")


def _serve(session: pytest.Session, connection: Connection, places: Places, folder: Path) -> NoReturn:
    """Run the tests of each scope that comes, until an empty one comes; ends the process."""
    code = 1
    try:
        _begin(session.config, connection, folder)
        while tests := [session.items[number] for number in connection.recv()]:
            places.take()
            connection.send(("place", True))
            for test, following in zip(tests, (*tests[1:], None), strict=True):
                session.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
                connection.send(("ended", None))
            places.put_back()
            connection.send(("place", False))
        code = 0
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        session._setupstate.teardown_exact(None)
    finally:
        os._exit(code)


def _begin(config: pytest.Config, connection: Connection, folder: Path) -> None:
    """Give this process a standard output, capturing and temporary folders of its own, and tell what it reports."""
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # the results of tests are written by the process that collected
        os.dup2(null, stream)
    capture.start_global_capturing()
    capture.suspend_global_capture()
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    telling = _Telling(config, connection.send)
    config.pluginmanager.register(telling)
    telling.is_on = True


class _Telling:
    """Tells what is reported in a process that runs tests."""

    def __init__(self, config: pytest.Config, tell: Callable[[tuple[str, Any]], None]) -> None:
        self._config = config
        self._tell = tell
        self.is_on = False
        """Whether it tells: pytest repeats the warnings of the collection to a plugin that comes later."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._tell(("report", data))

    def pytest_warning_recorded(self, warning_message: WarningMessage, when: str, nodeid: str, location: Any) -> None:
        if not self.is_on:
            return
        message = WarningMessage(
            str(warning_message.message),  # a warning's own objects stay in this process
            _builtin(warning_message.category),
            warning_message.filename,
            warning_message.lineno,
        )
        told = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
        self._tell(("warning", told))


def _builtin(category: type[Warning]) -> type[Warning]:
    """Return the category's nearest class that every process can name."""
    return next(kind for kind in category.__mro__ if kind.__module__ in ("builtins", "_pytest.warning_types"))
