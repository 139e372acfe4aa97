"""Requests for each replica, with the delays of Ray Serve's autoscaler (``ray.serve.autoscaling_policy``)."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

from longboat.core.scaling import ModelObservation, OngoingTarget
from longboat.scaling.rule import Want

__all__ = ("OngoingRule",)


class OngoingRule:
    """Wants as many replicas as keep each at its target of requests.

    A change must be wanted for the whole of its delay without a break; the first request of a model without replicas
    starts one at once. Where there was room for a part of the wanted replicas only, the rest stays wanted.
    """

    def __init__(self, target: OngoingTarget, *, least: int, most: int) -> None:
        """least, most: the model's bounds, which the count that is announced keeps"""
        self._target = target
        self._least, self._most = least, most
        self._seen: deque[tuple[float, int]] = deque()  # times, and requests then
        self._direction = 0  # of the change that is wanted and not made yet
        self._since_s = 0.0  # when it was wanted first
        self._wanted = 0  # count whose delay is over while there is not room for all of it; 0: none

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Note the requests that are under way."""
        self._seen.append((now_s, seen.running + seen.waiting))
        while self._seen[0][0] < now_s - self._target.look_back_period_s:
            self._seen.popleft()

    def want(self, now_s: float, current: int) -> Want:
        """Return the count, which is ``current`` until a change was wanted for long enough."""
        ongoing = sum(count for _, count in self._seen) / max(1, len(self._seen))
        terms = {"ongoing_requests": ongoing, "target_ongoing_requests": self._target.target_ongoing_requests}
        if current == 0 and self._seen and self._seen[-1][1] > 0:
            self._direction = 0
            return Want(replicas=1, reason="requests wait, and there was no replica", terms=terms)
        desired = self._desired(ongoing, current)
        words = f"{ongoing:.1f} requests are under way, and a replica is for {self._target.target_ongoing_requests:g}"
        want = self._delayed(now_s, current, desired, words, terms)
        return replace(want, needed=min(want.replicas, math.ceil(ongoing / self._target.target_ongoing_requests)))

    def hold(self) -> None:
        """Forget the change that was wanted."""
        self._direction = self._wanted = 0

    def _desired(self, ongoing: float, current: int) -> int:
        """Return the count that the load asks for, as far as the factors let it go."""
        exact = ongoing / self._target.target_ongoing_requests
        factor = self._target.upscaling_factor if exact > current else self._target.downscaling_factor
        scaled = math.ceil(current + factor * (exact - current))
        return scaled - 1 if scaled == current > math.ceil(exact) else max(0, scaled)

    def _delayed(self, now_s: float, current: int, desired: int, words: str, terms: dict[str, float]) -> Want:
        direction = (desired > current) - (desired < current)
        if direction == 0 or direction != self._direction or 0 < self._wanted <= current:
            self._direction, self._since_s, self._wanted = direction, now_s, 0
        delay_s = self._delay_s(direction, current)
        left_s = self._since_s + delay_s - now_s
        if direction == 0:
            return Want(replicas=current, reason=words, terms=terms)
        least = 1 if direction < 0 and current > 1 else 0  # the last one leaves by itself, after a delay of its own
        desired = max(least, desired)
        if left_s > 1e-6:
            return Want(replicas=current, reason=f"{words}{self._coming(current, desired, left_s)}", terms=terms)
        if direction > 0:
            self._wanted = desired
        else:
            self._direction = 0
        return Want(replicas=desired, reason=f"{words}, for {delay_s:g} s", terms=terms)

    def _coming(self, current: int, desired: int, left_s: float) -> str:
        """Return what a change will lead to within the bounds, in words."""
        count = min(max(desired, self._least), self._most)
        if count != current:
            return f": {count} in {left_s:.0f} s, if it stays so"
        return "; the maximum is reached" if desired > current else f"; the minimum is {self._least}"

    def _delay_s(self, direction: int, current: int) -> float:
        if direction > 0:
            return self._target.upscale_delay_s
        to_zero_s = self._target.downscale_to_zero_delay_s
        return self._target.downscale_delay_s if current > 1 or to_zero_s is None else to_zero_s
