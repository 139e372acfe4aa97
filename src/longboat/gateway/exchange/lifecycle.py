"""What happens next to a request, and why. Pure: no clock, no socket, no token of an answer.

``step`` takes a request's life, an event, what can be seen of the fleet and the time; it returns the life from then on
and one action. It first learns from the event, then asks the rules in their order: the first that has an action wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from longboat.core.states import ResumeLevel
from longboat.gateway.exchange import life
from longboat.gateway.exchange.life import Action, Engine, Event, Life, Phase, View
from longboat.gateway.http import error_responses
from longboat.gateway.http.responses import Refusal

if TYPE_CHECKING:
    from longboat.core.policy import ResumePolicy
    from longboat.routing.policies.contract import Reason

__all__ = ("step",)

MAX_ERROR_ANSWERS = 3  # engines' answers of 500 and above; the last of them is the client's
_SAME_AGAIN: Final = frozenset(
    ("crossed", "again", life.PREEMPTED)
)  # the same engine can answer if it is asked otherwise
_TOO_MANY: Final = 429
_NOT_THERE: Final = frozenset(("model_not_ready", "engine_unreachable", "engine_lost"))  # waiting may help
_NONE: Final[frozenset[str]] = frozenset()

# A member of an enum is looked up each time that it is named; these, which every request passes, are not.
_QUEUED: Final = Phase.QUEUED
_GRANTED: Final = Phase.GRANTED
_ASKING: Final = Phase.ASKING
_STREAMING: Final = Phase.STREAMING
_ENDED: Final = Phase.ENDED
_NO_RESUME: Final = ResumeLevel.NONE


def step(request: Life, event: Event, view: View, now_s: float) -> tuple[Life, Action]:
    """Return what the event makes of the request, and what to do. Nothing happens to a request that has ended."""
    if request.phase is _ENDED:
        return request, life.NOTHING
    request = _learned(request, event, view)
    action = (
        over(event)
        or answered(request, event, view)
        or deadline(request, now_s)
        or overflow(request, event, now_s)
        or waited_in_vain(request, now_s)
        or paused(request, event, view)
        or occupied(request, event, view)
        or unresumable(request, event, view)
        or suspected(event)
        or poisoned(request, view)
        or resume(request, event, view)
        or retry(request, view)
        or fall_back(request, view)
        or wake(request, view, now_s)
        or park(request, view, now_s)
        or life.Refuse(_refusal(request, view))
    )
    return _after(request, action, view, now_s), action


# what a request knows after an event


def _learned(request: Life, event: Event, view: View) -> Life:
    past, phase = request.past, request.phase
    if event is life.GRANTED:
        return request.then(_GRANTED, past, has_slot=True)
    if event is life.CONTENT:
        if past is not life.NO_PAST:
            past = past._replace(tried=_NONE, wait_until_s=0.0, refusal=None)
        return Life(request.terms, _STREAMING, past, request.has_slot, True)
    if isinstance(event, life.NoRoom):
        return request.then(Phase.NEW, past._replace(refusal=event.refusal), has_slot=False)
    if isinstance(event, life.Lost):
        phase, past = _free(request), _with_loss(request, event, view)
    elif isinstance(event, life.Judged):
        phase = _free(request)
        if event.dead:
            past = past._replace(tried=past.tried | {event.key})
    elif isinstance(event, life.Head) and event.status >= 500:
        past = past._replace(num_errors=past.num_errors + 1)
    else:
        return request
    return request.then(phase, past, has_slot=request.has_slot)


def _with_loss(request: Life, loss: life.Lost, view: View) -> life.Past:
    past = request.past
    tried, reached = past.tried, past.reached
    if not loss.stale:
        reached = reached or loss.reason != "unreachable"
        if loss.reason not in _SAME_AGAIN:
            tried = tried | {loss.key}
        if loss.reason == "error" and all([e.key in tried for e in view.endpoints(request.model) or () if e.ready]):
            tried = _NONE  # once more, before that error is the answer
    revision = loss.revision if loss.revision is not None else past.revision
    return past._replace(tried=tried, reached=reached, failure=loss.detail, revision=revision)


def _free(request: Life) -> Phase:
    return _GRANTED if request.has_slot else Phase.NEW


def _after(request: Life, action: Action, view: View, now_s: float) -> Life:
    """Return the life once the action is carried out."""
    if action is life.NOTHING or action is life.RELAY or action is life.STREAM or isinstance(action, life.Leave):
        return request
    if action is life.OVERFLOW or action is life.TELL:
        return request
    phase, past, has_slot = _ENDED, request.past, request.has_slot
    if isinstance(action, life.Send):
        phase = _ASKING
    elif action is life.OFFER:
        phase = _QUEUED
    elif isinstance(action, life.Pause):
        phase, has_slot = _QUEUED, False
        past = past._replace(wait_until_s=0.0)
    elif isinstance(action, life.Ended):
        has_slot = False
    elif action is life.ASK_TURN:
        phase = Phase.RESUMING
        past = past._replace(wait_until_s=_wait_until_s(request, view, now_s))
    elif action is life.JUDGE:
        phase = Phase.JUDGING
    elif isinstance(action, life.FallBack):
        phase, has_slot = Phase.NEW, False
        came_back = past.came_back or (action.at_pool < past.at_pool)
        past = life.Past(
            at_pool=action.at_pool,
            num_errors=past.num_errors,
            wait_until_s=past.wait_until_s,
            came_back=came_back,
        )
    else:
        phase, has_slot = Phase.PARKED, has_slot and request.has_content
        home = past.at_pool if request.has_content else 0
        past = past._replace(wait_until_s=_wait_until_s(request, view, now_s), tried=_NONE, at_pool=home, refusal=None)
    return request.then(phase, past, has_slot=has_slot)


# the rules, in their order


def over(event: Event) -> Action | None:
    """End where the client left, no engine can help, or the client has all of the answer, whatever its engine does."""
    if event is life.CLIENT_GONE:
        return life.LEFT
    if isinstance(event, life.Failed):
        return life.Refuse(event.refusal, event.outcome)
    if event is life.COMPLETE or (isinstance(event, life.Lost) and event.has is life.Has.ALL):
        return life.FINISH
    return None


def answered(request: Life, event: Event, view: View) -> Action | None:
    """Pass an engine's answer on, unless it is an error for which another engine may be asked."""
    if event is life.CONTENT:
        return life.STREAM
    if not isinstance(event, life.Head):
        return None
    if event.turned_away_by and not request.has_content:
        if request.terms.may_move and _has_other(request, event.turned_away_by, view):
            return life.Leave("declined", f"it answered {event.status}")
        if event.fits:
            return life.RELAY
    if request.has_content:
        return life.RELAY if event.fits else life.Leave("refused", f"it answered {event.status} instead of going on")
    is_error = event.status >= 500 and request.past.num_errors < MAX_ERROR_ANSWERS
    if is_error and view.policy.enabled and request.terms.may_move:
        return life.Leave("error", f"it answered {event.status}")
    return life.RELAY if event.fits else life.TELL  # the client has the head of a stream already


