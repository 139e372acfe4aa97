"""The client of one relay: it reads judgements, and knows whether the relay's node replies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any, Final, cast

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.heartbeat.relay_wire import Judgements, interval_s, silence_s, write_greeting
from longboat.heartbeat.wire import MAX_LINE_BYTES, door_word
from longboat.routing.health.liveness import CUT, UNHEARD, Health, Judgement

__all__ = ("RelayEar", "Relays")

_CONNECT_S = 0.3
_PAUSE_S = 0.25
_MAX_HELD_BYTES = 64 * MAX_LINE_BYTES
_BEYOND_S = 0.6
"""A node counts as cut off when it has not replied to new connections for this long, either."""
_ENDED_S, _AWAY_S = 4.0, 15.0
"""Where a relay refuses connections or says nothing for this long, its gangs are heard directly.

That costs every gateway a connection for each gang, so a relay that is only slow gets more time.
"""
_OWN_PAUSE_S = 0.5
"""A listener that last looked this long ago was not running itself: unread lines may be waiting for it."""


class RelayEar:  # size: the state of one connection, and the times by which it is judged
    """The link to one relay. ``look`` must be called several times a second."""

    def __init__(self, where: str, key: str, every_s: float, clock: Clock = WALL) -> None:
        """where: host:port; every_s: seconds between two lines"""
        self.where, self.key = where, key
        self.judgements = Judgements()
        self.is_away = False  # it says nothing, though its node replies
        self.is_cut = False  # its node does not reply
        self._greeting = write_greeting(door_word(key), every_s)
        self._silent_s = silence_s(every_s)
        self._clock = clock
        self._heard_s = self._reached_s = clock.monotonic_s()
        self.was_heard = False  # it said at least once which gangs are not well
        self._is_refused = False
        self.has_news = False  # something changed since ``Relays`` looked
        self._task = asyncio.get_running_loop().create_task(self._listen())

    def close(self) -> None:
        self._task.cancel()

    def look(self, now_s: float) -> None:
        """Find out whether the node replies. One that was never heard does not count as cut off."""
        is_cut = self.was_heard and now_s - self._reached_s > self._silent_s + _BEYOND_S
        away_s = _ENDED_S if self._is_refused else _AWAY_S
        is_away = not is_cut and now_s - self._heard_s > away_s + self._silent_s
        if (is_cut, is_away) != (self.is_cut, self.is_away):
            self.is_cut, self.is_away, self.has_news = is_cut, is_away, True

    def excuse(self, pause_s: float, now_s: float) -> None:
        """Do not count a time in which this process did not run."""
        self._heard_s = min(now_s, self._heard_s + pause_s)
        self._reached_s = min(now_s, self._reached_s + pause_s)

    def on_line(self, line: bytes) -> None:
        """Take a line, without its end. Raise ValueError where it cannot be read."""
        self._reached_s = self._clock.monotonic_s()
        if line:
            self.judgements.take(line)
            self.was_heard = self.has_news = True
        self._heard_s, self._is_refused = self._reached_s, False

    def on_reached(self) -> None:
        self._reached_s = self._clock.monotonic_s()

    async def _listen(self) -> None:
        while True:
            try:
                await self._hear()
            except TimeoutError:
                continue  # the time-out was the pause
            except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
                self._is_refused = True
                self.on_reached()
            except OSError:
                pass
            await asyncio.sleep(_PAUSE_S)

    async def _hear(self) -> None:
        host, _, port = self.where.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_S):
            # it has a protocol's methods, and may be compiled without the base class
            transport, made = await loop.create_connection(
                lambda: cast("asyncio.Protocol", _Lines(self)), host, int(port)
            )
        lines = cast("_Lines", made)
        try:
            self.on_reached()
            transport.write(self._greeting)
            while not lines.ended.done():
                left_s = lines.arrived_s + self._silent_s - loop.time()
                if left_s <= 0.0:
                    raise TimeoutError
                await asyncio.wait((lines.ended,), timeout=left_s)
        finally:
            transport.abort()


class _Lines:
    """Reads lines as they arrive: thousands of empty ones arrive each second."""

    def __init__(self, ear: RelayEar) -> None:
        self._ear = ear
        self._held = b""
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()
        self.arrived_s = self._loop.time()  # when the last data did
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self.arrived_s = self._loop.time()
        if data == b"\n" and not self._held:
            self._ear.on_line(b"")
            return
        *lines, self._held = (self._held + data).split(b"\n")
        try:
            if len(self._held) > _MAX_HELD_BYTES:
                raise ValueError("a line without an end")
            for line in lines:
                self._ear.on_line(line)
        except ValueError:
            self._transport.abort()

    def eof_received(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


_CUT: Final = Judgement(health=Health.LOST, cause=CUT, detail="its node does not answer")


class Relays:
    """The relays that one gateway process listens to."""

    def __init__(self, clock: Clock = WALL) -> None:
        self._clock = clock
        self._ears: dict[str, RelayEar] = {}
        self._looked_s = clock.monotonic_s()

    def keep(self, relays: Mapping[str, str]) -> None:
        """Listen to these relays from now on, and to no others. relays: host:port → key"""
        for where, ear in tuple(self._ears.items()):
            if relays.get(where) != ear.key:
                self._ears.pop(where).close()
        every_s = interval_s(len(relays))
        for where, key in relays.items():
            if where not in self._ears and where.rpartition(":")[2].isdecimal():
                self._ears[where] = RelayEar(where, key, every_s, self._clock)

    def look(self, now_s: float) -> bool:
        """Return whether something changed. Call several times a second."""
        pause_s, self._looked_s = now_s - self._looked_s, now_s
        has_news = False
        for ear in self._ears.values():
            if pause_s > _OWN_PAUSE_S:
                ear.excuse(pause_s, now_s)
            ear.look(now_s)
            has_news = has_news or ear.has_news
            ear.has_news = False
        return has_news

    def judgement(self, where: str, key: str) -> Judgement | None:
        """Return what a relay says of an endpoint; None where no relay does, so that it is to be heard directly."""
        ear = self._ears.get(where)
        if ear is None or ear.is_away:
            return None
        if ear.is_cut:
            return _CUT
        return ear.judgements.of(key) if ear.was_heard else UNHEARD

    def close(self) -> None:
        for ear in self._ears.values():
            ear.close()
        self._ears.clear()
