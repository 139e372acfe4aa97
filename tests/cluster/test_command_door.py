"""Commands ask the node's daemon through its door, without Ray."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster.test_write_turn import Store
from longboat.cli.shared.quick_session import DaemonMarks
from longboat.cluster.node import answers, write_turn
from longboat.cluster.node.answers import Answers
from longboat.cluster.node.door import CommandDoor
from longboat.cluster.node.door_client import DoorClient, DoorClosedError, door_path
from longboat.cluster.node.head_question import HeadAwayError
from longboat.cluster.protocol.messages import FleetReport, GatewayReport, ModelCount
from longboat.core.errors import ClusterError
from longboat.core.states import Phase, RankState, ReplicaState, ResumeLevel

RANK = RankState(
    node_rank=0, node_id="n", address="10.0.0.1", hostname="h", pid=7, agent_pid=8, log_path="/l", started_by="zygote"
)
STATE = ReplicaState(
    model="a",
    replica="a-1",
    generation=3,
    phase=Phase.READY,
    url="http://10.0.0.1:1",
    ranks=(RANK,),
    phase_s={"starting": 1.5},
    resume=ResumeLevel.CARRIED,
)
REPORT = FleetReport(
    fleet="t",
    document="name: t",
    at_s=1.5,
    replicas=(STATE,),
    gateways=(GatewayReport(node_id="n", address="10.0.0.1", hostname="h", url="u", pid=None, table_version=2),),
    failures={},
    counts={"a": ModelCount(wanted=1, by="file", since_s=1.0)},
    taken_back={"a": ("digest", "why")},
    decisions=({"model": "a"},),
)


@pytest.fixture
def run() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lb", dir="/tmp") as folder:
        yield Path(folder)


async def _report() -> FleetReport:
    return REPORT


async def _doubled(number: int) -> int:
    if number < 0:
        raise ClusterError("no such number", hint="another one")
    return number * 2


async def _broken() -> None:
    raise ZeroDivisionError("by zero")


async def _asked(run: Path, what: str, *args: object, kind: Any = None) -> Any:
    door = CommandDoor(run, {"report": _report, "doubled": _doubled, "broken": _broken})
    await door.open()
    try:
        client = DoorClient(run)
        question = (client.ask_for, kind, what, *args) if kind is not None else (client.ask, what, *args)
        return await asyncio.to_thread(*question)
    finally:
        door.close()


async def test_report_crosses_the_door_unchanged(run: Path) -> None:
    assert await _asked(run, "report", kind=FleetReport) == REPORT


async def test_arguments_reach_who_answers(run: Path) -> None:
    assert await _asked(run, "doubled", 21) == 42


async def test_refusals_come_with_their_hint(run: Path) -> None:
    for kind in (None, FleetReport):
        with pytest.raises(ClusterError, match="no such number") as caught:
            await _asked(run, "doubled", -1, kind=kind)
        assert caught.value.hint == "another one"


async def test_unexpected_errors_and_unknown_questions_end_no_daemon(run: Path) -> None:
    with pytest.raises(ClusterError, match="ZeroDivisionError: by zero"):
        await _asked(run, "broken")
    with pytest.raises(ClusterError, match="KeyError"):
        await _asked(run, "nonsense")


async def test_closed_door_says_so_and_leaves_no_socket(run: Path) -> None:
    await _asked(run, "doubled", 1)
    assert not door_path(run).exists()
    with pytest.raises(DoorClosedError):
        DoorClient(run).ask("doubled", 1)


async def test_door_opens_in_the_place_of_one_whose_daemon_was_killed(run: Path) -> None:
    door_path(run).write_text("")
    assert await _asked(run, "doubled", 2) == 4


async def test_head_that_does_not_answer_is_told_before_the_command_gives_the_daemon_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(answers, "_HEAD_S", 0.05)
    monkeypatch.setattr(answers, "_mark", lambda *_: is_over.wait())
    monkeypatch.setattr(answers, "_controller", is_over.wait)
    found = Answers("n", {})
    try:
        for question in (found.mark("get", ""), found.controller("report")):
            with pytest.raises(HeadAwayError, match="the cluster's head did not answer"):
                await asyncio.wait_for(question, 10.0)
    finally:
        is_over.set()


async def test_marks_of_the_turn_to_write_reach_the_cluster_through_the_door(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    monkeypatch.setattr(write_turn, "ray_marks", lambda: store)
    door = CommandDoor(run, Answers("n", {}).all)
    await door.open()

    def turn() -> tuple[set[str], object]:
        marks = DaemonMarks(DoorClient(run))
        with write_turn.writing(marks):
            marks.put("sign", b"1")
            return set(store.marks), marks.get("sign")

    try:
        assert await asyncio.to_thread(turn) == ({"writing", "sign"}, b"1")
        assert set(store.marks) == {"sign"}
    finally:
        door.close()


async def test_commands_that_wait_for_the_head_take_no_thread_of_the_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It needs its threads to start a gateway, also while the head is away."""
    is_back = threading.Event()
    monkeypatch.setattr(write_turn, "ray_marks", lambda: is_back.wait(30) and Store())
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    answers = Answers("n", {})
    asked = [asyncio.ensure_future(answers.mark("get", "writing")) for _ in range(4)]
    try:
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "started"), 10) == "started"
    finally:
        is_back.set()
    assert await asyncio.gather(*asked) == [None] * 4
