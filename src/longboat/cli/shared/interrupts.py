"""What Ctrl-C, SIGTERM and a closed terminal do to a command that holds something up."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

__all__ = ("exit_code", "interrupt_deferred", "no_interrupt", "terminates_as_interrupt")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, object], None]


@contextmanager
def terminates_as_interrupt() -> Iterator[None]:
    """SIGTERM, and the end of the terminal, raise KeyboardInterrupt, as Ctrl-C does; ``exit_code`` tells them apart."""

    def interrupt(number: int, _: object) -> None:
        _leave_terminal(number)
        raise KeyboardInterrupt(number)

    with _handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return what a command exits with that a signal ended: 130 for Ctrl-C, 143 for SIGTERM, 129 for a hang-up."""
    number = next((arg for arg in interrupt.args if isinstance(arg, int)), int(signal.SIGINT))
    return 128 + number


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Ignore a second Ctrl-C, SIGTERM and the end of the terminal, so that no half of a fleet is left behind.

    Ctrl-C ends all commands of a pipe: text for one that has ended (``| tee up.log``) is dropped.
    """
    with (
        _handled(ENDING, lambda number, _: _leave_terminal(number)),
        redirect_stdout(_Unread(sys.stdout)),
        redirect_stderr(_Unread(sys.stderr)),
    ):
        yield


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Defer what would interrupt the block to its end; an error of the block goes first."""
    caught: list[int] = []

    def note(number: int, _: object) -> None:
        _leave_terminal(number)
        caught.append(number)

    with _handled(ENDING, note):
        yield
    if caught:
        raise KeyboardInterrupt(caught[0])


@contextmanager
def _handled(numbers: tuple[signal.Signals, ...], handler: Handler) -> Iterator[None]:
    """Handle the signals, except those ignored from the start: ``nohup`` asks for that."""
    meant = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in meant}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class _Unread:
    """A stream that drops its text where that cannot be written, because its reader has ended."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._dropped():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropped():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _dropped(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            _send_nowhere(self._stream.fileno())


def _leave_terminal(number: int) -> None:
    """After a hang-up, writing to the terminal fails, and would end what takes things down."""
    if number != signal.SIGHUP:
        return
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            _send_nowhere(descriptor)


def _send_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
