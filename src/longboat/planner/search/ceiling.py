"""A bound on the speed of a layout, which costs far less than its forecast: what is slower for certain is not counted.

The bound is never below what the forecast says. Each step of it drops or lowers a time of the time model:

- A response lasts at least as long as its decode steps, its own prompt on its way through all stages, and its share of
  the prompts of others.
- The slowest stage takes at least as long as if layers were divided into parts of any size, each stage
  equally busy, and at least as long as if the model had only the layers of one kind, which are not divided.
- The time of a stage is at least its time under the default constants, times the least factor of its layers. All
  stages together take at least the sum of each layer's least time.
- More requests at once never bring fewer tokens per second, so all users are taken, as far as memory could hold them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf, log2
from operator import itemgetter

from longboat.planner.memory.engine import engine_traits
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.deployment import Deployment, Stage
from longboat.planner.predict.features import hops_s
from longboat.planner.predict.kernels import kernel_class
from longboat.planner.predict.queueing import in_step
from longboat.planner.predict.terms import DEFAULTS
from longboat.planner.predict.work import IMBALANCE, Pass, each_work
from longboat.planner.search.forecast import HELD_OUTPUT, Forecaster, replica_users
from longboat.planner.search.layouts import Layout
from longboat.planner.search.partition import Place

__all__ = ("Ceilings",)

# For the rounding of sums of floating-point numbers.
ROUNDING = 1.0 + 1e-9
# The least share of each other request's prompt that a response waits for (``queueing``).
LEAST_INTERFERENCE = 0.85
# The part of running requests by which two looks at a limit differ.
FEWER = 1.25
# Seconds of a layer under the default constants, and under those of the calibration.
Seconds = tuple[float, float]


class Ceilings:
    """Bounds for the layouts of one search."""

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster, self.shape, self.demand = forecaster, forecaster.shape, forecaster.demand
        self.engine = engine_traits(forecaster.engine)
        self.traffic = self.demand.traffic(1.0)
        self.kinds = self.shape.counted_layers(0, len(self.shape.layers))
        self.has_experts = any(layer.num_experts for layer, _ in self.kinds)
        self.weight_bytes = self.shape.weight_bytes
        self._known: dict[tuple[object, ...], list[Seconds]] = {}
        self._prompts: dict[int, tuple[float, float]] = {}  # by the ``id`` of a layout, which the search keeps
        self._factors: dict[int, tuple[Mapping[str, float], float, float]] = {}
        self._held_bytes: dict[int, float] = {}

    def tokens_per_s(self, layout: Layout, share: float) -> float:
        """Return what the replicas of a layout do at most with ``share`` of the users."""
        first = layout.places[0]
        numbers = {place.machine.number_bytes for place in layout.places}
        if len(numbers) > 1 or in_step(self.traffic) or self.demand.settings.cache_bytes:
            return inf
        users, busy = replica_users(self.demand.users, share, layout.replicas)
        running = max(1.0, min(users, self._held(layout)))
        constants, itl_factor, ttft_factor = self._constants(first)
        depth = len(layout.places) if self.engine.overlaps_stages else 1
        batches, batch = min(running, depth), max(1.0, running / depth)
        step_s, _ = self._pass_s(layout, batch, batches, decoding=True)
        prompt_s, busy_s = self._prompt_s(layout)
        output, wait = self.traffic.mean_output_tokens, ttft_factor * constants["wait"]
        own_s, others_s = wait * prompt_s, itl_factor * constants["interference"] * LEAST_INTERFERENCE * busy_s
        prompts_s = others_s + (own_s - others_s) / running if own_s > others_s else own_s
        prompts_s += wait * busy_s / (2.0 * self.traffic.waves)
        steps = itl_factor * output + ttft_factor * constants["first_steps"]
        life_s = (steps * step_s + ttft_factor * constants["floor"]) / running + prompts_s
        return busy * output / life_s * ROUNDING if life_s > 0 else inf

    def least_excess(self, layout: Layout) -> float:
        """Return how many times its limit (``Slo.excess``) the worse of TTFT and ITL is at least, for all users.

        The fewer of a replica's users run at once, the shorter each takes, and the more lives of others the rest wait
        for. So numbers of running ones are looked at in steps, from the most that find room down, until the wait alone
        is too long.
        """
        slo, first = self.demand.slo, layout.places[0]
        numbers = {place.machine.number_bytes for place in layout.places}
        if (slo.ttft_s is None and slo.itl_s is None) or len(numbers) > 1:
            return 1.0
        users, _ = replica_users(self.demand.users, 1.0, layout.replicas)
        alone = self._least_s(layout, first, 1.0)
        if slo.ttft_s is None:
            return slo.excess(*alone) / ROUNDING

        def excess(times: tuple[float, float], most: float) -> float:
            """Return it where this number of requests or fewer run. times: TTFT and ITL of a running one."""
            queue_s = (users / most - 1.0) * (times[0] + times[1] * self.traffic.mean_output_tokens)
            return slo.excess(times[0] + queue_s, times[1])

        most, least = max(1.0, min(users, self._held(layout))), inf
        while least > excess(alone, most):
            fewest = max(1.0, most / FEWER)
            least = min(least, excess(self._least_s(layout, first, fewest) if fewest > 1.0 else alone, most))
            if most == 1.0:
                break
            most = fewest
        return least / ROUNDING

    def _least_s(self, layout: Layout, first: Place, running: float) -> tuple[float, float]:
        """Return TTFT and ITL, in seconds, that a replica takes at least where this number of requests or more run.

        Ranks that divide experts are fuller the fewer tokens there are.
        """
        constants, itl_factor, ttft_factor = self._constants(first)
        depth = len(layout.places) if self.engine.overlaps_stages else 1
        step_s, _ = self._pass_s(layout, max(1.0, running / depth), min(running, depth), decoding=True)
        step_s /= 1.0 + IMBALANCE if layout.expert_parallel else 1.0
        prompt_s, busy_s = self._prompt_s(layout)
        served_s = constants["floor"] + constants["wait"] * prompt_s
        met = 0.0 if in_step(self.traffic) else LEAST_INTERFERENCE * (running - 1.0) / self.traffic.mean_output_tokens
        itl_s = step_s + constants["interference"] * met * busy_s
        return ttft_factor * (served_s + constants["first_steps"] * step_s), itl_factor * itl_s

    def _prompt_s(self, layout: Layout) -> tuple[float, float]:
        """Return the least seconds of a prompt on its way through all stages, and those that it keeps the slowest."""
        if id(layout) not in self._prompts:
            self._prompts[id(layout)] = self._pass_s(layout, self.traffic.computed_tokens, 0.0, decoding=False)
        return self._prompts[id(layout)]

    def _constants(self, place: Place) -> tuple[Mapping[str, float], float, float]:
        """Return the constants of replicas that begin on a place, and the factors of the group that was measured."""
        if place.pool not in self._factors:
            calibration: Calibration = self.forecaster.calibration
            name = place.machine.name
            kernel = kernel_class(self.shape, place.machine)
            group = calibration.groups.get((self.shape.name, name, self.engine.name))
            found = calibration.constants(engine=self.engine.name, kernel=kernel, machine=name)
            factors = (group.itl_factor, group.ttft_factor) if group else (1.0, 1.0)
            self._factors[place.pool] = (found, *factors)
        return self._factors[place.pool]

    def _held(self, layout: Layout) -> float:
        """Return requests of the mean length that the memory of a replica could hold beside its weights."""
        if self.engine.slots or self.demand.settings.cache_tokens:
            return inf
        if layout.cut not in self._held_bytes:
            tokens = ceil(self.traffic.mean_prompt_tokens + HELD_OUTPUT * self.traffic.mean_output_tokens)
            kv_bytes = self.demand.settings.kv_bits / 8
            each_kind = (
                count * layer.cache.bytes_of(tokens, kv_bytes) / layer.cache.tensor_shards(layout.cut)
                for layer, count in self.kinds
                if layer.cache.kind != "none"
            )
            self._held_bytes[layout.cut] = sum(each_kind, 0.0)
        each = self._held_bytes[layout.cut] * layout.tensor
        memory = sum(layout.tensor * place.card.memory_bytes for place in layout.places)
        return layout.data * max(0.0, memory - self.weight_bytes) / each if each else inf

    def _pass_s(self, layout: Layout, tokens: float, batches: float, *, decoding: bool) -> tuple[float, float]:
        """Return the least seconds of a pass through all stages, and those that it keeps the slowest stage busy.

        While decoding, a pass lasts from one token to the next.

        batches: under way at once, while decoding
        """
        runs = _runs(layout)
        first, last = layout.places[0], layout.places[-1].pool
        chunks = 1.0 if decoding else max(1.0, -(-tokens // self.engine.chunk_tokens))
        found = {
            pool: self._seconds(layout, first, place, tokens / chunks, decoding) for pool, (place, _) in runs.items()
        }
        usual_s, known_s, ratio = self._together(list(found.values()), found[last][-1])
        through_s = hops_s(
            self.shape,
            self.engine,
            layout.hop,
            len(layout.places) - 1,
            number_bytes=first.machine.number_bytes,
            tokens=tokens / chunks,
            sequences=tokens if decoding else 1.0,
        )
        if not self.engine.overlaps_stages:
            return through_s + chunks * known_s, chunks * known_s
        factor = min(known / usual for each in found.values() for usual, known in each if usual)
        slowest_s = self._slowest_s(found, runs, last)
        if decoding:
            lone = batches <= 1.0 or len(layout.places) == 1
            return through_s + (known_s if lone else factor * max(usual_s, batches * slowest_s)), 0.0
        busy_s = (ratio if chunks == 1.0 else factor) * chunks * slowest_s
        return through_s + known_s + (chunks - 1.0) * factor * slowest_s, busy_s

    def _together(self, places: list[list[Seconds]], head: Seconds) -> tuple[float, float, float]:
        """Return what all layers and the head take at least, each layer on any of the places.

        These are usual seconds, those under the calibration, and the least ratio of the latter to the former.
        """
        if len(places) == 1:
            usual_s, known_s = self._sum(places[0], head)
            return usual_s, known_s, known_s / usual_s
        kinds = [[each[kind] for each in places] for kind in range(len(self.kinds))]
        usual_s, _ = self._sum([min(each) for each in kinds], head)
        _, known_s = self._sum([min(each, key=itemgetter(1)) for each in kinds], head)
        ratio = inf
        chosen = places[0]
        while True:  # each turn gives each layer the place that lowers the ratio of the last turn most
            usual, known = self._sum(chosen, head)
            if known >= ratio * usual / ROUNDING:
                return usual_s, known_s, min(ratio, known / usual)
            ratio = known / usual
            chosen = [min((known - ratio * usual, (usual, known)) for usual, known in each)[1] for each in kinds]

    def _sum(self, each: Sequence[Seconds], head: Seconds) -> Seconds:
        """Return the seconds of all layers, a kind of them taking as long as ``each`` says, and of the head."""
        usual_s, known_s = head
        for (usual, known), (_, count) in zip(each, self.kinds, strict=False):
            usual_s += count * usual
            known_s += count * known
        return usual_s, known_s

    def _slowest_s(self, found: Mapping[int, list[Seconds]], runs: Mapping[int, tuple[Place, int]], last: int) -> float:
        """Return the least usual seconds of the slowest stage. last: the pool of the stage that has the head."""
        if len(found) == 1:
            each, stages = found[last], runs[last][1]
            of_kinds = [(seconds, count) for (seconds, _), (_, count) in zip(each, self.kinds, strict=False)]
            total = sum((seconds * count for seconds, count in of_kinds), 0.0) + each[-1][0]
            return max(total / stages, *(-(-count // stages) * seconds for seconds, count in of_kinds))
        kinds = range(len(self.kinds))
        least = [min(each[kind][0] for each in found.values()) for kind in kinds]
        total = sum((least[kind] * self.kinds[kind][1] for kind in kinds), 0.0)
        head_s = found[last][-1][0]
        speeds = {pool: 1.0 / max(1e-30, _slowness(each, least)) for pool, each in found.items()}
        slowest = (total + head_s * speeds[last]) / sum(
            (speeds[pool] * count for pool, (_, count) in runs.items()), 0.0
        )
        for kind, (_, count) in enumerate(self.kinds):
            whole = [(each[kind][0], runs[pool][1]) for pool, each in found.items()]
            slowest = max(slowest, _slowest_of_whole(whole, count))
        return slowest

    def _seconds(self, layout: Layout, first: Place, place: Place, tokens: float, decoding: bool) -> list[Seconds]:
        """Return seconds of each kind of layer, and of the head at the end, on one stage.

        Without experts, the work of a decode step is linear in its tokens: two sizes give all between them.
        """
        if not decoding or self.has_experts or layout.data > 1:
            return self._counted(layout, first, place, tokens, decoding)
        low = float(2 ** floor(log2(tokens)))
        below = self._counted(layout, first, place, low, decoding)
        if low == tokens:
            return below
        above, part = self._counted(layout, first, place, 2 * low, decoding), tokens / low - 1.0
        pairs = zip(below, above, strict=True)
        return [(a + part * (b - a), c + part * (d - c)) for (a, c), (b, d) in pairs]

    def _counted(self, layout: Layout, first: Place, place: Place, tokens: float, decoding: bool) -> list[Seconds]:
        key = (first.pool, place.pool, layout.tensor, layout.expert_parallel, layout.data, tokens, decoding)
        if key not in self._known:
            self._known[key] = list(self._count(layout, first, place, tokens, decoding))
        return self._known[key]

    def _count(self, layout: Layout, first: Place, place: Place, tokens: float, decoding: bool) -> Iterator[Seconds]:
        """Count one stage, alone as in a replica of one stage."""
        constants = self._constants(first)[0]
        stage = Stage(num_layers=1, machine=place.machine, tensor=layout.tensor, link=place.link, near=place.near)
        alone = self._alone(stage, layout)
        context, sequences = self.traffic.mean_prompt_tokens + self.traffic.mean_output_tokens / 2.0, tokens
        if not decoding:
            context = self.traffic.mean_prompt_tokens - self.traffic.computed_tokens / 2.0
            sequences = 1.0
        step = Pass(tokens=tokens, sequences=sequences, context_tokens=context, decoding=decoding)
        for work in each_work(alone, stage, (layer for layer, _ in self.kinds), step):
            yield _seconds(work, constants)

    def _alone(self, stage: Stage, layout: Layout) -> Deployment:
        return Deployment(
            shape=self.shape,
            engine=self.engine,
            stages=(stage,),
            attention_data=layout.data,
            expert=layout.tensor if layout.expert_parallel else 1,
            counted=self.forecaster.counted,
        )


def _seconds(work: Mapping[str, float], constants: Mapping[str, float]) -> Seconds:
    """Return seconds under the default constants, and under those of the calibration."""
    usual_s = known_s = 0.0
    for name, value in work.items():
        usual_s += DEFAULTS[name] * value
        known_s += constants[name] * value
    return usual_s, known_s


def _runs(layout: Layout) -> dict[int, tuple[Place, int]]:
    """Return a place of each pool that a replica is on, and how many of its stages are there."""
    if len(layout.pools) == 1:
        return {layout.pools[0]: (layout.places[0], len(layout.places))}
    counts = Counter(place.pool for place in layout.places)
    return {place.pool: (place, counts[place.pool]) for place in layout.places}


def _slowest_of_whole(places: list[tuple[float, int]], num_layers: int) -> float:
    """Return the least seconds in which all places together, each at most so long, take ``num_layers`` whole layers.

    places: seconds of a layer, and how many places take as long
    """
    if any(seconds <= 0.0 for seconds, _ in places):
        return 0.0
    limit_s = num_layers / sum((count / seconds for seconds, count in places), 0.0)
    while True:
        taken = [(int(limit_s / seconds * ROUNDING), seconds, count) for seconds, count in places]
        if sum(layers * count for layers, _, count in taken) >= num_layers:
            return limit_s
        limit_s = min((layers + 1) * seconds for layers, seconds, _ in taken)


def _slowness(each: list[Seconds], least: list[float]) -> float:
    """Return how much slower than the quickest place a place is at least, whatever layers it has."""
    return min(
        (seconds / quickest for (seconds, _), quickest in zip(each, least, strict=False) if quickest), default=1.0
    )
