"""What happens next to a request, and why. Pure: no clock, no socket, no token of an answer.

``step`` takes a request's life, an event, what can be seen of the fleet and the time; it returns the life from then on
and one action. It first learns from the event, then asks the rules in their order: the first that has an action wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from longboat.core.states import ResumeLevel
from longboat.gateway.exchange.life import (
    ASK_TURN,
    CLIENT_GONE,
    COMPLETE,
    CONTENT,
    FINISH,
    GRANTED,
    LEFT,
    NO_PAST,
    NOTHING,
    OFFER,
    RELAY,
    STREAM,
    TICK,
    TURN,
    WOKEN,
    Action,
    Ended,
    Engine,
    Event,
    Failed,
    FallBack,
    Has,
    Head,
    Judge,
    Judged,
    Leave,
    Life,
    Lost,
    NoRoom,
    Park,
    Past,
    Phase,
    Refuse,
    Send,
    View,
)  # fmt: skip
from longboat.gateway.http import error_responses
from longboat.gateway.http.responses import Refusal
from longboat.routing.pick import pick

if TYPE_CHECKING:
    from longboat.core.policy import ResumePolicy

__all__ = ("step",)

MAX_ERROR_ANSWERS = 3  # engines' answers of 500 and above; the last of them is the client's
_SAME_AGAIN: Final = frozenset(("crossed", "again"))  # the same engine can answer if it is asked otherwise
_NOT_THERE: Final = frozenset(("model_not_ready", "engine_unreachable", "engine_lost"))  # waiting may help
_NO_RESUME: Final = ResumeLevel.NONE
_NONE: Final[frozenset[str]] = frozenset()

# A member of an enum is looked up each time that it is named; these are not.
_NEW: Final = Phase.NEW
_QUEUED: Final = Phase.QUEUED
_GRANTED: Final = Phase.GRANTED
_ASKING: Final = Phase.ASKING
_STREAMING: Final = Phase.STREAMING
_JUDGING: Final = Phase.JUDGING
_RESUMING: Final = Phase.RESUMING
_PARKED: Final = Phase.PARKED
_ENDED: Final = Phase.ENDED


def step(life: Life, event: Event, view: View, now_s: float) -> tuple[Life, Action]:
    """Return what the event makes of the request, and what is to be done. Nothing happens to one that has ended."""
    if life.phase is _ENDED:
        return life, NOTHING
    life = _learned(life, event, view)
    action = (
        client_gone(event)
        or failed(event)
        or complete(event)
        or answered(life, event, view)
        or deadline(life, event, now_s)
        or waited_in_vain(life, now_s)
        or occupied(life, event, view)
        or unresumable(life, event, view)
        or suspected(event)
        or poisoned(life, view)
        or resume(life, event, view)
        or retry(life, view)
        or fall_back(life, view)
        or park(life, view, now_s)
        or refuse(life, view)
    )
    return _after(life, action, view, now_s), action


# what a request knows after an event


def _learned(life: Life, event: Event, view: View) -> Life:
    if event is GRANTED:
        return Life(life.terms, _GRANTED, life.past, True, life.has_content)
    if event is CONTENT:
        past = life.past
        if past is not NO_PAST:
            past = past._replace(tried=_NONE, wait_until_s=0.0, refusal=None)
        return Life(life.terms, _STREAMING, past, life.has_slot, True)
    if isinstance(event, Lost):
        return _with_loss(life, event, view)
    past = life.past
    if isinstance(event, NoRoom):
        past = past._replace(refusal=event.refusal)
        return Life(life.terms, _NEW, past, False, life.has_content)
    if isinstance(event, Judged):
        tried = past.tried | {event.key} if event.dead else past.tried
        return Life(life.terms, _free(life), past._replace(tried=tried), life.has_slot, life.has_content)
    if isinstance(event, Head) and event.status >= 500:
        past = past._replace(num_errors=past.num_errors + 1)
        return Life(life.terms, life.phase, past, life.has_slot, life.has_content)
    return life


def _with_loss(life: Life, loss: Lost, view: View) -> Life:
    past = life.past
    tried, reached = past.tried, past.reached
    if not loss.stale:
        reached = reached or loss.reason != "unreachable"
        if loss.reason not in _SAME_AGAIN:
            tried = tried | {loss.key}
        if loss.reason == "error" and _all_tried(view.endpoints(life.model), tried):
            tried = _NONE  # once more, before that error is the answer
    revision = loss.revision if loss.revision is not None else past.revision
    past = past._replace(tried=tried, reached=reached, failure=loss.detail, revision=revision)
    return Life(life.terms, _free(life), past, life.has_slot, life.has_content)


def _free(life: Life) -> Phase:
    return _GRANTED if life.has_slot else _NEW


def _all_tried(endpoints: Sequence[Engine] | None, tried: frozenset[str]) -> bool:
    return all(e.key in tried for e in endpoints or () if e.ready)


def _after(life: Life, action: Action, view: View, now_s: float) -> Life:
    """The life once the action is carried out."""
    if action is NOTHING or action is RELAY or action is STREAM or isinstance(action, Leave):
        return life
    phase, past, has_slot = _ENDED, life.past, life.has_slot
    if isinstance(action, Send):
        phase = _ASKING
    elif action is OFFER:
        phase = _QUEUED
    elif isinstance(action, Ended):
        has_slot = False
    elif action is ASK_TURN:
        phase = _RESUMING
        past = past._replace(wait_until_s=_wait_until_s(life, view, now_s))
    elif isinstance(action, Judge):
        phase = _JUDGING
    elif isinstance(action, FallBack):
        phase, has_slot = _NEW, False
        past = Past(at_pool=action.at_pool, num_errors=past.num_errors, wait_until_s=past.wait_until_s)
    else:
        phase, has_slot = _PARKED, has_slot and life.has_content
        home = past.at_pool if life.has_content else 0
        past = past._replace(wait_until_s=_wait_until_s(life, view, now_s), tried=_NONE, at_pool=home, refusal=None)
    return Life(life.terms, phase, past, has_slot, life.has_content)


# the rules, in their order


def client_gone(event: Event) -> Action | None:
    """The client left: so does the engine's work, at once."""
    return LEFT if event is CLIENT_GONE else None


