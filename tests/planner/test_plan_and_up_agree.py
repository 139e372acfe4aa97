"""`longboat plan` and `longboat up` choose alike: the same search, the same ranking, on 200 generated cases.

A fleet file gives a model one split. So where there are several sorts of machines, the best plan whose replicas are all
alike is compared; `longboat plan` may add replicas of other splits on what such a plan leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from planner_builders import node

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.plan import EngineMemory
from longboat.core.topology import Node
from longboat.core.wanted import WantedLoad, WantedModel
from longboat.planner.fleet.choose import Choice, KnownModel, choose
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.planner.fleet.placement_context import PlacementContext
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand, Slo
from longboat.planner.search.ranking import Plan, ranked
from longboat.planner.search.search import search

LIBRARY, CALIBRATION = built_in_library(), built_in_calibration()
CARDS = ("RTX 4090", "RTX 3090", "RTX A4000", "RTX A5000", "L40S", "A100", "H100")
MODELS = (
    ("Qwen3-0.6B", ""),
    ("Qwen3-8B", ""),
    ("Qwen3-8B", "awq"),
    ("Qwen3-32B", "awq"),
    ("Qwen3-32B", "fp8"),
    ("Qwen3-30B-A3B", ""),
    ("Llama-3.1-70B", "awq"),
)
LENGTHS = ((128, 128), (1024, 256), (3072, 1024))
# vLLM's own settings, as an engine without arguments has them.
PLAIN = EngineMemory()


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its load, and nodes: how many of how many cards of which sort."""

    model: tuple[str, str]
    machines: tuple[tuple[int, int, str], ...]
    users: int
    lengths: tuple[int, int]
    itl_s: float | None

    @property
    def shape(self) -> ModelShape:
        name, quantization = self.model
        found = shape_of_entry(LIBRARY.models.find(name))
        return requantized(found, quantization) if quantization else found

    @property
    def demand(self) -> Demand:
        prompt, output = self.lengths
        return Demand(
            users=self.users,
            prompt_tokens=prompt,
            output_tokens=output,
            slo=Slo(itl_s=self.itl_s),
            expert_parallel=False,
        )

    @property
    def text(self) -> str:
        return " + ".join(f"{count}x({each}x{card})" for count, each, card in self.machines)

    @property
    def nodes(self) -> tuple[Node, ...]:
        kinds = [(each, card) for count, each, card in self.machines for _ in range(count)]
        return tuple(
            node(number, cpus=64, gpus=each, **{"longboat.accelerator": card.replace(" ", "-")})
            for number, (each, card) in enumerate(kinds, 1)
        )

    @property
    def wanted(self) -> WantedModel:
        prompt, output = self.lengths
        load = WantedLoad(
            users=self.users,
            prompt_tokens=prompt,
            output_tokens=output,
            lengths_given=True,
            itl_ms=self.itl_s * 1e3 if self.itl_s else None,
        )
        return WantedModel(name="m", source="hf:a/m", replicas=None, tensor=None, pipeline=None, load=load)


def cases(count: int, seed: int, *, sorts: int) -> list[Case]:
    random, found = Random(seed), []
    while len(found) < count:
        cards = random.sample(CARDS, sorts)
        found.append(
            Case(
                model=random.choice(MODELS),
                machines=tuple((random.randint(1, 4), random.choice((1, 1, 2, 4, 8)), card) for card in cards),
                users=random.choice((1, 2, 3, 8, 20, 64, 256)),
                lengths=random.choice(LENGTHS),
                itl_s=random.choice((None, None, 0.02, 0.05)),
            )
        )
    return found


def chosen(case: Case) -> Choice:
    """Return what `up` decides."""
    inputs = PlannerInputs(nodes=case.nodes, platforms={"m": "cuda"}, library=LIBRARY, calibration=CALIBRATION)
    return choose(KnownModel(PlacementContext(case.wanted, inputs), case.shape, PLAIN), [])


def described(plan: Plan, users: int) -> tuple[object, ...]:
    """Return cards and layers of the stages, ranks, and the replicas that have a user."""
    (one,) = plan.groups
    cards = tuple(place.card.name for place in one.layout.places)
    return cards, one.fit.split.stages, one.layout.tensor, one.layout.over_network, min(one.layout.replicas, users)


def same(case: Case, plan: Plan | None) -> None:
    """Assert that `up` chooses what ``plan`` says, or that both find nothing that fits."""
    best = chosen(case).best
    assert best is not None
    if plan is None:
        assert not best.fit.fits
        return
    mine = Plan(groups=(best,), missed=best.missed)
    assert described(mine, case.users) == described(plan, case.users), (case, mine.title, plan.title)
    assert mine.tokens_per_s == pytest.approx(plan.tokens_per_s, rel=0.03), case
    assert bool(mine.missed) == bool(plan.missed)


@pytest.mark.parametrize("seed", range(6))
def test_on_machines_of_one_sort_up_chooses_the_best_plan(seed: int) -> None:
    for case in cases(20, seed, sorts=1):
        found = search([case.shape], parse_cluster(case.text, LIBRARY), case.demand, "vllm", CALIBRATION)
        same(case, found.best)


@pytest.mark.parametrize("seed", range(4))
def test_on_machines_of_several_sorts_up_chooses_the_best_plan_with_one_split(seed: int) -> None:
    for case in cases(20, 100 + seed, sorts=2):
        found = search([case.shape], parse_cluster(case.text, LIBRARY), case.demand, "vllm", CALIBRATION)
        one_split = ranked((plan for plan in found.plans if len(plan.groups) == 1), case.demand)
        same(case, one_split[0] if one_split else None)
