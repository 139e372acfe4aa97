"""Other autoscalers' rules, with their defaults, as the scaler runs them.

Each has one setting that its users must choose: requests under way for each replica (Dynamo: none, it knows the SLO).

- Ray Serve 2.60, ``ray/serve/autoscaling_policy.py``: ``longboat.scaling.ongoing`` has it; metrics come every 10 s
- KEDA: a ScaledObject makes a HorizontalPodAutoscaler; kubernetes/kubernetes ``pkg/controller/podautoscaler``:
  a look each 15 s, tolerance 0.1, a stabilization window of 300 s before fewer, at most 4 pods or 100 % more in 15 s
- Knative: knative/serving ``pkg/autoscaler/scaling/autoscaler.go``, ``config-autoscaler``: a look each 2 s, stable
  window 60 s, panic window 10 % of it, panic from twice the pods that are ready, 70 % of the target, up at most 1000
  times, down at most to a half
- Dynamo: ai-dynamo/dynamo ``components/src/dynamo/planner``: ``core/load_scaling.py`` each 5 s, one replica more where
  TTFT or ITL is above the SLA, one fewer where both are below 80 % of it, nothing while a replica starts; and
  ``core/throughput_scaling.py`` each 180 s, rate over the capacity of a replica as the least count
- AIBrix APA: vllm-project/aibrix ``pkg/controller/podautoscaler/algorithm/apa.go``, ``context/context.go``: a look each
  10 s, tolerances of 10 %, at most twice or half in a step, 300 s of lower recommendations before fewer
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from longboat.core.scaling import ModelObservation, OngoingTarget
from longboat.scaling.ongoing import OngoingRule
from longboat.scaling.rule import Rule, Want
from scaling_bench.loads import Load

__all__ = ("PEERS", "Peer")

Peer = Callable[[Load, float, float], Rule]
"""Makes a peer's rule: the load, the requests under way that one replica bears, and the part of these to aim at."""


class Window:
    """Means of requests under way over some time."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, value: float) -> None:
        """Note a value."""
        self._seen.append((now_s, value))
        while self._seen[0][0] <= now_s - self._most_s:
            self._seen.popleft()

    def mean(self, now_s: float, over_s: float) -> float:
        """Return the mean over the last seconds."""
        found = [value for at_s, value in self._seen if at_s > now_s - over_s]
        return sum(found) / max(1, len(found))

    def highest(self) -> float:
        """Return the highest value."""
        return max((value for _, value in self._seen), default=0.0)

    def begin(self, now_s: float, value: float) -> None:
        """Note a first value, unless there is one: what runs when an autoscaler starts counts as recommended."""
        if not self._seen:
            self.add(now_s, value)


class Ray(Rule):
    """Ray Serve: the delays count from looks at metrics of every 10 s."""

    def __init__(self, load: Load, bears: float, part: float) -> None:
        self._rule = OngoingRule(OngoingTarget(target_ongoing_requests=bears * part), least=1, most=1 << 20)
        self._next_s = 0.0

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Take metrics each 10 s."""
        if now_s >= self._next_s:
            self._next_s = now_s + 10.0
            self._rule.observe(now_s, seen)

    def want(self, now_s: float, current: int) -> Want:
        """Return its count."""
        return self._rule.want(now_s, current)