def failed(event: Event) -> Action | None:
    """No engine can help."""
    return Refuse(event.refusal, event.outcome) if isinstance(event, Failed) else None


def complete(event: Event) -> Action | None:
    """The client has all of the answer, whatever became of its engine."""
    if event is COMPLETE or (isinstance(event, Lost) and event.has is Has.ALL):
        return FINISH
    return None


def answered(life: Life, event: Event, view: View) -> Action | None:
    """An engine answers: pass it on, unless it is an error for which another may be asked."""
    if event is CONTENT:
        return STREAM
    if not isinstance(event, Head):
        return None
    if life.has_content:
        return RELAY if event.fits else Leave("refused", f"it answered {event.status} instead of going on")
    is_error = event.status >= 500 and life.past.num_errors < MAX_ERROR_ANSWERS
    if is_error and view.policy.enabled and life.terms.may_move:
        return Leave("error", f"it answered {event.status}")
    return RELAY if event.fits else Leave("error", f"it answered {event.status} after the head of a stream was sent")


def deadline(life: Life, event: Event, now_s: float) -> Action | None:
    """The request's own deadline passed before the first byte of its answer."""
    deadline_s = life.terms.deadline_s
    if deadline_s is None or life.has_content or now_s < deadline_s:
        return None
    return Refuse(error_responses.deadline_passed(), "expired")


def waited_in_vain(life: Life, now_s: float) -> Action | None:
    """No engine came in time."""
    past, phase = life.past, life.phase
    if past is NO_PAST or not past.wait_until_s or now_s <= past.wait_until_s:
        return None
    if phase is not _PARKED and phase is not _RESUMING and phase is not _JUDGING:
        return None
    if life.has_content:
        return Refuse(error_responses.answer_lost(past.failure))
    return Refuse(error_responses.none_came(life.model, past.failure, rest=life.terms.revision is not None))


def occupied(life: Life, event: Event, view: View) -> Action | None:
    """The request waits for something else than this event."""
    phase = life.phase
    if event is TURN:
        return None if phase is _RESUMING else NOTHING
    if event is not TICK and event is not WOKEN:
        return None
    return None if phase is _PARKED and _is_worth_trying(life, view) else NOTHING


def unresumable(life: Life, event: Event, view: View) -> Action | None:
    """No engine can go on with what the client has."""
    if isinstance(event, Lost):
        if life.has_content and event.has is Has.STUMP:
            return Refuse(error_responses.answer_lost(event.detail))
        if event.reason == "gone" and not life.has_content:
            return Refuse(
                error_responses.no_rest("no replica makes its events so that they meet the point that was named")
            )
    if life.terms.revision is not None and _all_differ(view.endpoints(life.model), life.terms.revision):
        return Refuse(error_responses.no_rest(f"every replica of {life.model!r} is of another revision now"))
    return None


def suspected(event: Event) -> Action | None:
    """An engine was lost in this request's first steps: see whether it died before another one gets it."""
    if isinstance(event, Lost) and event.suspect and not event.stale:
        return Judge("judge", "its engine was lost in its first steps")
    return None


