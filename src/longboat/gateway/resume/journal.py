"""What the gateway keeps of a stream so that another engine can continue it: token ids, and what the client has."""

from __future__ import annotations

import zlib
from array import array

from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.native.leaf_work import TokenLog
from longboat.gateway.resume.continuation.choices import DeliveredChoices
from longboat.gateway.resume.continuation.messages import DeliveredMessage
from longboat.gateway.resume.continuation.parts import (
    IDS,
    STEPS,
    ContinuationError,
    Delivered,
    events_of,
    is_own_comment,
)
from longboat.gateway.resume.continuation.responses import DeliveredResponse

__all__ = ("MAX_HELD_BYTES", "PACK_BYTES", "Journal")

PACK_BYTES = 256 * 1024
MAX_HELD_BYTES = 16 * 1024 * 1024

_DELIVERED: dict[AnswerKind, type[Delivered]] = {
    AnswerKind.OPENAI_EVENTS: DeliveredChoices,
    AnswerKind.ANTHROPIC_EVENTS: DeliveredMessage,
    AnswerKind.RESPONSES_EVENTS: DeliveredResponse,
}
_COLON = ord(":")


class Journal:
    """The journal of one stream. Feed it whole events, as the engine sent them, and give the client what it returns.

    The bytes are kept as they came, and packed whenever ``PACK_BYTES`` are reached (a stream of tokens shrinks to about
    a twentieth). A stream that still takes more than ``max_held_bytes`` is not resumable. The events are read only
    after a fault, at about a microsecond per event.
    """

    __slots__ = (
        "_delivered",
        "_ids",
        "_kind",
        "_max_held_bytes",
        "_num_lines",
        "_packed",
        "_packed_bytes",
        "_packed_tokens",
        "_unreadable",
        "engine_steps",
        "log",
    )

    def __init__(self, kind: AnswerKind, num_choices: int = 1, *, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        """kind: one of a stream of events; num_choices: how many the request asks for (at least 1)."""
        self._kind = kind
        self._max_held_bytes = max_held_bytes
        self._num_lines = 3 if kind is AnswerKind.OPENAI_EVENTS else 4  # id, event (but OpenAI's), data, and none
        self._ids = [array("I") for _ in range(num_choices)]
        self._delivered: Delivered = _DELIVERED[kind]()
        self.log = TokenLog(PACK_BYTES)  # since the last packing or reading; the connection may write into it itself
        self._packed: list[bytes] = []
        self._packed_bytes = 0
        self._packed_tokens = 0
        self._unreadable = False
        self.engine_steps = -1  # the engine's own count; -1: not known yet

    def feed(self, events: bytes) -> bytes:
        """Return what the client gets of whole events: all but the engine's words to the gateway. It may be empty."""
        rest = self.feed_token(events)
        if rest is not None:
            return rest
        if events.startswith(b":") or b"\n:" in events:
            return self._without_comments(events)
        self.keep(events)
        return events

    def feed_token(self, events: bytes) -> bytes | None:
        """Do as ``feed`` for one event with the ids of one choice before it, as nearly all are.

        Return None for anything else, and do nothing.
        """
        ids, _, event = events.partition(b"\n")
        if ids[:6] != IDS or event.count(b"\n") != self._num_lines or event[0] == _COLON:
            return None
        self.keep(events)
        return event

    def keep(self, events: bytes) -> None:
        """Keep events that the client got."""
        self.log.keep(events)
        if self.log.sent_bytes > PACK_BYTES:
            self._pack()

    def learn_steps(self, events: bytes) -> None:
        """Read the engine's count of its steps."""
        at = events.rfind(STEPS)
        if at >= 0:
            steps = events[at + len(STEPS) :].partition(b"\n")[0]
            self.engine_steps = int(steps) if steps.isdigit() else self.engine_steps

    def delivered(self) -> Delivered:
        """Read all that is kept. Return what the client has."""
        self._read()
        return self._delivered

    @property
    def ids(self) -> list[array[int]]:
        """Token ids generated so far, per choice. Only a continuation may change them."""
        self._read()
        return self._ids

    def priors(self) -> list[list[int]]:
        """Return the token ids that another engine is given, per choice.

        Some known ids are left out, and made again: those whose event the client lacks, and the last one of a choice
        that may have ended, so that the engine ends it by itself.
        """
        delivered = self.delivered()
        return [ids[: delivered.carried(choice, len(ids))].tolist() for choice, ids in enumerate(self._ids)]

    @property
    def num_tokens(self) -> int:
        """Tokens of all choices, by the engine's last count."""
        counted = _counted(self.log.last())
        if counted is None:
            counted = _counted(self.log.all())
        if counted is None:
            counted = self._packed_tokens if self._packed else sum(map(len, self._ids))
        return counted

    @property
    def held_bytes(self) -> int:
        """About the memory that the journal takes."""
        ids_bytes = sum(ids.itemsize * len(ids) for ids in self._ids)
        return self.log.sent_bytes + self._packed_bytes + self._delivered.held_bytes + ids_bytes

    @property
    def is_resumable(self) -> bool:
        """Whether the journal knows all that another engine needs. Ask only after a fault: this reads what is kept."""
        ended = self.delivered().ended
        return not self._unreadable and not ended and any(self._ids)

    def _without_comments(self, events: bytes) -> bytes:
        """Do as ``feed`` for events with comments; an event of nothing but the engine's words is dropped."""
        kept = []
        for raw in events.split(b"\n\n"):
            lines = raw.split(b"\n")
            others = [line for line in lines if not is_own_comment(line)]
            if len(others) < len(lines):
                self.learn_steps(raw)
            if others or not raw:
                kept.append(b"\n".join(others))
        out = b"\n\n".join(kept)
        if out or events.startswith(IDS) or b"\n: ids " in events:
            self.keep(events)
        return out

    def _pack(self) -> None:
        self._packed_tokens = self.num_tokens
        packed = zlib.compress(self.log.take(), 1)
        self._packed.append(packed)
        self._packed_bytes += len(packed)
        if self.held_bytes > self._max_held_bytes:
            self._give_up()

    def _read(self) -> None:
        kept, packed = self.log.take(), self._packed
        if not kept and not packed:
            return
        self._packed, self._packed_bytes = [], 0
        if self._unreadable:
            return
        try:
            for events in (*map(zlib.decompress, packed), kept):
                for event in events_of(events):
                    for choice, ids in event.ids:
                        self._ids[choice].extend(ids)
                    self._delivered.note(event)
        except (ContinuationError, LookupError, TypeError, AttributeError, ValueError, OverflowError):
            self._give_up()

    def _give_up(self) -> None:
        self._unreadable = True
        self._packed, self._packed_bytes = [], 0
        self.log.take()
        self._delivered = _DELIVERED[self._kind]()


def _counted(events: bytes) -> int | None:
    """Return the tokens of all choices by the last ``id:`` line; None where there is none."""
    at = max(0 if events.startswith(b"id: ") else -1, events.rfind(b"\nid: ") + 1 or -1)
    if at < 0:
        return None
    counts = events[at + 4 : events.find(b"\n", at)].split(b".")
    return sum([int(count) for count in counts if count.isdigit()])
