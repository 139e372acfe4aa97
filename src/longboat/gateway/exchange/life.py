"""The vocabulary of a request's life: where it is, what may happen to it, and what may be done about it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from longboat.compiled import mypyc_attr
from longboat.core.states import ResumeLevel
from longboat.gateway.http.responses import Refusal
from longboat.routing.decisions import EndpointView

if TYPE_CHECKING:
    from longboat.core.policy import ResumePolicy
    from longboat.routing.policies.contract import Reason
    from longboat.routing.route_rules import Overflowing

__all__ = (
    "ASK_TURN", "CLIENT_GONE", "COMPLETE", "CONTENT", "FINISH", "GRANTED", "JUDGE", "LEFT", "MOVE", "NOTHING",
    "NO_PAST", "OFFER", "OVERFLOW", "PREEMPTED", "RELAY", "START", "STAY", "STREAM", "TELL", "TICK", "TURN", "Action",
    "Ended", "Engine", "Event", "Failed", "FallBack", "Has", "Head", "Judged", "Leave", "Life", "Lost", "NoRoom",
    "Park", "Past", "Pause", "Phase", "Refuse", "Send", "Sign", "Sleep", "Terms", "View", "begin",
)  # fmt: skip


class Phase(enum.Enum):
    """How far a request is."""

    NEW = enum.auto()  # nothing was done for it yet
    QUEUED = enum.auto()  # it asks for a slot
    GRANTED = enum.auto()  # it has a slot, and no engine
    ASKING = enum.auto()  # an engine was chosen and has not answered
    STREAMING = enum.auto()  # the client gets the answer
    JUDGING = enum.auto()  # its engine was lost; whether it died is being found out
    RESUMING = enum.auto()  # it waits until another engine may continue its answer
    PARKED = enum.auto()  # it waits for an engine
    ENDED = enum.auto()


class Has(enum.Enum):
    """What the client has of the answer when its engine is lost."""

    NOTHING = enum.auto()
    BEGINNING = enum.auto()  # another engine may continue it
    STUMP = enum.auto()  # no other engine can continue it
    ALL = enum.auto()


class Engine(EndpointView, Protocol):
    """An engine as the rules see it."""

    @property
    def resume(self) -> ResumeLevel: ...
    @property
    def drains(self) -> bool: ...  # it works, and the table has it as one that takes nothing new
    def revision_of(self, model: str) -> str:
        """Return the revision of what answers there by this name."""


class Sleep(NamedTuple):
    """A model that has no replica, as its requests see it."""

    paused: bool  # no request wakes it
    ready_in_s: float | None  # seconds until a replica should be ready; None: no start was measured
    has_room: bool  # one request more may wait
    wait_s: float  # longest wait of a request


@mypyc_attr(allow_interpreted_subclasses=True)
class View:
    """What the rules may see of the fleet. A class and no Protocol, so that its calls are compiled."""

    __slots__ = ()

    def endpoints(self, model: str) -> Sequence[Engine] | None:
        """Return those of a model; None where the fleet has no such model."""
        raise NotImplementedError

    def ready_s(self, model: str) -> float:
        """Return when an endpoint of the model was last ready, on the clock of ``step``."""
        raise NotImplementedError

    def sleep_of(self, model: str) -> Sleep | None:
        """Return how a model sleeps; None where it is awake."""
        raise NotImplementedError

    def choose(
        self, model: str, engines: Sequence[Engine], tried: frozenset[str], *, adapter: str, overfull: bool
    ) -> tuple[Engine, Reason] | None:
        """Return one of the engines and why; None where none that was not tried has room.

        adapter: that the request needs; empty: none
        overfull: an engine without room is taken too
        """
        raise NotImplementedError

    def is_poison(self) -> bool:
        """Return whether engines died of this request."""
        raise NotImplementedError

    @property
    def policy(self) -> ResumePolicy:
        """The rules of the policy in force."""
        raise NotImplementedError


@mypyc_attr(acyclic=True)
class Terms:
    """What a request was admitted with. It never changes."""

    __slots__ = (
        "adapters",
        "began_s",
        "deadline_s",
        "needs_slot",
        "overflow",
        "pinned",
        "pools",
        "revision",
        "streams",
    )

    def __init__(
        self,
        pools: tuple[str, ...],
        *,
        deadline_s: float | None = None,
        pinned: str = "",
        needs_slot: bool = True,
        streams: bool = False,
        revision: str | None = None,
        overflow: Overflowing | None = None,
        began_s: float = 0.0,
        adapters: frozenset[str] = frozenset(),
    ) -> None:
        self.adapters = adapters  # those of the models that are adapters
        self.pools = pools  # models: the first choice, its fallbacks, and the one for overflow
        self.overflow = overflow  # where it goes that waits too long
        self.began_s = began_s  # when it was admitted
        self.deadline_s = deadline_s  # after it, the client does not wait for a first byte
        self.pinned = pinned  # key of the only engine that can answer
        self.needs_slot = needs_slot  # it costs an engine work
        self.streams = streams  # its client can be given comments while it waits
        self.revision = revision  # of the answer whose remainder is wanted; None: it begins here

    @property
    def num_pools(self) -> int:
        """The first choice and its fallbacks."""
        return len(self.pools) if self.overflow is None else self.overflow.num_pools

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
    came_back: bool = False  # the model for overflow gave no answer


NO_PAST: Final = Past()

PREEMPTED: Final = "preempted"  # the reason of a loss: another request gets the slot


@mypyc_attr(acyclic=True, free_list_len=1)
class Life:
    """One request's state. It never changes: each step makes another."""

    __slots__ = ("has_content", "has_slot", "past", "phase", "terms")

    def __init__(self, terms: Terms, phase: Phase, past: Past, has_slot: bool, has_content: bool) -> None:
        self.terms = terms
        self.phase = phase
        self.past = past
        self.has_slot = has_slot
        self.has_content = has_content  # the client has the answer's beginning

    def then(self, phase: Phase, past: Past, *, has_slot: bool) -> Life:
        """Return the same request's next state."""
        return Life(self.terms, phase, past, has_slot, self.has_content)

    @property
    def model(self) -> str:
        """The model that is being tried."""
        return self.terms.pools[self.past.at_pool]