def poisoned(life: Life, view: View) -> Action | None:
    """Engines died of this request."""
    if life.terms.needs_slot and not life.has_slot:  # nothing is sent before it has one
        return None
    return Refuse(error_responses.poison()) if view.is_poison() else None


def resume(life: Life, event: Event, view: View) -> Action | None:
    """Let another engine of the same revision go on with what the client has, when it is its turn."""
    if not life.has_content:
        return None
    endpoints = view.endpoints(life.model)
    if endpoints is None:
        return Refuse(error_responses.answer_lost("its model has left the fleet"))
    if event is not TURN:
        return ASK_TURN
    engine = pick(_able(life, endpoints), turn=view.next_turn(), tried=life.past.tried, overfull=True)
    return Send(engine, "it is of the same revision and goes on") if engine is not None else None


def retry(life: Life, view: View) -> Action | None:
    """Ask an engine that was not asked yet; before the first one, ask for a slot."""
    past, terms = life.past, life.terms
    if life.has_content or (past is not NO_PAST and past.refusal is not None):
        return None
    lacks_slot = terms.needs_slot and not life.has_slot
    if lacks_slot and not terms.pinned and terms.revision is None:
        return OFFER  # any engine can answer; the pool knows whether there is one
    able = _able(life, view.endpoints(life.model) or ())
    if lacks_slot:
        return OFFER if any([e.ready for e in able]) else None
    turn = view.next_turn()
    engine = pick(able, turn=turn, tried=past.tried) or pick(able, turn=turn, tried=past.tried, overfull=True)
    if engine is None:
        return None
    return Send(engine, "" if past is NO_PAST else past.failure and "another gave no answer")


def fall_back(life: Life, view: View) -> Action | None:
    """Try the next model."""
    at_pool = life.past.at_pool + 1
    if life.has_content or at_pool >= len(life.terms.pools):
        return None
    return FallBack(at_pool, _refusal(life, view).message)


def park(life: Life, view: View, now_s: float) -> Action | None:
    """Wait for an engine, where the model had one not long ago."""
    policy, terms, past = view.policy, life.terms, life.past
    model = life.model if life.has_content else terms.pools[0]
    if not policy.enabled or not terms.may_move or view.endpoints(model) is None:
        return None
    refusal = _refusal(life, view)
    if not life.has_content:
        limit_s = policy.wait_s if terms.deadline_s is not None else _longest_wait_s(life, policy)
        if refusal.code not in _NOT_THERE or now_s - view.ready_s(model) >= limit_s:
            return None
    if policy.wait_s <= 0 or 0 < past.wait_until_s <= now_s:
        return None
    return Park("park", refusal.message)


def refuse(life: Life, view: View) -> Action:
    """Nothing else is left."""
    return Refuse(_refusal(life, view))


# what the rules ask


def _able(life: Life, endpoints: Sequence[Engine]) -> Sequence[Engine]:
    """Those that can answer this request, or go on with its answer."""
    pinned = life.terms.pinned
    if pinned:
        return [e for e in endpoints if e.key == pinned]
    revision = life.past.revision if life.has_content else life.terms.revision
    if revision is None and not life.has_content:
        return endpoints
    return [e for e in endpoints if e.resume is not _NO_RESUME and e.revision == revision]


def _all_differ(endpoints: Sequence[Engine] | None, revision: str) -> bool:
    """Whether there are engines, and each is known to be of another revision."""
    return bool(endpoints) and all([e.revision and e.revision != revision for e in endpoints or ()])


def _is_worth_trying(life: Life, view: View) -> bool:
    models = (life.model,) if life.has_content else life.terms.pools
    return any([e.ready and not e.suspect for model in models for e in _able(life, view.endpoints(model) or ())])


def _longest_wait_s(life: Life, policy: ResumePolicy) -> float:
    """How long it waits for an engine; shorter where its client cannot be given a sign of life meanwhile."""
    return policy.wait_s if life.terms.streams else min(policy.wait_s, policy.whole_wait_s)


def _wait_until_s(life: Life, view: View, now_s: float) -> float:
    if life.past.wait_until_s:
        return life.past.wait_until_s
    deadline_s = life.terms.deadline_s
    if deadline_s is not None and deadline_s > now_s:
        return deadline_s
    return now_s + _longest_wait_s(life, view.policy)


def _refusal(life: Life, view: View) -> Refusal:
    """Why the model that is being tried has no answer."""
    past, model = life.past, life.model
    if life.has_content:
        return error_responses.answer_lost(past.failure)
    if past.refusal is not None:
        return past.refusal
    if life.terms.pinned and not _able(life, view.endpoints(model) or ()):
        return error_responses.response_gone(model)
    if past.failure:
        return error_responses.engines_unreachable(model, past.failure, reached=past.reached)
    return error_responses.no_ready_endpoint(model)
