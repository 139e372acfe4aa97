"""What a rank's heartbeat says of its end."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from longboat.cluster.gang.rank_heartbeat import RankHeartbeat
from longboat.cluster.usage import rank_links
from longboat.core.plan import GangPlan, GangShape, RankPlan, RankResources
from longboat.engines.contract import RankCommand
from longboat.engines.launch.process import RankProcess, start_rank
from longboat.routing.health.liveness import Life

RANK = RankPlan(node_rank=0, node_id="n", address="127.0.0.1", interface="lo", ports={})
PLAN = GangPlan(
    fleet="f",
    model="m",
    source="s",
    model_path="/m",
    replica="r",
    generation=1,
    shape=GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources()),
    ranks=(RANK,),
    context_tokens=None,
    api_key="key",
)


@pytest.fixture
async def rank(tmp_path: Path) -> AsyncIterator[RankProcess]:
    command = RankCommand(argv=(sys.executable, "-c", "import time; time.sleep(600)"), env={})
    async with await start_rank(command, env_tags={}, log_path=tmp_path / "log", zygote=None) as started:
        yield started


async def beats_of(rank: RankProcess) -> RankHeartbeat:
    heartbeat = RankHeartbeat(0, is_own=True)
    heartbeat.listen("127.0.0.1")
    await heartbeat.open(rank, PLAN)
    return heartbeat


@pytest.mark.parametrize("on_request", [True, False])
async def test_a_rank_that_is_stopped_says_whether_that_was_asked_for(rank: RankProcess, *, on_request: bool) -> None:
    heartbeat = await beats_of(rank)
    heartbeat.end(on_request=on_request)
    rank.kill()
    for _ in range(2):
        beat = heartbeat.own_beat()
        assert beat is not None
        assert (beat.ranks[0].life, beat.ranks[0].on_request) == (Life.ENDED, on_request)
        await asyncio.wait_for(rank.wait(), 30)


async def test_a_rank_that_had_ended_by_sigterm_was_asked_though_its_gang_is_ended_by_force(rank: RankProcess) -> None:
    heartbeat = await beats_of(rank)
    rank.terminate(20.0)
    await asyncio.wait_for(rank.wait(), 30)
    heartbeat.end(on_request=False)
    beat = heartbeat.own_beat()
    assert beat is not None
    assert beat.ranks[0].on_request


async def test_a_head_that_started_alone_watches_its_links_once_the_other_ranks_are_known(
    rank: RankProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = f"{_word('127.0.0.1')}:D18F {_word('10.77.0.2')}:1E61"
    lost = f"0: {ends} 01 00000001:00000000 01:00000084 00000009 0 0 4711 1"
    monkeypatch.setattr(rank_links, "_lines", lambda table: [lost] if table == "/proc/net/tcp" else [])
    monkeypatch.setattr(rank_links, "_inodes", lambda _pid: frozenset({4711}))
    monkeypatch.setattr(rank_links, "_READ_EVERY_S", 0.0)
    monkeypatch.setattr(rank_links, "_SUSPECT_EVERY_S", 0.0)
    heartbeat = await beats_of(rank)
    assert _unacked_by(heartbeat) == ""
    other = dataclasses.replace(RANK, node_rank=1, address="10.77.0.2")
    heartbeat.know(dataclasses.replace(PLAN, ranks=(RANK, other)))
    assert [_unacked_by(heartbeat) for _ in range(2)][-1] == "10.77.0.2"


def _word(address: str) -> str:
    return next(iter(rank_links.kernel_words([address])))


def _unacked_by(heartbeat: RankHeartbeat) -> str:
    beat = heartbeat.own_beat()
    assert beat is not None
    return beat.ranks[0].unacked_by
