"""The relay of one node: it listens to the gangs whose first rank is on its node, judges them, and tells gateways."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import replace

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.core.states import Endpoint
from longboat.heartbeat.line_server import LineServer, door_socket
from longboat.heartbeat.listener import listen
from longboat.heartbeat.relay_wire import MIN_EVERY_S, NOTHING_NEW, Judgements, read_greeting
from longboat.heartbeat.wire import door_word
from longboat.routing.health.liveness import Beat, Judgement, Liveness, LivenessLimits

__all__ = ("RELAYED", "Relay")

RELAYED = replace(LivenessLimits(), silent_s=2.0)
"""A relay is on the node of the gangs that it hears, so a gang that it does not hear is not cut off: it is silent."""

LOOK_EVERY_S = 0.125
_MAX_BEHIND_BYTES = 256 * 1024


class Relay(LineServer["_Pace"]):
    """A TCP server of judgements. ``key`` is what its listeners must have; gateways get it with their table."""

    def __init__(self, address: str, limits: LivenessLimits = RELAYED, clock: Clock = WALL) -> None:
        """Raise OSError where the address cannot be used."""
        self.key = secrets.token_urlsafe(24)
        self._word = door_word(self.key)
        self._limits = limits
        self._clock = clock
        listening = door_socket(address)
        self.address = f"{address}:{listening.getsockname()[1]}"
        self.is_assigned = False  # it knows which gangs are its own; before that, it has nothing to say
        self._ears: dict[str, _Ear] = {}  # key of the endpoint → what is heard of it
        self._judgements = Judgements()
        super().__init__(listening, self, every_s=LOOK_EVERY_S, max_behind_bytes=_MAX_BEHIND_BYTES)

    def close(self) -> None:
        """Stop, and cut all listeners off."""
        super().close()
        for ear in self._ears.values():
            ear.close()

    def watch(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Listen to these gangs from now on, and to no others. endpoints: by their keys"""
        for key, ear in tuple(self._ears.items()):
            endpoint = endpoints.get(key)
            if endpoint is None or endpoint.beats != ear.beats:
                self._ears.pop(key).close()
        for key, endpoint in endpoints.items():
            if key not in self._ears and endpoint.beats.rpartition(":")[2].isdecimal():
                self._ears[key] = _Ear(endpoint, self._limits, self._clock)
        self.is_assigned = True
        self.turn()

    @property
    def unwell(self) -> tuple[str, ...]:
        """The keys of endpoints that take no new requests by the judgement of this relay."""
        return tuple(key for key, judged in self._judgements.unwell.items() if judged.takes_nothing)

    def welcome(self, greeting: bytes) -> tuple[_Pace, bytes] | None:
        """Return the pace of a client that knows the word, and all judgements. Raise ValueError for no greeting."""
        word, every_s = read_greeting(greeting)
        if not hmac.compare_digest(word, self._word) or not self.is_assigned:  # a client tries again
            return None
        return _Pace(every_s), self._judgements.whole()

    def turn(self) -> None:
        """Judge all gangs, and tell gateways what changed."""
        now_s = self._clock.monotonic_s()
        line = self._judgements.differ({key: ear.judge(now_s) for key, ear in self._ears.items()})
        self.send(lambda pace: pace.line(line))


class _Pace:
    """The looks after which a listener gets a line although nothing changed."""

    __slots__ = ("_left", "_looks")

    def __init__(self, every_s: float) -> None:
        self._looks = self._left = max(1, round(max(every_s, MIN_EVERY_S) / LOOK_EVERY_S))

    def line(self, news: bytes) -> bytes:
        """Return what the listener gets at this look: the news, or now and then the line that says there are none."""
        self._left -= 1
        if self._left > 0 and not news:
            return b""
        self._left = self._looks
        return news or NOTHING_NEW


class _Ear:
    """What is heard of one gang."""

    def __init__(self, endpoint: Endpoint, limits: LivenessLimits, clock: Clock) -> None:
        self.beats = endpoint.beats
        self._clock = clock
        self._liveness = Liveness(limits, clock.monotonic_s())
        host, _, port = endpoint.beats.rpartition(":")
        listening = listen(host, int(port), door_word(endpoint.api_key), self)
        self._task = asyncio.get_running_loop().create_task(listening)

    def close(self) -> None:
        self._task.cancel()

    def judge(self, now_s: float) -> Judgement:
        return self._liveness.judge(now_s)

    def on_beat(self, beat: Beat) -> None:
        self._liveness.hear(beat, self._clock.monotonic_s())

    def on_reached(self, *, is_refused: bool = False) -> None:
        self._liveness.reach(self._clock.monotonic_s(), is_refused=is_refused)
