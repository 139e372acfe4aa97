"""What signals do to a command that holds something up."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from rich.console import Console

from longboat.cli.shared.interrupts import interrupt_deferred, no_interrupt, terminates_as_interrupt
from longboat.cluster.ray.session import sigterm_kept

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """The handlers of a plain process; its output is a file, since a hang-up ends what goes to a terminal."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", NUMBERS)
def test_an_interrupt_comes_after_the_block_that_defers_it(number: int) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), interrupt_deferred():
        send(number)
        done.append("the whole block")
    assert done


def test_an_error_of_the_deferring_block_goes_first() -> None:
    with pytest.raises(ValueError, match="refused"), interrupt_deferred():
        send(signal.SIGINT)
        raise ValueError("refused")


@pytest.mark.parametrize("number", NUMBERS)
def test_every_ending_signal_is_an_interrupt(number: int) -> None:
    with pytest.raises(KeyboardInterrupt), terminates_as_interrupt():
        send(number)


@pytest.mark.parametrize("number", NUMBERS)
def test_nothing_interrupts_taking_down(number: int) -> None:
    with no_interrupt():
        send(number)


@pytest.mark.parametrize("block", [terminates_as_interrupt, no_interrupt, interrupt_deferred])
def test_what_nohup_ignores_stays_ignored(block: Callable[[], AbstractContextManager[None]]) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with block():
        send(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_taking_down_outlives_the_reader_of_its_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    console = Console(stderr=name == "stderr")
    with open(writer, "w", encoding="utf-8") as unread:
        monkeypatch.setattr(sys, name, unread)
        os.close(reader)
        with no_interrupt():
            console.print("taking the fleet down …")
            print("warning", file=getattr(sys, name), flush=True)
        assert getattr(sys, name) is unread


def test_ray_does_not_change_what_a_command_exits_with() -> None:
    with terminates_as_interrupt(), pytest.raises(KeyboardInterrupt):
        with sigterm_kept():
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        send(signal.SIGTERM)
    with sigterm_kept():
        pass
    with pytest.raises(SystemExit) as left:
        send(signal.SIGTERM)
    assert left.value.code == 143
