"""What the gateway keeps of a stream so that another engine can go on with it: token ids, and what the client has."""

from __future__ import annotations

from array import array

from longboat.gateway.stitch_choices import ReceivedChoices
from longboat.gateway.stitch_messages import ReceivedMessage
from longboat.gateway.stitch_parts import Received, StitchError, events_of, ids_of, is_own_comment
from longboat.gateway.stitch_responses import ReceivedResponse
from longboat.gateway.usage import AnswerKind

__all__ = ("FOLD_BYTES", "MAX_HELD_BYTES", "Journal")

FOLD_BYTES = 256 * 1024
MAX_HELD_BYTES = 16 * 1024 * 1024

_RECEIVED: dict[AnswerKind, type[Received]] = {
    AnswerKind.OPENAI_EVENTS: ReceivedChoices,
    AnswerKind.ANTHROPIC_EVENTS: ReceivedMessage,
    AnswerKind.RESPONSES_EVENTS: ReceivedResponse,
}
_FIRST_CHOICE = b": ids 0 "


class Journal:
    """One stream's. Feed it whole events, as the engine sent them, and give the client what comes back.

    The bytes that went to the client are kept as they are; past ``FOLD_BYTES`` they are read, and only what a rest
    of the stream depends on stays. A stream of which more than ``MAX_HELD_BYTES`` would have to stay is not resumable.

    ids: of the tokens generated so far, per choice
    engine_steps: what the engine last told of its own; -1 is nothing yet
    """

    __slots__ = ("_broken", "_kind", "_received", "_sent", "_sent_bytes", "engine_steps", "ids")

    def __init__(self, kind: AnswerKind, num_choices: int = 1) -> None:
        """kind: one of a stream of events; num_choices: that the request asks for (at least 1)."""
        self._kind = kind
        self._received: Received = _RECEIVED[kind]()
        self._sent: list[bytes] = []
        self._sent_bytes = 0
        self._broken = False
        self.ids = [array("I") for _ in range(num_choices)]
        self.engine_steps = -1

    def feed(self, events: bytes) -> bytes:
        """What the client gets of whole events: all but the engine's words to the gateway. May be empty."""
        events = self.stripped(events)
        if events:
            self.keep(events)
        return events

    def stripped(self, events: bytes) -> bytes:
        """Take the engine's words to the gateway off whole events, and learn them."""
        if events.startswith(_FIRST_CHOICE):
            end = events.find(b"\n")
            ids = events[8:end]
            if ids.isdigit() and events.find(b"\n:", end) < 0:
                try:
                    self.ids[0].append(int(ids))
                except OverflowError:
                    self._broken = True
                return events[end + 1 :]
        if events.startswith(b":") or b"\n:" in events:
            return self._stripped_lines(events)
        return events

    def keep(self, events: bytes, *, fold: bool = True) -> None:
        """The client got these. fold: False leaves what was read so far as it is."""
        self._sent.append(events)
        self._sent_bytes += len(events)
        if self._sent_bytes > FOLD_BYTES and fold:
            self._fold()

    def received(self) -> Received:
        """What the client has, all of it read."""
        self._fold()
        return self._received

    def priors(self) -> list[list[int]]:
        """The ids that another engine is given, per choice.

        Not all that are known: a token whose event the client lacks is made again, and of a choice that has, or may
        have, ended the last one is, so that the engine ends it by itself.
        """
        received = self.received()
        return [ids[: received.carried(choice, len(ids))].tolist() for choice, ids in enumerate(self.ids)]

    @property
    def num_tokens(self) -> int:
        """Of all choices."""
        return sum(map(len, self.ids))

    @property
    def held_bytes(self) -> int:
        """About the memory that it takes."""
        return self._sent_bytes + self._received.held_bytes + sum(ids.itemsize * len(ids) for ids in self.ids)

    @property
    def is_resumable(self) -> bool:
        """Whether it knows all that another engine needs: asked after a fault, since it reads what is kept."""
        received = self.received()
        return not self._broken and not received.ended and self.num_tokens > 0

    def _stripped_lines(self, events: bytes) -> bytes:
        """The same for any whole events; what is left of one that only held such words is dropped."""
        kept = []
        for raw in events.split(b"\n\n"):
            lines = raw.split(b"\n")
            others = [line for line in lines if not is_own_comment(line)]
            if len(others) < len(lines):
                self._learn(lines)
            if others or not raw:
                kept.append(b"\n".join(others))
        return b"\n\n".join(kept)

    def _learn(self, lines: list[bytes]) -> None:
        try:
            for line in lines:
                told = ids_of(line)
                if told is not None:
                    self.ids[told[0]].extend(told[1])
                elif line.startswith(b": steps "):
                    self.engine_steps = int(line[8:])
        except (ValueError, IndexError, OverflowError):
            self._broken = True

    def _fold(self) -> None:
        sent, self._sent, self._sent_bytes = self._sent, [], 0
        if self._broken:
            return
        try:
            for event in events_of(b"".join(sent)):
                self._received.note(event)
        except (StitchError, LookupError, TypeError, AttributeError, ValueError):
            self._give_up()
        if self.held_bytes > MAX_HELD_BYTES:
            self._give_up()

    def _give_up(self) -> None:
        self._broken = True
        self._received = _RECEIVED[self._kind]()
