"""The vocabulary of a request's life: where it is, what may happen to it, and what may be done about it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from longboat.core.states import ResumeLevel
from longboat.gateway.http.responses import Refusal
from longboat.routing.decisions import EndpointView

if TYPE_CHECKING:
    from longboat.core.policy import ResumePolicy

__all__ = (
    "ASK_TURN", "CLIENT_GONE", "COMPLETE", "CONTENT", "ENTER", "FINISH", "GRANTED", "LEFT", "NOTHING", "NO_PAST",
    "OFFER", "RELAY", "START", "STREAM", "TICK", "TURN", "WOKEN", "Action", "Ended", "Engine", "Event", "Failed",
    "FallBack", "Has", "Head", "Judge", "Judged", "Leave", "Life", "Lost", "NoRoom", "Park", "Past", "Phase", "Refuse",
    "Send", "Terms", "View", "begin",
)  # fmt: skip


class Phase(enum.Enum):
    """Where a request is."""

    NEW = enum.auto()  # nothing was done for it yet
    QUEUED = enum.auto()  # it asks for a slot
    GRANTED = enum.auto()  # it has a slot, and no engine
    ASKING = enum.auto()  # an engine was chosen and has not answered
    STREAMING = enum.auto()  # the client gets the answer
    JUDGING = enum.auto()  # its engine was lost: it is being looked at whether it died
    RESUMING = enum.auto()  # it waits for its turn to be gone on with by another engine
    PARKED = enum.auto()  # it waits for an engine
    ENDED = enum.auto()


class Has(enum.Enum):
    """What the client has of the answer when its engine is lost."""

    NOTHING = enum.auto()
    BEGINNING = enum.auto()  # and another engine may go on with it
    STUMP = enum.auto()  # and no other engine can go on with it
    ALL = enum.auto()


class Engine(EndpointView, Protocol):
    """An engine as the rules see it."""

    @property
    def resume(self) -> ResumeLevel: ...
    @property
    def revision(self) -> str: ...


class View(Protocol):
    """What the rules may see of the fleet."""

    def endpoints(self, model: str) -> Sequence[Engine] | None:
        """Those of a model; None where the fleet has no such model."""

    def ready_s(self, model: str) -> float:
        """When an endpoint of the model was ready last, on the clock of ``step``."""

    def next_turn(self) -> int:
        """A count that grows: equals take turns."""

    def is_poison(self) -> bool:
        """Whether engines died of this request."""

    @property
    def policy(self) -> ResumePolicy: ...


class Terms:
    """What a request was admitted with. It never changes."""

    __slots__ = ("deadline_s", "needs_slot", "pinned", "pools", "revision", "streams")

    def __init__(
        self,
        pools: tuple[str, ...],
        *,
        deadline_s: float | None = None,
        pinned: str = "",
        needs_slot: bool = True,
        streams: bool = False,
        revision: str | None = None,
    ) -> None:
        self.pools = pools  # models: the first choice and its fallbacks
        self.deadline_s = deadline_s  # after it, the client does not wait for a first byte
        self.pinned = pinned  # key of the only engine that can answer
        self.needs_slot = needs_slot  # it costs an engine work
        self.streams = streams  # its client can be given comments while it waits
        self.revision = revision  # of the answer whose rest is wanted; None: it begins here

    @property
    def may_move(self) -> bool:
        """Whether any engine may have it, now or later."""
        return self.needs_slot and not self.pinned


class Past(NamedTuple):
    """What went wrong so far. Most requests share one that is empty."""

    at_pool: int = 0  # the model that is being tried
    tried: frozenset[str] = frozenset()  # keys of engines that gave no answer
    failure: str = ""  # why the last one gave none
    reached: bool = False  # one of them had taken the request
    num_errors: int = 0  # answers of 500 and above
    refusal: Refusal | None = None  # why the model that is being tried has no answer
    wait_until_s: float = 0.0  # when a wait for an engine ends; 0.0: none has begun
    revision: str | None = None  # of the engine that began the answer


NO_PAST: Final = Past()


class Life:
    """One request's state. It is never changed: each step makes another."""

    __slots__ = ("has_content", "has_slot", "past", "phase", "terms")

    def __init__(self, terms: Terms, phase: Phase, past: Past, has_slot: bool, has_content: bool) -> None:
        self.terms = terms
        self.phase = phase
        self.past = past
        self.has_slot = has_slot
        self.has_content = has_content  # the client has the answer's beginning

    @property
    def model(self) -> str:
        """The model that is being tried."""
        return self.terms.pools[self.past.at_pool]