def deadline(request: Life, now_s: float) -> Action | None:
    """Refuse where the request's own deadline passed before the first byte of its answer."""
    deadline_s = request.terms.deadline_s
    if deadline_s is None or request.has_content or now_s < deadline_s:
        return None
    return life.Refuse(error_responses.deadline_passed(), "expired")


def overflow(request: Life, event: Event, now_s: float) -> Action | None:
    """Let a request leave a model for which it waits too long, once another one has room for it."""
    terms, past = request.terms, request.past
    to = terms.overflow
    if to is None or request.has_content or past.came_back or past.at_pool == to.at_pool:
        return None
    if event is life.MOVE:
        return life.FallBack(to.at_pool, f"it would wait longer than {to.after_s:g} s")
    if isinstance(event, life.NoRoom):
        return life.OVERFLOW if event.refusal.status == _TOO_MANY else None
    waits = event is life.TICK and request.phase in (_QUEUED, Phase.PARKED)
    return life.OVERFLOW if waits and now_s - terms.began_s >= to.after_s else None


def waited_in_vain(request: Life, now_s: float) -> Action | None:
    """Refuse where no engine came in time."""
    past, phase = request.past, request.phase
    if past is life.NO_PAST or not past.wait_until_s or now_s <= past.wait_until_s:
        return None
    if phase not in (Phase.PARKED, Phase.RESUMING, Phase.JUDGING):
        return None
    if request.has_content:
        return life.Refuse(error_responses.answer_lost(past.failure))
    return life.Refuse(error_responses.none_came(request.model, past.failure, rest=request.terms.revision is not None))


def paused(request: Life, event: Event, view: View) -> Action | None:
    """Refuse a request that waits for a model which an operator has paused since."""
    if event is not life.TICK or request.phase is not Phase.PARKED or request.has_content:
        return None
    sleep = view.sleep_of(request.model)
    return life.Refuse(error_responses.model_paused(request.model)) if sleep is not None and sleep.paused else None


def occupied(request: Life, event: Event, view: View) -> Action | None:
    """Do nothing where the request waits for something else than this event."""
    phase = request.phase
    if event is life.TURN:
        return None if phase is Phase.RESUMING else life.NOTHING
    if event is not life.TICK:
        return None
    if phase is _QUEUED and request.has_content:  # it was paused
        return None if _is_cut_off(request, view) else life.NOTHING
    return None if phase is Phase.PARKED and _is_worth_trying(request, view) else life.NOTHING