def begin(terms: Terms) -> Life:
    """Return the life of a request that was admitted."""
    return Life(terms, Phase.NEW, NO_PAST, False, False)


class Event:
    """What happened."""

    name = ""
    is_answer = False  # an engine answers: no rule asks for the time then


class Sign(Event):
    """An event that needs no words but its name."""

    def __init__(self, name: str, *, is_answer: bool = False) -> None:
        self.name = name
        self.is_answer = is_answer


START: Final = Sign("start")  # the request was admitted, or its next model is to be tried
GRANTED: Final = Sign("granted")  # there is a slot
TICK: Final = Sign("tick")  # time went on, or endpoints changed
TURN: Final = Sign("turn")  # another engine may continue its answer now
CONTENT: Final = Sign("content", is_answer=True)  # the client got the answer's beginning, or news after a fault
COMPLETE: Final = Sign("complete", is_answer=True)  # the engine gave all of the answer
CLIENT_GONE: Final = Sign("client gone")
MOVE: Final = Sign("move")  # the model for overflow has room
STAY: Final = Sign("stay")  # the model for overflow has no room


class Head(Event):
    """An engine began to answer."""

    def __init__(self, status: int, *, fits: bool, turned_away_by: str = "") -> None:
        self.is_answer = True
        self.turned_away_by = turned_away_by  # key of an external endpoint whose error another model need not have
        self.status = status
        self.fits = fits  # its kind of answer can follow what the client has


@dataclass(eq=False)
class NoRoom(Event):
    """The model gives no slot: it is full, or the wait for one was too long."""

    refusal: Refusal


@dataclass(eq=False)
class Lost(Event):
    """The engine does not answer, or not any further."""

    reason: str  # one word
    detail: str  # for people
    key: str  # of the engine
    has: Has = Has.NOTHING
    revision: str | None = None  # of the engine that began the answer, where one did
    stale: bool = False  # a kept connection had ended before: that says nothing about the engine
    suspect: bool = False  # the engine was lost in this request's first steps, and in no other's


@dataclass(eq=False)
class Judged(Event):
    """It is known whether the engine died that this request was suspected of."""

    key: str
    dead: bool
    blamed: bool = False  # it died, and was not asked to


@dataclass(eq=False)
class Failed(Event):
    """Nothing can help."""

    refusal: Refusal
    outcome: str = ""  # empty: the attempts say


@mypyc_attr(acyclic=True)
class Action:
    """What to do next."""

    __slots__ = ("name", "reason")

    def __init__(self, name: str, reason: Reason = "") -> None:
        self.name = name
        self.reason = reason  # empty where it goes without saying


class Ended(Action):
    """The request is over."""

    __slots__ = ()


NOTHING: Final = Action("nothing")
OFFER: Final = Action("offer")  # ask the model's pool for a slot
RELAY: Final = Action("relay")  # give the client what the engine answers
TELL: Final = Action("tell")  # read the engine's error, and tell it in the stream that the client has
STREAM: Final = Action("stream")  # nothing is left to do but to pass the answer on
JUDGE: Final = Action("judge", "its engine was lost in its first steps")  # find out whether that engine died
OVERFLOW: Final = Action("overflow")  # find out whether the model for overflow has room
ASK_TURN: Final = Action("resume", "another engine continues the answer")  # ask the pool for a turn to do so
FINISH: Final = Ended("finish")  # the answer is complete
LEFT: Final = Ended("client_left")


@mypyc_attr(acyclic=True, free_list_len=1)
class Send(Action):
    """Ask this engine."""

    __slots__ = ("engine",)

    def __init__(self, engine: Engine, reason: Reason) -> None:
        super().__init__("send", reason)
        self.engine = engine


class Leave(Action):
    """Leave the engine that answers."""

    __slots__ = ("cause",)

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__("leave", reason)
        self.cause = cause  # one word


class FallBack(Action):
    """Try the next model."""

    __slots__ = ("at_pool",)

    def __init__(self, at_pool: int, reason: str) -> None:
        super().__init__("fall_back", reason)
        self.at_pool = at_pool


class Park(Action):
    """Wait for an engine."""

    __slots__ = ()

    def __init__(self, reason: str) -> None:
        super().__init__("park", reason)


class Pause(Action):
    """Wait for a slot again: the client has the beginning of the answer, and the slot is another request's."""

    __slots__ = ()

    def __init__(self, reason: str) -> None:
        super().__init__("pause", reason)


class Refuse(Ended):
    """Answer with an error."""

    __slots__ = ("outcome", "refusal")

    def __init__(self, refusal: Refusal, outcome: str = "") -> None:
        super().__init__("refuse", refusal.message)
        self.refusal = refusal
        self.outcome = outcome  # empty: the attempts say