class Keda(Rule):
    """KEDA over requests under way, through a HorizontalPodAutoscaler."""

    def __init__(self, load: Load, bears: float, part: float) -> None:
        self._target = bears * part
        self._now = 0.0
        self._ready = 1
        self._next_s = 0.0
        self._wanted = Window(300.0)

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Note the newest value."""
        self._now, self._ready = seen.running + seen.waiting, max(1, seen.ready)

    def want(self, now_s: float, current: int) -> Want:
        """Return its count."""
        if now_s < self._next_s:
            return Want(replicas=current, reason="")
        self._next_s = now_s + 15.0
        self._wanted.begin(now_s, current)
        ratio = self._now / (self._target * self._ready)
        desired = math.ceil(self._now / self._target) if abs(ratio - 1.0) > 0.1 else current
        self._wanted.add(now_s, desired)
        if desired > current:
            return Want(replicas=min(desired, max(current + 4, 2 * current)), reason="")
        return Want(replicas=min(current, int(self._wanted.highest())), reason="")


class Knative(Rule):
    """Knative's pod autoscaler over concurrency."""

    def __init__(self, load: Load, bears: float, part: float) -> None:
        self._target = 0.7 * bears * part
        self._seen = Window(60.0)
        self._ready = 1.0
        self._next_s = 0.0
        self._panic_s = -1.0
        self._most = 0

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Note the newest concurrency."""
        self._seen.add(now_s, seen.running + seen.waiting)
        self._ready = max(1.0, seen.ready)

    def want(self, now_s: float, current: int) -> Want:
        """Return its count."""
        if now_s < self._next_s:
            return Want(replicas=current, reason="")
        self._next_s = now_s + 2.0
        stable, panic = (math.ceil(self._seen.mean(now_s, span_s) / self._target) for span_s in (60.0, 6.0))
        least, most = math.floor(self._ready / 2.0), 1000.0 * self._ready
        if panic / self._ready >= 2.0:
            self._panic_s = now_s
        elif self._panic_s >= 0.0 and now_s > self._panic_s + 60.0:
            self._panic_s, self._most = -1.0, 0
        desired = int(min(max(stable, least), most))
        if self._panic_s >= 0.0:
            self._most = max(self._most, desired, int(min(max(panic, least), most)))
            desired = self._most
        return Want(replicas=desired, reason="")


class Dynamo(Rule):
    """Dynamo's planner with both of its loops."""

    def __init__(self, load: Load, bears: float, part: float) -> None:
        self._objective = load.objective
        self._capacity = bears * part  # requests under way that a replica bears
        self._ttft: list[float] = []
        self._itl: list[float] = []
        self._starting = 0
        self._load_s = self._rate_s = 0.0
        self._seen = Window(180.0)
        self._least = 1

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Note latencies and the load."""
        self._starting = len(seen.starting)
        self._seen.add(now_s, seen.running + seen.waiting)
        for one in seen.latencies:
            self._ttft += [one.ttft_ms.p50] if one.ttft_ms else []
            self._itl += [one.itl_ms.p50] if one.itl_ms else []

    def want(self, now_s: float, current: int) -> Want:
        """Return its count."""
        if now_s >= self._rate_s:
            self._rate_s = now_s + 180.0
            self._least = math.ceil(self._seen.mean(now_s, 180.0) / self._capacity)
        if now_s < self._load_s or self._starting:
            return Want(replicas=current, reason="")
        self._load_s = now_s + 5.0
        change = self._change()
        self._ttft, self._itl = [], []
        desired = current + change
        return Want(replicas=max(1, desired, self._least), reason="")

    def _change(self) -> int:
        pairs = ((self._ttft, self._objective.ttft_ms), (self._itl, self._objective.itl_ms))
        ratios = [sum(seen) / len(seen) / limit for seen, limit in pairs if seen and limit is not None]
        if not ratios:
            return 0
        return 1 if max(ratios) > 1.0 else -1 if max(ratios) < 0.8 else 0


class Apa(Rule):
    """AIBrix's APA over requests under way."""

    def __init__(self, load: Load, bears: float, part: float) -> None:
        self._target = bears * part
        self._each = 0.0
        self._next_s = 0.0
        self._wanted = Window(300.0)
        self._ready = 1

    def observe(self, now_s: float, seen: ModelObservation) -> None:
        """Note the newest value."""
        self._ready = max(1, seen.ready)
        self._each = (seen.running + seen.waiting) / self._ready

    def want(self, now_s: float, current: int) -> Want:
        """Return its count."""
        if now_s < self._next_s:
            return Want(replicas=current, reason="")
        self._next_s = now_s + 10.0
        self._wanted.begin(now_s, current)
        ratio = self._each / self._target
        desired = current
        if ratio > 1.1:
            desired = min(math.ceil(self._ready * ratio), 2 * current)
        elif ratio < 0.9:
            desired = max(math.ceil(self._ready * ratio), current // 2)
        self._wanted.add(now_s, desired)
        return Want(replicas=max(desired, min(current, int(self._wanted.highest()))), reason="")


PEERS: dict[str, Peer] = {"ray": Ray, "keda": Keda, "knative": Knative, "dynamo": Dynamo, "apa": Apa}
