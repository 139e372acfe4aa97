"""Tests of a rank's processes: their start, their environment, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from longboat.core.errors import EngineError
from longboat.engines.contract import RankCommand
from longboat.engines.launch.keeper_command import keeper_argv
from longboat.engines.launch.process import RankExit, RankProcess, reap, start_rank
from waiting import is_alive, wait_until_async

DEADLINE_S = 20.0
WITH_CHILD = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"


def python(code: str, **env: str | None) -> RankCommand:
    return RankCommand(argv=(sys.executable, "-c", code), env=env)


def marked(gang: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"LONGBOAT_GANG={gang}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if is_alive(pid)]


async def ended(rank: RankProcess) -> RankExit:
    return await asyncio.wait_for(rank.wait(), DEADLINE_S)


@pytest.fixture
def marks() -> dict[str, str]:
    return {"LONGBOAT_GANG": f"test/{uuid.uuid4()}", "LONGBOAT_GENERATION": "3", "LONGBOAT_NODE_RANK": "0"}


async def start(command: RankCommand, marks: dict[str, str], folder: Path) -> RankProcess:
    return await start_rank(command, env_tags=marks, log_path=folder / "rank0.log", zygote=None)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (RankExit(signal=signal.SIGKILL), "exited with signal 9 (SIGKILL)"),
        (
            RankExit(signal=signal.SIGBUS),
            "exited with signal 7 (SIGBUS: shared memory, /dev/shm, or a disk with a mapped file may be full)",
        ),
        (RankExit(signal=signal.SIGRTMIN + 1), "exited with signal 35 (which Python has no name for)"),
        (RankExit(returncode=3), "exited with code 3"),
        (RankExit(), "its keeper was lost"),
    ],
)
def test_an_end_says_how_it_came(end: RankExit, words: str) -> None:
    assert str(end) == words


async def test_rank_reports_its_exit_code_and_writes_its_log(tmp_path: Path, marks: dict[str, str]) -> None:
    command = python("import os, sys; print(os.environ['SAID'], flush=True); sys.exit(5)", SAID="hello")
    async with await start(command, marks, tmp_path) as rank:
        assert await ended(rank) == RankExit(returncode=5)
        assert rank.started_by == "plain"
        assert "hello" in (tmp_path / "rank0.log").read_text()


async def test_rank_sees_marks_and_not_what_is_taken_away(
    tmp_path: Path, marks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNWANTED", "x")
    command = python("import os; print(os.environ.get('UNWANTED'), os.environ['LONGBOAT_GENERATION'])", UNWANTED=None)
    async with await start(command, marks, tmp_path) as rank:
        await ended(rank)
        assert (tmp_path / "rank0.log").read_text().split() == ["None", "3"]


async def test_secrets_are_in_no_command_line(tmp_path: Path, marks: dict[str, str]) -> None:
    async with await start(python("import time; time.sleep(600)", VLLM_API_KEY="tellnobody"), marks, tmp_path) as rank:
        for pid in (rank.pid, rank.keeper_pid):
            assert b"tellnobody" not in Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_close_ends_the_rank_and_children_in_other_sessions(tmp_path: Path, marks: dict[str, str]) -> None:
    rank = await start(python(WITH_CHILD), marks, tmp_path)
    await wait_until_async(lambda: len(marked(marks["LONGBOAT_GANG"])) == 3, "keeper, main and child")
    rank.close()
    assert await ended(rank) == RankExit(signal=signal.SIGKILL)
    await wait_until_async(lambda: not marked(marks["LONGBOAT_GANG"]), "nothing is left")


async def test_terminate_lets_the_rank_finish(tmp_path: Path, marks: dict[str, str]) -> None:
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); print(1, flush=True)"
    async with await start(python(f"{code}; time.sleep(600)"), marks, tmp_path) as rank:
        await wait_until_async(lambda: "1" in (tmp_path / "rank0.log").read_text(), "handler is set")
        rank.terminate(60.0)
        assert await ended(rank) == RankExit(returncode=9)


async def test_terminate_kills_after_its_grace_time(tmp_path: Path, marks: dict[str, str]) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    async with await start(python(code), marks, tmp_path) as rank:
        await wait_until_async(lambda: "1" in (tmp_path / "rank0.log").read_text(), "signal is ignored")
        rank.terminate(0.1)
        assert await ended(rank) == RankExit(signal=signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "is_request"), [(signal.SIGTERM, True), (signal.SIGKILL, False), (signal.SIGSEGV, False)]
)
async def test_rank_says_whether_it_was_asked_to_end(
    tmp_path: Path, marks: dict[str, str], number: signal.Signals, is_request: bool
) -> None:
    async with await start(python("import time; time.sleep(600)"), marks, tmp_path) as rank:
        assert not rank.ended_on_request
        os.kill(rank.pid, number)
        await ended(rank)
        assert rank.ended_on_request is is_request


async def test_commands_to_an_ended_rank_do_nothing(tmp_path: Path, marks: dict[str, str]) -> None:
    rank = await start(python("pass"), marks, tmp_path)
    await ended(rank)
    rank.terminate(1.0)
    rank.kill()
    rank.close()
    rank.close()
    assert rank.ended


async def test_loss_of_the_keeper_ends_the_rank(tmp_path: Path, marks: dict[str, str]) -> None:
    async with await start(python(WITH_CHILD), marks, tmp_path) as rank:
        await wait_until_async(lambda: len(marked(marks["LONGBOAT_GANG"])) == 3, "keeper, main and child")
        os.kill(rank.keeper_pid, signal.SIGKILL)
        assert await ended(rank) == RankExit()
        assert not marked(marks["LONGBOAT_GANG"])


async def test_two_waiters_hear_of_one_end(tmp_path: Path, marks: dict[str, str]) -> None:
    async with await start(python("import time; time.sleep(600)"), marks, tmp_path) as rank:
        waiters = [asyncio.ensure_future(ended(rank)) for _ in range(2)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        rank.kill()
        assert await waiters[1] == RankExit(signal=signal.SIGKILL)


async def test_ranks_do_not_hold_each_others_lifelines(tmp_path: Path, marks: dict[str, str]) -> None:
    sleeper = python("import time; time.sleep(600)")
    first = await start(sleeper, marks, tmp_path)
    async with await start(sleeper, marks, tmp_path):
        first.close()
        assert await ended(first) == RankExit(signal=signal.SIGKILL)


async def test_program_that_does_not_exist_is_an_exit_not_an_error(tmp_path: Path, marks: dict[str, str]) -> None:
    async with await start(RankCommand(argv=("/no/such/engine",), env={}), marks, tmp_path) as rank:
        assert await ended(rank) == RankExit(returncode=127)
        assert (
            "/no/such/engine" in (tmp_path / "rank0.log").read_text()
            or "No such file" in (tmp_path / "rank0.log").read_text()
        )


async def test_reap_returns_what_it_killed(tmp_path: Path, marks: dict[str, str]) -> None:
    async with await start(python("import time; time.sleep(600)"), marks, tmp_path) as rank:
        killed = await reap({"LONGBOAT_GANG": marks["LONGBOAT_GANG"]}, older_than_generation=4)
        assert {rank.pid, rank.keeper_pid} & set(killed)
        assert not marked(marks["LONGBOAT_GANG"])
        assert await reap({"LONGBOAT_GANG": marks["LONGBOAT_GANG"]}) == ()


async def test_reap_without_marks_is_an_error() -> None:
    with pytest.raises(EngineError):
        await reap({})


async def test_a_rank_whose_owner_is_silent_ends_with_its_lease(tmp_path: Path, marks: dict[str, str]) -> None:
    async with await start(python(WITH_CHILD), marks, tmp_path) as rank:
        rank.renew(0.3)
        assert (await ended(rank)).signal == signal.SIGKILL
        await wait_until_async(lambda: not marked(marks["LONGBOAT_GANG"]), "nothing of it is left")


async def test_a_rank_lives_while_its_lease_is_renewed(tmp_path: Path, marks: dict[str, str]) -> None:
    async with await start(python(WITH_CHILD), marks, tmp_path) as rank:
        rank.renew(0.3)
        rank.renew(600)
        await asyncio.sleep(1.0)
        assert is_alive(rank.pid)


def test_keeper_loads_none_of_the_modules_that_would_double_its_memory() -> None:
    *_, script = keeper_argv()
    program = f"import sys; sys.path.insert(0, {os.path.dirname(script)!r}); import keeper; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "keeper" in loaded
    assert not loaded & {"argparse", "collections", "contextlib", "enum", "json", "re", "shutil", "signal", "typing"}


def test_keeper_without_a_clear_order_names_its_options(capfd: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["stray"],
        ["--lifeline", "3"],
        ["--lifeline", "x", "--status", "4", "--", "true"],
        ["--lifeline", "3", "--status", "4", "--grace", "--", "true"],
        ["--detach", "--", "true"],
        ["--reap"],
    ):
        assert subprocess.run(keeper_argv(*words), check=False).returncode == 2
        assert "--lifeline FD --status FD" in capfd.readouterr().err


MISTYPED = (["--older-than", "3"], ["--older-than-generation"], ["--older-than-generation", "x"])


def reap_gang(marks: dict[str, str], *limit: str) -> int:
    gang = f"LONGBOAT_GANG={marks['LONGBOAT_GANG']}"
    return subprocess.run(keeper_argv("--reap", gang, *limit), check=False).returncode


@pytest.mark.parametrize("limit", MISTYPED)
async def test_reap_with_a_mistyped_limit_ends_nothing(
    limit: list[str], marks: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with await start(python("import time; time.sleep(600)"), marks, tmp_path) as rank:
        assert reap_gang(marks, *limit) == 2
        assert "ValueError" in capfd.readouterr().err.splitlines()[-1]
        assert is_alive(rank.pid)


@pytest.mark.parametrize("limit", [["--older-than-generation", "3"], ["--older-than-generation=3"]])
async def test_reap_takes_a_limit_in_either_form(limit: list[str], marks: dict[str, str], tmp_path: Path) -> None:
    async with await start(python("import time; time.sleep(600)"), marks, tmp_path) as rank:
        assert reap_gang(marks, *limit) == 0
        assert is_alive(rank.pid)
