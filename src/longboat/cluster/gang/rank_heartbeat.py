"""Sends the heartbeats of one rank from its agent to the listeners: the supervisor and the gateways."""

from __future__ import annotations

import socket

from longboat.cluster.usage.rank_life import RankLife
from longboat.cluster.usage.rank_links import RankLinks
from longboat.core.plan import GangPlan
from longboat.engines.launch.process import RankProcess
from longboat.heartbeat.line_server import door_socket
from longboat.heartbeat.server import BeatDoor
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import Beat, Life, RankBeat

__all__ = ("RankHeartbeat",)


class RankHeartbeat:
    """Answers from the moment that the rank runs; its port is known before."""

    def __init__(self, node_rank: int, *, is_own: bool = False) -> None:
        """is_own: the gang's supervisor lives in this process and reads ``own_beat``; nothing is sent"""
        self._node_rank = node_rank
        self._is_own = is_own
        self._socket: socket.socket | None = None
        self._rank: RankProcess | None = None
        self._life: RankLife | None = None
        self._links: RankLinks | None = None
        self._door: BeatDoor | None = None
        self._is_stopped = False  # by its supervisor
        self._on_request = False

    def listen(self, address: str) -> int:
        """Reserve the port where heartbeats are read, and return it."""
        self._socket = door_socket(address)
        port: int = self._socket.getsockname()[1]
        return port

    async def open(self, rank: RankProcess, plan: GangPlan) -> None:
        """Answer with the state of ``rank`` from now on, and of its links to the other hosts of its gang."""
        if self._socket is not None:
            self._rank, self._life, self._links = rank, RankLife(rank.pid), RankLinks(rank.pid)
            self.know(plan)
            if self._is_own:
                self._socket.close()
                return
            self._door = BeatDoor(self._socket, door_word(plan.api_key), self._beat)
            await self._door.open()

    def know(self, plan: GangPlan) -> None:
        """Watch the links to the other hosts of this plan, which may have more ranks than that of the start."""
        if self._links is not None:
            self._links.watch({other.address for other in plan.ranks} - {plan.ranks[self._node_rank].address})

    def own_beat(self) -> Beat | None:
        """Return the rank's heartbeat; None before it runs."""
        return self._beat() if self._life is not None else None

    def end(self, *, on_request: bool) -> None:
        """Say from now on that the rank has ended: it is being stopped.

        on_request: not because another rank crashed, for which a request may be to blame
        """
        self._is_stopped = self._rank is not None and not self._rank.ended
        self._on_request = self._is_stopped and on_request

    def _beat(self) -> Beat:
        if self._rank is None or self._life is None or self._links is None or self._is_stopped or self._rank.ended:
            on_request = self._on_request or (self._rank is not None and self._rank.ended_on_request)
            return Beat(ranks=(RankBeat(node_rank=self._node_rank, life=Life.ENDED, on_request=on_request),))
        (life, cpu_s), link = self._life.read(), self._links.read()
        beat = RankBeat(
            node_rank=self._node_rank, life=life, cpu_s=cpu_s, unacked_s=link.unacked_s, unacked_by=link.peer
        )
        return Beat(ranks=(beat,))
