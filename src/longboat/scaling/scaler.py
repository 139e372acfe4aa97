"""Decides for all models of a fleet. The controller and the simulator run this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from longboat.core.scaling import Decision, FixedTarget, ModelObservation, OngoingTarget, ScaledModel, SloTarget
from longboat.scaling.fixed import FixedRule
from longboat.scaling.ongoing import OngoingRule
from longboat.scaling.rule import Rule, Want
from longboat.scaling.schedule import Schedule, Scheduled
from longboat.scaling.sharing import Claim, shared
from longboat.scaling.slo import SloRule

__all__ = ("Scaler", "rule_for")

MAX_GAP_S = 30.0
"""Seconds without an observation after which a model's count stays as it is: what is not seen decides nothing."""


def rule_for(model: ScaledModel) -> Rule:
    """Return the rule that counts the model's replicas."""
    if isinstance(model.target, OngoingTarget):
        return OngoingRule(model.target, least=model.min_replicas, most=model.max_replicas)
    if isinstance(model.target, SloTarget):
        return SloRule(model, model.target)
    return FixedRule(model.min_replicas)


class Scaler:
    """The counts of all models of a fleet. Call ``observe`` and then ``decide``, about once a second.

    Times are Unix seconds. It holds what it has seen; after a restart it begins with the counts that are in force, and
    learns the rest again.
    """

    def __init__(
        self,
        models: Sequence[ScaledModel],
        *,
        counts: Mapping[str, int] | None = None,
        make_rule: Callable[[ScaledModel], Rule] = rule_for,
    ) -> None:
        """counts: replicas that are wanted now; a model without an entry begins with its initial count."""
        self._make_rule = make_rule
        self._models: dict[str, _Model] = {}
        self.replace(models, counts=counts or {})

    def replace(self, models: Sequence[ScaledModel], *, counts: Mapping[str, int] | None = None) -> None:
        """Take the models of another fleet file; those that did not change keep what they learnt."""
        known, told = self._models, counts or {}
        self._models = {}
        for model in models:
            old = known.get(model.name)
            if old is not None and old.model == model:
                self._models[model.name] = old
                continue
            count = told.get(model.name, model.initial_replicas if old is None else old.current)
            self._models[model.name] = _Model(model, count, self._make_rule(model))

    def observe(self, now_s: float, observations: Sequence[ModelObservation]) -> None:
        """Note what happened since the last call; models that are not named were not seen."""
        for seen in observations:
            if (model := self._models.get(seen.model)) is not None:
                model.observe(now_s, seen)

    def decide(self, now_s: float, room: Mapping[str, float] | None = None) -> tuple[Decision, ...]:
        """Return a decision for each model, those included that change nothing, in the order of the file.

        room: accelerators of the whole fleet by their kind, those in use included; a kind that is not named is not
        scarce
        """
        claims = [model.claim(now_s) for model in self._models.values()]
        got = shared(claims, room or {})
        short = [claim.model.name for claim in claims if got[claim.model.name] < claim.wanted]
        return tuple(model.decide(now_s, got[name], short) for name, model in self._models.items())


class _Model:
    """One model: its rule, its schedule and the count in force."""

    def __init__(self, model: ScaledModel, current: int, rule: Rule) -> None:
        self.model = model
        self.current = current
        self._rule = rule
        self._schedule = Schedule(model.schedule)
        self._seen: ModelObservation | None = None
        self._seen_s = 0.0
        self._cold_start_s = model.cold_start_s
        self._wants = Want(replicas=current, reason="")

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        self._seen, self._seen_s = seen, now_s
        if seen.cold_start_s is not None:
            self._cold_start_s = seen.cold_start_s
        self._rule.observe(now_s, seen)

    def claim(self, now_s: float) -> Claim:
        """Return what the model would have if there were room for all."""
        self._wants = want = self._want(now_s)
        needed = want.replicas if want.needed is None else want.needed
        return Claim(model=self.model, least=self.model.min_replicas, needed=needed, wanted=want.replicas)

    def decide(self, now_s: float, got: int, short: Sequence[str]) -> Decision:
        """Take the count that there is room for. short: models that get fewer than they want"""
        want, before = self._wants, self.current
        self.current = got
        reason = want.reason
        if got < want.replicas:
            others = [name for name in short if name != self.model.name]
            beside = f", and {', '.join(others)} {'is' if len(others) == 1 else 'are'} short too" if others else ""
            reason = f"{reason}; {want.replicas} were wanted, and there is room for {got}{beside}"
        return Decision(
            at_s=now_s,
            model=self.model.name,
            replicas=got,
            before=before,
            reason=reason,
            terms=want.terms,
            short=max(0, want.replicas - got),
        )

    def _want(self, now_s: float) -> Want:
        scheduled = self._schedule.at(now_s, self._cold_start_s)
        if (held := self._held(now_s, scheduled)) is not None:
            self._rule.hold()
            return held
        return self._bounded(self._rule.want(now_s, self.current), scheduled)

    def _held(self, now_s: float, scheduled: Scheduled) -> Want | None:
        """Return the count that holds whatever the load is, if there is one."""
        seen = self._seen
        if seen is not None and seen.paused:
            return Want(replicas=0, reason="the model is paused")
        if seen is not None and seen.asked is not None:
            return Want(replicas=seen.asked, reason="a person asked for this count")
        if scheduled.replicas is not None:
            return Want(replicas=scheduled.replicas, reason=_because(scheduled))
        unseen = seen is None or now_s - self._seen_s > MAX_GAP_S
        if unseen and not isinstance(self.model.target, FixedTarget):
            return self._bounded(Want(replicas=self.current, reason="the load is not known at present"), scheduled)
        return None

    def _bounded(self, want: Want, scheduled: Scheduled) -> Want:
        least, planned = self.model.min_replicas, scheduled.min_replicas or 0
        if planned > max(least, want.replicas):
            return replace(want, replicas=planned, needed=planned, reason=_because(scheduled))
        if want.needed is not None and want.needed < planned:
            want = replace(want, needed=planned)
        if want.replicas < least:
            return replace(want, replicas=least, reason=f"{want.reason}; the minimum is {least}")
        if want.replicas > self.model.max_replicas:
            return replace(want, replicas=self.model.max_replicas, reason=f"{want.reason}; the maximum is reached")
        return want


def _because(scheduled: Scheduled) -> str:
    entry = scheduled.entry
    return f"the schedule says so: {entry.cron} ({entry.timezone})" if entry else "the schedule says so"
