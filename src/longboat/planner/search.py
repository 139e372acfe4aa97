"""Which split of a model over these machines serves a load best: every layout tried, the rest refused with reasons.

Equal nodes are counted, not enumerated: layouts differ by kind of node, ranks and stages, never by which of two equal
nodes holds which stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log

from longboat.catalog.entries import Engine
from longboat.catalog.library import Library
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError
from longboat.planner.cluster import Cluster
from longboat.planner.demand import Demand
from longboat.planner.design import Layout, layouts, mixed_layouts, place_title
from longboat.planner.fit import Fit, plan_fit
from longboat.planner.partition import StageTimes, partitions
from longboat.planner.pools import Pool, pools_of
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.deployment import Deployment, Stage
from longboat.planner.predict.engine import engine_traits
from longboat.planner.predict.machine import machine_for
from longboat.planner.predict.sample import computed_on
from longboat.planner.predict.serving import Prediction, predict
from longboat.planner.split_shape import EngineKind, Split, even_stages

__all__ = ("Found", "Group", "Plan", "Rejected", "engine_for", "equal_step", "search", "sequences_held")

GIB = 1024**3
ENGINE_KINDS: Mapping[str, EngineKind] = {"vLLM": "vllm", "SGLang": "sglang", "llama.cpp": "llama.cpp"}
VARIABLES = {"vllm": "VLLM_PP_LAYER_PARTITION", "sglang": "SGLANG_PP_LAYER_PARTITION", "llama.cpp": "--tensor-split"}
# Plans whose tokens per second differ by less count as equal: the simpler one is better.
EQUAL = 0.03
# Where some users' answers take so many times as long as they must, so many times the tokens per second make up for it.
LAGGARD, LAGGARD_WORTH = 2.0, 1.1
MAX_PLANS = 12
# For the same machines, where there are several kinds of them.
MAX_GROUPS = 3
# A request's output is part written, on average.
HELD_OUTPUT = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Equal replicas, with what one of them does.

    users: that one replica serves at once; busy: replicas that have any
    """

    layout: Layout
    shape: ModelShape
    engine: EngineKind
    fit: Fit
    prediction: Prediction
    users: float
    busy: int

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all its replicas."""
        return self.busy * self.prediction.total_tokens_per_s.value

    @property
    def title(self) -> str:
        replicas = f"{self.layout.replicas} replicas of " if self.layout.replicas > 1 else ""
        return f"{replicas}{place_title(self.layout)}, {self.layout.split_title}"

    @property
    def max_sequences(self) -> int:
        """Requests of the whole context that all its replicas hold at once."""
        return self.layout.replicas * self.fit.max_sequences

    @property
    def layer_setting(self) -> str:
        """How the engine is told the layers of each stage; ``""`` where it divides them so by itself."""
        stages = self.fit.split.stages
        if len(stages) == 1 or (self.engine == "vllm" and stages == even_stages(sum(stages), len(stages))):
            return ""
        return f"{VARIABLES[self.engine]}={','.join(map(str, stages))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to use the machines. idle: accelerators without work, in words; missed: of the SLO, in words."""

    groups: tuple[Group, ...]
    idle: tuple[str, ...] = ()
    missed: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return " and ".join(group.title for group in self.groups)

    @property
    def num_replicas(self) -> int:
        return sum(group.layout.replicas for group in self.groups)

    @property
    def tokens_per_s(self) -> float:
        return sum(group.tokens_per_s for group in self.groups)

    @property
    def ttft_s(self) -> float:
        """Of the slowest group that has users."""
        return max(group.prediction.ttft_s.value for group in self.groups if group.busy)

    @property
    def itl_s(self) -> float:
        """Of the slowest group that has users."""
        return max(group.prediction.itl_s.value for group in self.groups if group.busy)

    def answer_s(self, demand: Demand) -> float:
        """A mean answer of the slowest group that has users, from the request to its last token."""
        return self.ttft_s + self.itl_s * demand.traffic(1.0).mean_output_tokens

    @property
    def max_sequences(self) -> int:
        """Requests of the whole context at once, over all replicas."""
        return sum(group.max_sequences for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """What was tried and cannot be, or is not worth it, and why. fit: where bytes were counted."""

    what: str
    why: str
    hint: str = ""
    fit: Fit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Plans, best first, and what was refused."""

    cluster: Cluster
    demand: Demand
    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...]

    @property
    def best(self) -> Plan | None:
        return self.plans[0] if self.plans else None


def engine_for(cluster: Cluster, library: Library) -> EngineKind:
    """The engine that is asked for, or vLLM on GPUs and llama.cpp elsewhere.

    Raises UserInputError where it does not run on one of the machines, or is not planned for.
    """
    pools = pools_of(cluster)
    name = cluster.runtime or ("vLLM" if all(p.platform in ("cuda", "rocm", "xpu") for p in pools) else "llama.cpp")
    entry = library.engines.find(name)
    for pool in pools:
        if not _runs(entry, pool):
            raise UserInputError(
                f"{entry.name} does not run on {pool.entry.name} under {pool.system} ({_platform(pool)}): it runs on "
                f"{', '.join(entry.platforms)}",
                hint=_other_engine(pools, library),
            )
    if entry.name not in ENGINE_KINDS:
        raise UserInputError(
            f"how much memory {entry.name} {entry.version} takes beside weights is not known here: the planner has "
            f"that rule for {len(ENGINE_KINDS)} engines, {', '.join(ENGINE_KINDS)}",
            hint=_other_engine(pools, library),
        )
    return ENGINE_KINDS[entry.name]


def _platform(pool: Pool) -> str:
    return pool.system if pool.system in ("wsl2", "windows") else pool.platform


def _runs(engine: Engine, pool: Pool) -> bool:
    return _platform(pool) in engine.platforms and pool.platform in (*engine.platforms, "other")


def _other_engine(pools: Sequence[Pool], library: Library) -> str:
    """Engines that run on all of the machines and can be planned."""
    able = [name for name in ENGINE_KINDS if all(_runs(library.engines[name], pool) for pool in pools)]
    if able:
        return f"--runtime {' or '.join(able)}"
    if any(pool.system == "windows" for pool in pools):
        return "--os wsl2"
    names = dict.fromkeys(pool.entry.name for pool in pools)
    return f"no engine that can be planned runs on {' and '.join(names)}: plan them apart"


def search(
    shapes: Sequence[ModelShape], cluster: Cluster, demand: Demand, engine: EngineKind, calibration: Calibration
) -> Found:
    """Ranked plans for one model, in each of the quantizations ``shapes`` that are allowed."""
    seeker = _Seeker(cluster, demand, engine, calibration)
    plans: list[Plan] = []
    for shape in shapes:
        plans += seeker.plans(shape)
    plans.sort(key=lambda plan: _order(plan, demand))
    kept = _without_laggards(_different(plans), demand)
    return Found(cluster=cluster, demand=demand, plans=tuple(kept[:MAX_PLANS]), rejected=tuple(seeker.rejected))


class _Seeker:
    def __init__(self, cluster: Cluster, demand: Demand, engine: EngineKind, calibration: Calibration) -> None:
        self.pools = tuple(replace(pool, machine=machine_for(pool.machine, engine)) for pool in pools_of(cluster))
        self.demand, self.engine, self.calibration = demand, engine, calibration
        self.traits = engine_traits(engine)
        self.rejected: list[Rejected] = []
        self.weight_bytes = 0
        self.bandwidth = sum(pool.bandwidth_bytes_per_s for pool in self.pools)

    def plans(self, shape: ModelShape) -> list[Plan]:
        """For each group that fits a plan: itself, and the best for the machines that it leaves."""
        shape = self._computed(shape)
        times = StageTimes(shape, self.traits, self.demand.traffic(1.0))
        self.weight_bytes = shape.weight_bytes
        groups = [group for layout in self._layouts(shape) if (group := self._group(shape, layout, times))]
        kept = self._worthwhile(groups)
        best = {group.layout.pools[0]: group for group in reversed(kept) if len(group.layout.pools) == 1}
        return [self._plan(group, best) for group in kept]

    def _computed(self, shape: ModelShape) -> ModelShape:
        """Its weights as the engine holds them: an engine does not mix accelerators with processors."""
        return computed_on(self.pools[0].machine, shape)

    def _worthwhile(self, groups: Sequence[Group]) -> list[Group]:
        """The best few for the same machines, in order; the others are refused with their figures."""
        by_pools: dict[frozenset[int], list[Group]] = {}
        for group in sorted(groups, key=_group_order):
            by_pools.setdefault(frozenset(group.layout.pools), []).append(group)
        most = MAX_PLANS if len(by_pools) == 1 else MAX_GROUPS
        for found in by_pools.values():
            for group in found[most:]:
                why = f"{_figures(group)}; {found[0].title} on the same machines, {_figures(found[0])}"
                self._refuse(group.layout, why)
        return [group for found in by_pools.values() for group in found[:most]]

    def _layouts(self, shape: ModelShape) -> Iterator[Layout]:
        """All that can be laid out, or of these the split that is asked for."""
        asked = self.demand.split
        found = (layout for layout in self._all_layouts(shape) if layout.is_as(asked))
        first = next(found, None)
        if first is None:
            self.rejected.append(self._not_laid_out(shape))
            return
        yield first
        yield from found

    def _all_layouts(self, shape: ModelShape) -> Iterator[Layout]:
        has_experts = any(layer.num_experts for layer in shape.layers)
        parallel, asked = self.engine != "llama.cpp", self.demand.split
        for pool in self.pools:
            for layout in layouts(pool, tensor_parallel=parallel, has_experts=has_experts, asked=asked):
                if not layout.data_attention or self._divides_requests(shape, layout):
                    yield layout
        if len(self.pools) > 1:
            yield from mixed_layouts(self.pools, tensor_parallel=parallel, any_platform=not parallel)

    def _divides_requests(self, shape: ModelShape, layout: Layout) -> bool:
        """Whether DP attention is allowed, and saves copies of caches that tensor parallelism would make."""
        caches = {layer.cache for layer in {id(layer): layer for layer in shape.layers}.values()}
        copied = any(cache.kind != "none" and cache.tensor_shards(layout.tensor) < layout.tensor for cache in caches)
        return self.demand.data_attention and copied

    def _not_laid_out(self, shape: ModelShape) -> Rejected:
        """Why the machines have no place for the split that is asked for."""
        asked, cards = self.demand.split, sum(pool.num_cards for pool in self.pools)
        if asked.expert_parallel and not any(layer.num_experts for layer in shape.layers):
            return Rejected(what=asked.title, why=f"{shape.name} is dense: it has 0 experts to divide")
        if asked.expert_parallel and (asked.tensor or max(pool.cards_per_node for pool in self.pools)) == 1:
            return Rejected(what=asked.title, why="experts are divided over the ranks of a stage, and there is 1")
        if asked.least_ranks > cards:
            return Rejected(what=asked.title, why=f"{asked.least_ranks} accelerators are needed, and there are {cards}")
        each = ", ".join(f"{pool.num_nodes} x {pool.cards_per_node} {pool.entry.name}" for pool in self.pools)
        return Rejected(what=asked.title, why=f"{asked.least_ranks} accelerators in equal stages, of {each}")

    def _group(self, shape: ModelShape, layout: Layout, times: StageTimes) -> Group | None:
        users = max(1.0, self.demand.users * self._share(layout) / layout.replicas)
        if refused := self._too_large(shape, layout):
            self._refuse(layout, refused)
            return None
        found = [self._tried(shape, layout, stages, users) for stages in self._stages(shape, layout, times, users)]
        groups = [group for group in found if isinstance(group, Group)]
        if not groups:
            fit = next((fit for fit in found if isinstance(fit, Fit)), None)
            self._refuse_fit(shape, layout, fit)
            return None
        return min(groups, key=_group_order)

    def _share(self, layout: Layout) -> float:
        """Of the users that the layout's machines get, at first: as of all memories' speed."""
        return sum(self.pools[number].bandwidth_bytes_per_s for number in layout.pools) / self.bandwidth

    def _too_large(self, shape: ModelShape, layout: Layout) -> str:
        """Weights alone against all memory of a replica: cheap, and most of what is refused."""
        if len(layout.places) > len(shape.layers):
            return f"{len(layout.places)} stages for {len(shape.layers)} layers"
        memory = sum(layout.tensor * place.card.usable_bytes for place in layout.places)
        if self.weight_bytes <= memory:
            return ""
        return (
            f"weights of {self.weight_bytes / GIB:.1f} GiB, and {place_title(layout)} have {memory / GIB:.1f} GiB "
            "usable together"
        )

    def _stages(self, shape: ModelShape, layout: Layout, times: StageTimes, users: float) -> Iterable[tuple[int, ...]]:
        load = self.demand.load(self.engine, ceil(users))
        found = partitions(
            shape, layout.places, load, times, tensor=layout.tensor, expert_parallel=layout.expert_parallel
        )
        return found or (even_stages(len(shape.layers), len(layout.places)),)

    def _tried(self, shape: ModelShape, layout: Layout, stages: tuple[int, ...], users: float) -> Group | Fit:
        split = Split(
            tensor=layout.tensor,
            stages=stages,
            expert_parallel=layout.expert_parallel,
            data_attention=layout.data_attention,
        )
        cards = [place.card for place in layout.places for _ in range(layout.tensor)]
        fit = plan_fit(shape, cards, split, self.demand.load(self.engine, ceil(users)))
        return self._served(shape, layout, fit, users) if fit.fits else fit

    def _served(self, shape: ModelShape, layout: Layout, fit: Fit, users: float) -> Group:
        """users: of one replica, as far as there are any."""
        deployment = Deployment(
            shape=shape,
            engine=self.traits,
            stages=tuple(
                Stage(num_layers=count, machine=place.machine, tensor=layout.tensor, link=place.link)
                for count, place in zip(fit.split.stages, layout.places, strict=True)
            ),
            attention_data=fit.split.groups,
            expert=fit.split.expert,
            hop=layout.hop,
        )
        prediction = predict(
            deployment, self.demand.traffic(users), self.calibration, max_sequences=sequences_held(fit, self.demand)
        )
        return Group(
            layout=layout,
            shape=shape,
            engine=self.engine,
            fit=fit,
            prediction=prediction,
            users=users,
            busy=_busy(layout, self.demand.users * self._share(layout)),
        )

    def _plan(self, group: Group, best: Mapping[int, Group]) -> Plan:
        taken = set(group.layout.pools)
        others = [best[pool.number] for pool in self.pools if pool.number in best and pool.number not in taken]
        groups = self._shared([group, *others]) if len(self.pools) > 1 else [group]
        served = {number for one in groups for number in one.layout.pools}
        idle = [f"{pool.num_cards} x {pool.entry.name}" for pool in self.pools if pool.number not in served]
        for one in groups:
            idle += _left_over(one, self.pools)
        plan = Plan(groups=tuple(groups), idle=tuple(idle))
        return replace(plan, missed=self.demand.slo.missed(plan.ttft_s, plan.itl_s))

    def _shared(self, groups: Sequence[Group]) -> list[Group]:
        """Users go to each replica by its speed; those of few users to the quickest."""
        speeds = [group.layout.replicas * group.prediction.total_tokens_per_s.value for group in groups]
        if self.demand.users < sum(group.layout.replicas for group in groups):
            return self._few_users(groups)
        shares = [speed / sum(speeds) * self.demand.users for speed in speeds]
        return [
            replace(self._again(group, max(1.0, share / group.layout.replicas)), busy=_busy(group.layout, share))
            for group, share in zip(groups, shares, strict=True)
        ]

    def _again(self, group: Group, users: float) -> Group:
        """The same replicas with other users; room for more of them is planned where there is."""
        if ceil(users) > group.fit.load.num_sequences:
            tried = self._tried(group.shape, group.layout, group.fit.split.stages, users)
            if isinstance(tried, Group):
                return tried
        return self._served(group.shape, group.layout, group.fit, users)

    def _few_users(self, groups: Sequence[Group]) -> list[Group]:
        alone = [self._served(group.shape, group.layout, group.fit, 1.0) for group in groups]
        left, found = self.demand.users, []
        for group in sorted(alone, key=lambda group: group.prediction.itl_s.value):
            found.append(replace(group, busy=min(left, group.layout.replicas)))
            left -= found[-1].busy
        return found

    def _refuse(self, layout: Layout, why: str) -> None:
        self.rejected.append(Rejected(what=f"{place_title(layout)}, {layout.split_title}", why=why))

    def _refuse_fit(self, shape: ModelShape, layout: Layout, fit: Fit | None) -> None:
        what = f"{place_title(layout)}, {layout.split_title}"
        quantization = f" in {shape.quantization}" if shape.quantization else ""
        if fit is None or fit.shortage is None:
            self.rejected.append(Rejected(what=what + quantization, why="no division of its layers fits"))
            return
        self.rejected.append(Rejected(what=what + quantization, why=fit.shortage.what, hint=fit.shortage.hint, fit=fit))


def sequences_held(fit: Fit, demand: Demand) -> float:
    """Requests of the mean length that the cache holds; llama.cpp keeps room for the whole context of each."""
    if fit.load.engine == "llama.cpp":
        return max(1.0, float(fit.load.num_sequences))
    traffic = demand.traffic(1.0)
    held = ceil(traffic.mean_prompt_tokens + HELD_OUTPUT * traffic.mean_output_tokens)
    counts = [max(0, rank.cache_room_bytes) / max(1, fit.caches[rank.stage].bytes_of(held)) for rank in fit.ranks]
    return max(1.0, min(counts) * fit.split.groups)


def _busy(layout: Layout, users: float) -> int:
    """Replicas that have a user."""
    return max(1, min(layout.replicas, round(users)))


def _left_over(group: Group, pools: Sequence[Pool]) -> Iterator[str]:
    for number in group.layout.pools:
        used = group.layout.replicas * group.layout.tensor
        used *= sum(place.pool == number for place in group.layout.places)
        if left := pools[number].num_cards - used:
            yield f"{left} x {pools[number].entry.name}"


def _figures(group: Group) -> str:
    return f"{group.tokens_per_s:.0f} tokens/s, ITL {group.prediction.itl_s.value * 1e3:.1f} ms"


def _group_order(group: Group) -> tuple[object, ...]:
    return (*_speed_order(group.tokens_per_s), _effort(group), -group.fit.max_sequences)


def _order(plan: Plan, demand: Demand) -> tuple[object, ...]:
    """Limits first, and how far they are missed; then tokens per second, then the simpler one."""
    return (
        bool(plan.missed),
        equal_step(demand.slo.excess(plan.ttft_s, plan.itl_s)),
        *_speed_order(plan.tokens_per_s),
        sum(_effort(group) for group in plan.groups),
        -plan.max_sequences,
        plan.title,
    )


def _speed_order(tokens_per_s: float) -> tuple[int]:
    return (-equal_step(max(1e-9, tokens_per_s)),)


def equal_step(value: float) -> int:
    """The same for figures that count as equal, as they differ by less than ``EQUAL``; more for larger ones."""
    return round(log(value) / log(1 + EQUAL))


def _effort(group: Group) -> int:
    """How much can go wrong: ranks of one replica, uneven layers, ranks that meet over a network at each layer."""
    layout = group.layout
    unusual = 4 * bool(group.layer_setting) + 16 * layout.over_network
    return layout.num_ranks + unusual + 2 * layout.expert_parallel + 4 * layout.data_attention


def _without_laggards(plans: list[Plan], demand: Demand) -> list[Plan]:
    """Few more tokens per second are not worth users whose answers take much longer than they must."""
    if not plans:
        return plans
    best = plans[0]
    enough, quick_s = best.tokens_per_s / LAGGARD_WORTH, best.answer_s(demand) / LAGGARD
    able = (plan for plan in plans if not plan.missed and plan.tokens_per_s >= enough)
    first = next((plan for plan in able if plan.answer_s(demand) <= quick_s), best)
    return [first, *(plan for plan in plans if plan is not first)]


def _different(plans: Sequence[Plan]) -> list[Plan]:
    seen: dict[str, Plan] = {}
    for plan in plans:
        name = " ".join(sorted(group.title for group in plan.groups)) + plan.groups[0].shape.quantization
        seen.setdefault(name, plan)
    return list(seen.values())