def unresumable(request: Life, event: Event, view: View) -> Action | None:
    """Refuse where no engine can continue what the client has."""
    if isinstance(event, life.Lost):
        if request.has_content and event.has is life.Has.STUMP:
            return life.Refuse(error_responses.answer_lost(event.detail))
        if event.reason == "gone" and not request.has_content:
            return life.Refuse(
                error_responses.no_rest("no replica makes its events so that they meet the point that was named")
            )
    if request.terms.revision is not None and _all_differ(request, view.endpoints(request.model)):
        return life.Refuse(error_responses.no_rest(f"every replica of {request.model!r} is of another revision now"))
    return None


def suspected(event: Event) -> Action | None:
    """Find out whether an engine that was lost in this request's first steps died, before another one gets it."""
    if isinstance(event, life.Lost) and event.suspect:
        return life.JUDGE
    return None


def poisoned(request: Life, view: View) -> Action | None:
    """Refuse a request that engines died of."""
    if request.terms.needs_slot and not request.has_slot:  # nothing is sent before it has one
        return None
    return life.Refuse(error_responses.poison()) if view.is_poison() else None


def resume(request: Life, event: Event, view: View) -> Action | None:
    """Let another engine of the same revision continue what the client has, when the pool gives the turn."""
    if not request.has_content:
        return None
    endpoints = view.endpoints(request.model)
    if endpoints is None:
        return life.Refuse(error_responses.answer_lost("its model has left the fleet"))
    if request.terms.needs_slot and (not request.has_slot or _is_preempted(event)):
        return _paused_or_saved(request, event, view)
    if event is not life.TURN:
        return life.ASK_TURN
    found = _chosen(request, view, _able(request, endpoints), overfull=True)
    return life.Send(found[0], "it is of the same revision and goes on") if found is not None else None


def _paused_or_saved(request: Life, event: Event, view: View) -> Action | None:
    """Let a stream without a slot wait for one; where the last replica of its revision leaves, it ends there."""
    if _is_preempted(event) or _any_able(request, view):
        return life.Pause(request.past.failure)
    leaving = _leaving(request, view)
    return life.Send(leaving[0], "the last replica of its revision leaves, and it ends there") if leaving else None


def retry(request: Life, view: View) -> Action | None:
    """Ask an engine that was not asked yet; before the first one, ask for a slot."""
    past, terms = request.past, request.terms
    if request.has_content or (past is not life.NO_PAST and past.refusal is not None):
        return None
    lacks_slot = terms.needs_slot and not request.has_slot
    if lacks_slot and not terms.pinned and terms.revision is None:
        return life.OFFER  # any engine can answer; the pool knows whether there is one
    able = _able(request, view.endpoints(request.model) or ())
    if lacks_slot:
        return life.OFFER if any([e.ready for e in able]) else None
    found = _chosen(request, view, able) or _chosen(request, view, able, overfull=True)
    if found is None:
        return None
    engine, why = found
    return life.Send(engine, why if past is life.NO_PAST else past.failure and "another gave no answer")


def fall_back(request: Life, view: View) -> Action | None:
    """Try the next model."""
    at_pool, terms = request.past.at_pool + 1, request.terms
    if request.has_content:
        return None
    if terms.overflow is not None and at_pool > terms.num_pools:
        return life.FallBack(0, _refusal(request, view).message)  # it waits for its first choice again
    if at_pool >= terms.num_pools:
        return None
    return life.FallBack(at_pool, _refusal(request, view).message)


def wake(request: Life, view: View, now_s: float) -> Action | None:
    """Wait for a model that sleeps, unless its start would take longer than the request can wait."""
    if request.has_content or not request.terms.may_move or _refusal(request, view).code not in _NOT_THERE:
        return None
    model = request.terms.pools[0]
    sleep = view.sleep_of(model)
    if sleep is None:
        return None
    if sleep.paused:
        return life.Refuse(error_responses.model_paused(model))
    wait_s = _wait_until_s(request, view, now_s) - now_s
    if sleep.ready_in_s is not None and sleep.ready_in_s > wait_s:
        return life.Refuse(error_responses.starts_too_slowly(model, sleep.ready_in_s, wait_s))
    if not sleep.has_room:
        return life.Refuse(error_responses.too_many_wait(model, sleep.ready_in_s))
    return life.Park(f"{model} has no replica; the request wakes it") if wait_s > 0 else None


