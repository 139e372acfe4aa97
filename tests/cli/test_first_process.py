"""A command that is the first process of a container: here, of a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_COMMAND = """
import os, subprocess, sys, time
from longboat.cli.first_process import run_below_init
run_below_init(pid=1)
{}
"""


def _first(body: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _COMMAND.format(body)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("body", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_first_process_ends_as_its_command_does(body: str, code: int) -> None:
    with _first(body) as first:
        assert first.wait(30) == code


def test_first_process_passes_signals_on_also_to_a_command_without_a_handler() -> None:
    with _first("print(os.getpid(), flush=True); time.sleep(60)") as first:
        assert first.stdout is not None
        command = int(first.stdout.readline())
        assert command != first.pid
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 128 + signal.SIGTERM
        with pytest.raises(ProcessLookupError):
            os.kill(command, 0)


def test_command_that_is_not_the_first_process_stays_the_process_that_it_is() -> None:
    from longboat.cli.first_process import run_below_init

    run_below_init()
    assert os.getpid() != 1


@pytest.mark.skipif(os.getuid() != 0, reason="a PID namespace of its own needs root")
def test_first_process_collects_orphans(tmp_path: Path) -> None:
    """The command ends with the states of the orphan's number: none, once init collected it."""
    body = """
shell = subprocess.run(["/bin/sh", "-c", "sleep 0 & echo $!"], stdout=subprocess.PIPE, text=True)
orphan = int(shell.stdout)
end_s = time.monotonic() + 20
while os.path.exists(f"/proc/{orphan}") and time.monotonic() < end_s:
    time.sleep(0.01)
sys.exit(7 if os.path.exists(f"/proc/{orphan}") else 0)
"""
    words = [sys.executable, "-c", _COMMAND.format(body).replace("pid=1", "")]
    namespace = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run([*namespace, *words], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
