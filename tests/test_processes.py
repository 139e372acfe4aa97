"""Tests of what /proc tells of processes."""

from __future__ import annotations

import os
import subprocess

from longboat.processes import all_pids, boot_id, born_ticks, environment_of


def test_process_is_known_by_its_start_until_it_ends() -> None:
    with subprocess.Popen(["sleep", "60"], env={"LONGBOAT_TEST": "a=b"}) as child:
        assert child.pid in all_pids()
        assert born_ticks(child.pid) >= born_ticks(os.getpid()) > 0
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid in all_pids()
        assert born_ticks(child.pid) == 0, "it waits for its parent"
    assert child.pid not in all_pids()
    assert born_ticks(child.pid) == 0
    assert environment_of(child.pid) == {}


def test_environment_is_the_one_that_a_process_was_started_with() -> None:
    argv = ["sh", "-c", "echo; read line"]
    env = {"LONGBOAT_TEST": "a=b"}
    with subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert environment_of(child.pid) == {"LONGBOAT_TEST": "a=b"}
        child.communicate(b"\n")


def test_boot_has_one_name() -> None:
    assert boot_id() == boot_id() != ""