def begin(terms: Terms) -> Life:
    """The life of a request that was admitted."""
    return Life(terms, Phase.NEW, NO_PAST, False, False)


class Event:
    """What happened."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


START: Final = Event("start")
ENTER: Final = Event("enter")  # the next model is to be tried
GRANTED: Final = Event("granted")  # there is a slot
WOKEN: Final = Event("woken")  # endpoints changed
TICK: Final = Event("tick")  # time went on
TURN: Final = Event("turn")  # its answer may be gone on with now
CONTENT: Final = Event("content")  # the client got the answer's beginning, or news after a fault
COMPLETE: Final = Event("complete")  # the engine gave all of the answer
CLIENT_GONE: Final = Event("client gone")


class NoRoom(Event):
    """The model gives no slot: it is full, or the wait for one was too long."""

    __slots__ = ("refusal",)

    def __init__(self, refusal: Refusal) -> None:
        super().__init__("no room")
        self.refusal = refusal


class Head(Event):
    """An engine began to answer. fits: its kind of answer can follow what the client has."""

    __slots__ = ("fits", "status")

    def __init__(self, status: int, *, fits: bool) -> None:
        super().__init__("head")
        self.status = status
        self.fits = fits


class Lost(Event):
    """The engine does not answer, or not any further. See the attributes."""

    __slots__ = ("detail", "has", "key", "reason", "revision", "stale", "suspect")

    def __init__(
        self,
        reason: str,
        detail: str,
        key: str,
        *,
        has: Has = Has.NOTHING,
        revision: str | None = None,
        stale: bool = False,
        suspect: bool = False,
    ) -> None:
        super().__init__("lost")
        self.reason = reason  # one word
        self.detail = detail  # for people
        self.key = key  # of the engine
        self.has = has
        self.revision = revision  # of the engine that began the answer, where one did
        self.stale = stale  # a kept connection had ended before: that says nothing about the engine
        self.suspect = suspect  # the engine was lost in this request's first steps, and in no other's


class Judged(Event):
    """It is known whether the engine died that this request was suspected of."""

    __slots__ = ("dead", "key")

    def __init__(self, key: str, *, dead: bool) -> None:
        super().__init__("judged")
        self.key = key
        self.dead = dead


class Failed(Event):
    """Nothing can help: the client gets this refusal. outcome: empty where the attempts tell it"""

    __slots__ = ("outcome", "refusal")

    def __init__(self, refusal: Refusal, outcome: str = "") -> None:
        super().__init__("failed")
        self.refusal = refusal
        self.outcome = outcome


class Action:
    """What is to be done. reason: why, in words; empty where it goes without saying"""

    __slots__ = ("name", "reason")

    def __init__(self, name: str, reason: str = "") -> None:
        self.name = name
        self.reason = reason


NOTHING: Final = Action("nothing")
OFFER: Final = Action("offer")  # ask the model's pool for a slot
ASK_TURN: Final = Action("resume", "another engine goes on with the answer")  # ask the pool for a turn to do so
RELAY: Final = Action("relay")  # give the client what the engine answers
STREAM: Final = Action("stream")  # nothing but passing it on is left to do


class Ended(Action):
    """The request is over."""

    __slots__ = ()


FINISH: Final = Ended("finish")  # the answer is complete
LEFT: Final = Ended("client_left")


class Send(Action):
    """Ask this engine."""

    __slots__ = ("engine",)

    def __init__(self, engine: Engine, reason: str) -> None:
        super().__init__("send", reason)
        self.engine = engine


class Judge(Action):
    """Look whether the engine that was lost is dead."""

    __slots__ = ()


class Leave(Action):
    """Leave the engine that answers. cause: one word"""

    __slots__ = ("cause",)

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__("leave", reason)
        self.cause = cause


class FallBack(Action):
    """Try the next model."""

    __slots__ = ("at_pool",)

    def __init__(self, at_pool: int, reason: str) -> None:
        super().__init__("fall_back", reason)
        self.at_pool = at_pool


class Park(Action):
    """Wait for an engine."""

    __slots__ = ()


class Refuse(Ended):
    """Answer with an error. outcome: empty where the attempts tell it"""

    __slots__ = ("outcome", "refusal")

    def __init__(self, refusal: Refusal, outcome: str = "") -> None:
        super().__init__("refuse", refusal.message)
        self.refusal = refusal
        self.outcome = outcome
