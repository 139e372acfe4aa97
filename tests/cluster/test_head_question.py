"""Questions to Ray's head have a deadline, and leave nothing that keeps a process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from longboat.cluster.node.head_question import HeadAwayError, asked_within

STUCK_COMMAND = """
import atexit, threading
from longboat.cli import app
from longboat.cluster.node.head_question import asked_within

def stuck():
    print("before the error")
    asked_within(threading.Event().wait, 0.01)

app.app = stuck
atexit.register(print, "the interpreter ended in the usual way")
app.main()
"""


def test_head_that_does_not_answer_is_an_error_in_time() -> None:
    answers = threading.Event()
    with pytest.raises(HeadAwayError, match=r"did not answer within 0 s") as caught:
        asked_within(answers.wait, 0.01)
    answers.set()
    assert "longboat status" in str(caught.value.hint)


def test_answer_and_error_of_a_question_are_passed_on() -> None:
    assert asked_within(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        asked_within(lambda: 1 / 0)
    with pytest.raises(TimeoutError, match="of the question") as caught:
        asked_within(_time_out)
    assert not isinstance(caught.value, HeadAwayError)


def _time_out() -> None:
    raise TimeoutError("of the question")


def test_command_ends_beside_a_question_that_never_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-c", STUCK_COMMAND]
    env = {**os.environ, "LONGBOAT_RUN": str(tmp_path)}  # this machine may be a node
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert (done.returncode, done.stdout) == (3, "before the error\n")
    assert "error: the cluster's head did not answer within 0 s" in done.stderr
