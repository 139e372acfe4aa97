"""Makes the remainder of a broken stream out of a new, complete one: the client sees one stream, each byte once."""

from __future__ import annotations

from array import array

from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.resume.continuation.choices import DeliveredChoices
from longboat.gateway.resume.continuation.choices_remainder import ChoicesRemainder
from longboat.gateway.resume.continuation.messages import DeliveredMessage, MessageRemainder
from longboat.gateway.resume.continuation.parts import (
    TORN,
    ContinuationError,
    Delivered,
    Event,
    Remainder,
    events_of,
    ids_line,
)
from longboat.gateway.resume.continuation.responses import DeliveredResponse, ResponseRemainder
from longboat.gateway.resume.journal import Journal

__all__ = ("Continuation", "ContinuationError")


class Continuation:
    """The continuation of an answer by another engine, from what the journal knows.

    Feed it what the new engine sends, instead of the journal, up to the end. What it returns is in the journal too, so
    that the stream may be resumed again.
    """

    __slots__ = ("_all_of", "_counts", "_ids", "_journal", "_rest", "caught_up")

    def __init__(self, kind: AnswerKind, journal: Journal) -> None:
        """kind: the journal's."""
        delivered = journal.delivered()
        self._journal = journal
        self._ids = journal.ids
        self._rest = _rest_of(delivered)
        self._all_of = {choice for choice in range(len(self._ids)) if delivered.has_all(choice)}
        self._counts = [0] * len(self._ids)
        self.caught_up = False

    def feed(self, events: bytes) -> bytes:
        """Return what the client gets of whole events of the new stream; b"" while it has all of it.

        :raises ContinuationError: they contradict what the client has, or tell of an error; nothing of them may be sent
        """
        self._journal.learn_steps(events)
        return self._news(events) if self.caught_up else self._repeated(events)

    def _news(self, events: bytes) -> bytes:
        """Return events of which the client has nothing, under the first stream's name."""
        block = self._rest.block(events)
        if block is not None:
            return self._journal.feed(block)
        told = b""
        for event in events_of(events):
            told += b"".join(ids_line(choice, ids) for choice, ids in event.ids if choice not in self._all_of)
            told += self._out(event)
        return self._journal.feed(told) if told else b""

    def _repeated(self, events: bytes) -> bytes:
        """Return what the client lacks of events that it has in part."""
        out = []
        for event in events_of(events):
            self._learn(event)
            out.append(self._out(event))
        self.caught_up = self._rest.caught_up and self._ids_caught_up()
        rest = b"".join(out)
        if rest:
            self._journal.keep(rest)
        return rest

    def _out(self, event: Event) -> bytes:
        if not event.data:
            return b""
        try:
            return self._rest.event(event)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ContinuationError(f"an event is of no known shape: {error!r}") from error

    def _learn(self, event: Event) -> None:
        try:
            for choice, ids in event.ids:
                at = self._counts[choice]
                self._counts[choice] = at + len(ids)
                if choice not in self._all_of:
                    _learn_at(self._ids[choice], at, ids)
        except (IndexError, OverflowError) as error:
            raise ContinuationError(TORN) from error

    def _ids_caught_up(self) -> bool:
        return all(
            count >= len(self._ids[choice]) for choice, count in enumerate(self._counts) if choice not in self._all_of
        )


def _learn_at(known: array[int], at: int, ids: list[int]) -> None:
    """Store ids; where they differ from known ones they are right, as the client's text was compared by content."""
    if known[at : at + len(ids)].tolist() != ids[: len(known) - at]:
        del known[at:]
    known.extend(ids[len(known) - at :])


def _rest_of(delivered: Delivered) -> Remainder:
    if isinstance(delivered, DeliveredChoices):
        return ChoicesRemainder(delivered)
    if isinstance(delivered, DeliveredMessage):
        return MessageRemainder(delivered)
    assert isinstance(delivered, DeliveredResponse)
    return ResponseRemainder(delivered)
