"""What /proc says of a process, its threads and its descendants."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from longboat.cluster.usage.proc_usage import process_tree, thread_states

CHILD = """
import subprocess, sys
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
"""


def test_tree_has_what_any_thread_started_and_their_children() -> None:
    started: list[subprocess.Popen[str]] = []
    argv = [sys.executable, "-c", CHILD]

    def start() -> None:
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[0].stdout is not None
        grandchild = int(started[0].stdout.readline())
        assert {os.getpid(), started[0].pid, grandchild} <= set(process_tree(os.getpid()))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with started[0] as child:
        child.communicate("")


def test_states_of_threads_are_those_of_each_thread() -> None:
    over = threading.Event()
    others = [threading.Thread(target=over.wait, daemon=True) for _ in range(3)]
    for thread in others:
        thread.start()
    states = thread_states(os.getpid())
    over.set()
    assert len(states) >= 4
    assert "R" in states, "the thread that reads"


def test_process_that_is_gone_has_no_states() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(OSError, match=str(child.pid)):
        thread_states(child.pid)
    assert process_tree(child.pid) == [child.pid]