def park(request: Life, view: View, now_s: float) -> Action | None:
    """Wait for an engine, where the model had one not long ago."""
    policy, terms, past = view.policy, request.terms, request.past
    model = request.model if request.has_content else terms.pools[0]
    if not policy.enabled or not terms.may_move or view.endpoints(model) is None:
        return None
    refusal = _refusal(request, view)
    if not request.has_content:
        limit_s = policy.wait_s if terms.deadline_s is not None else _longest_wait_s(request, policy)
        if refusal.code not in _NOT_THERE or now_s - view.ready_s(model) >= limit_s:
            return None
    if policy.wait_s <= 0 or 0 < past.wait_until_s <= now_s:
        return None
    return life.Park(refusal.message)


# what the rules ask


def _chosen(
    request: Life, view: View, able: Sequence[Engine], *, overfull: bool = False
) -> tuple[Engine, Reason] | None:
    """Return the engine that the request goes to, and why this one; empty where it goes without saying."""
    adapter = request.model if request.model in request.terms.adapters else ""
    return view.choose(request.model, able, request.past.tried, adapter=adapter, overfull=overfull) if able else None


def _able(request: Life, endpoints: Sequence[Engine]) -> Sequence[Engine]:
    """Return the engines that can answer this request, or continue its answer."""
    pinned = request.terms.pinned
    if pinned:
        return [e for e in endpoints if e.key == pinned]
    revision = request.past.revision if request.has_content else request.terms.revision
    if revision is None and not request.has_content:
        return endpoints
    return [e for e in endpoints if e.resume is not _NO_RESUME and e.revision_of(request.model) == revision]


def _any_able(request: Life, view: View) -> bool:
    return any([e.ready for e in _able(request, view.endpoints(request.model) or ())])


def _leaving(request: Life, view: View) -> Sequence[Engine]:
    """Return the engines where a stream without a slot may end: they leave, and give no slot any more."""
    able = _able(request, view.endpoints(request.model) or ())
    return [e for e in able if e.drains and e.key not in request.past.tried]


def _is_cut_off(request: Life, view: View) -> bool:
    """Return whether no engine will give a paused stream a slot. One that is only lost may come back."""
    able = _able(request, view.endpoints(request.model) or ())
    if any([e.ready for e in able]):
        return False
    return bool(_leaving(request, view)) or all([e.drains for e in able])


def _is_preempted(event: Event) -> bool:
    return isinstance(event, life.Lost) and event.reason == life.PREEMPTED


def _has_other(request: Life, key: str, view: View) -> bool:
    """Return whether another engine of the model, or another model, can still be asked."""
    terms, past = request.terms, request.past
    if past.at_pool + 1 < terms.num_pools or past.at_pool >= terms.num_pools:
        return True
    return any([e.ready and e.key != key and e.key not in past.tried for e in view.endpoints(request.model) or ()])


def _all_differ(request: Life, endpoints: Sequence[Engine] | None) -> bool:
    """Return whether there are engines, and each is known to be of another revision."""
    found = [e.revision_of(request.model) for e in endpoints or ()]
    return bool(found) and all([revision and revision != request.terms.revision for revision in found])


def _is_worth_trying(request: Life, view: View) -> bool:
    models = (request.model,) if request.has_content else request.terms.pools[: request.terms.num_pools]
    return any([e.ready and not e.suspect for model in models for e in _able(request, view.endpoints(model) or ())])


def _longest_wait_s(request: Life, policy: ResumePolicy) -> float:
    """Return how long the request waits for an engine; shorter where its client gets no sign of life meanwhile."""
    return policy.wait_s if request.terms.streams else min(policy.wait_s, policy.whole_wait_s)


def _wait_until_s(request: Life, view: View, now_s: float) -> float:
    if request.past.wait_until_s:
        return request.past.wait_until_s
    deadline_s = request.terms.deadline_s
    if deadline_s is not None and deadline_s > now_s:
        return deadline_s
    sleep = None if request.has_content else view.sleep_of(request.terms.pools[0])
    if sleep is None:
        return now_s + _longest_wait_s(request, view.policy)
    return now_s + (sleep.wait_s if request.terms.streams else min(sleep.wait_s, view.policy.whole_wait_s))


def _refusal(request: Life, view: View) -> Refusal:
    """Return why the model that is being tried has no answer."""
    past, model = request.past, request.model
    if request.has_content:
        return error_responses.answer_lost(past.failure)
    if past.refusal is not None:
        return past.refusal
    if request.terms.pinned and not _able(request, view.endpoints(model) or ()):
        return error_responses.response_gone(model)
    if past.failure:
        return error_responses.engines_unreachable(model, past.failure, reached=past.reached)
    return error_responses.no_ready_endpoint(model)
