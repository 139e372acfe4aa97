"""Properties that every plan has, over generated machines, models and loads."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from longboat.catalog.formats.hf_config import parse_config
from longboat.catalog.library import Library, built_in_library
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.model_shape import ModelShape
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import planner_for
from longboat.core.errors import UserInputError
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.search.demand import parse_slo
from longboat.planner.search.ranking import Plan

# Each run tries the same cases, so CI takes the first part of them; a developer's run takes all.
CASES = 100 if os.environ.get("CI") else 300
# Few layers, so that many cases take little time, and as many bytes as models of 5 to 70 GiB have.
DENSE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 64, "vocab_size": 32000}
MODELS = {
    "narrow": DENSE | {"num_hidden_layers": 6, "hidden_size": 8192, "intermediate_size": 28672},
    "wide": DENSE | {"num_hidden_layers": 8, "hidden_size": 16384, "intermediate_size": 53248},
    "long": DENSE | {"num_hidden_layers": 12, "hidden_size": 16384, "intermediate_size": 53248},
    "experts": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "num_hidden_layers": 8,
        "hidden_size": 4096,
        "moe_intermediate_size": 3072,
        "intermediate_size": 12288,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    },
}
COMMON = {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}
CARDS = ("RTX4090", "RTX3090", "L40S", "A100", "H100", "B200", "T4", "M3 Ultra")
NETWORKS = ("1GbE", "10GbE", "200GbE RoCE")
USERS = (1, 8, 100, 5000)
# Plans whose speeds differ by less count as equal (``ranking.EQUAL``).
EQUAL = 0.97


@pytest.fixture(scope="module")
def library() -> Library:
    return built_in_library()


@cache
def shape_of(model: str) -> ModelShape:
    return shape_from_config(parse_config(json.dumps(MODELS[model] | COMMON), model), name=model)


def best(model: str, on: str, users: int, *, slo: str = "", quantization: str = "") -> Plan | None:
    """Return the best plan; None where nothing fits."""
    planner = planner_for(PlanRequest(on=on, concurrency=users, slo=slo, quantization=quantization))
    try:
        return planner.brief(shape_of(model)).best
    except UserInputError:
        return None


def fastest(model: str, on: str, users: int, quantization: str) -> float:
    """Return the tokens per second of the fastest plan, wherever it is ranked; 0 where nothing fits."""
    planner = planner_for(PlanRequest(on=on, concurrency=users, quantization=quantization))
    try:
        return max(plan.tokens_per_s for plan in planner.brief(shape_of(model)).plans)
    except UserInputError:
        return 0.0


def titles(model: str, on: str, users: int) -> list[tuple[str, float]]:
    """Return what each plan is, in their order, and its tokens per second; nothing where none fits."""
    try:
        plans = planner_for(PlanRequest(on=on, concurrency=users)).brief(shape_of(model)).plans
    except UserInputError:
        return []
    return [(plan.title, round(plan.tokens_per_s, 6)) for plan in plans]


def speed(plan: Plan | None) -> float:
    return plan.tokens_per_s if plan else 0.0


def machine(random: Random, most_cards: int = 4) -> str:
    card = random.choice(CARDS)
    cards = 1 if card == "M3 Ultra" else random.choice((1, 2, most_cards))
    return f"{random.choice((1, 1, 2))}x({cards}x{card})"


def cases(name: str, most_cards: int = 4) -> Iterator[tuple[Random, str, str, str, int]]:
    """Yield a random source, a model, nodes of one kind, a network and users for each case."""
    random = Random(name)
    for _ in range(CASES):
        yield (
            random,
            random.choice(list(MODELS)),
            machine(random, most_cards),
            random.choice(NETWORKS),
            random.choice(USERS),
        )


def test_more_machines_are_never_worse() -> None:
    for random, model, nodes, network, users in cases("machines", most_cards=2):
        fewer = best(model, f"{nodes}, net={network}", users)
        more = best(model, f"{nodes} + {machine(random, 2)}, net={network}", users)
        assert speed(more) >= EQUAL * speed(fewer), (model, nodes, network, users)


def test_more_nodes_of_the_same_kind_are_never_worse() -> None:
    for random, model, nodes, network, users in cases("nodes"):
        count, node = nodes.split("x", 1)
        fewer = best(model, f"{nodes}, net={network}", users)
        more = best(model, f"{int(count) + random.randint(1, 3)}x{node}, net={network}", users)
        assert speed(more) >= EQUAL * speed(fewer), (model, nodes, network, users)


def test_a_further_node_never_makes_a_pipeline_of_llama_cpp_worse() -> None:
    """llama.cpp's stages do not overlap: a slow node more must not be taken because it is there.

    The fastest plans are compared: of two that differ by a tenth, the one on equal cards is put first.
    """
    for random, model, _, network, users in cases("llama.cpp"):
        kinds = random.sample(("RTX4090", "RTX3090", "L40S", "T4", "M3 Ultra", "EPYC9004 128GB"), 3)
        counts = [random.choice((1, 2, 3)) for _ in kinds[:2]] + [0]
        more = list(counts)
        more[random.randrange(3)] += 1
        users, asked = min(users, 8), random.choice(("stored", "q4"))
        first, second = (
            fastest(model, f"{nodes}, net={network}, engine=llama.cpp", users, asked)
            for nodes in (
                " + ".join(f"{count}x({kind})" for count, kind in zip(told, kinds, strict=True) if count)
                for told in (counts, more)
            )
        )
        assert second >= EQUAL * first, (model, kinds, counts, more, network, users, asked)


def test_more_memory_is_never_worse_in_the_same_format() -> None:
    for random, model, _, network, users in cases("memory"):
        nodes = f"{random.choice((1, 2))}x({random.choice((1, 2, 4))}x{random.choice(('A100', 'RTX4090', 'H100'))}"
        asked, small = random.choice(("stored", "fp8", "awq")), random.choice((24, 40, 48, 80))
        little = best(model, f"{nodes} {small}GiB), net={network}", users, quantization=asked)
        much = best(
            model, f"{nodes} {small + random.choice((8, 16, 61))}GiB), net={network}", users, quantization=asked
        )
        assert speed(much) >= EQUAL * speed(little), (model, nodes, small, network, users, asked)


def test_more_users_never_get_fewer_tokens_in_total() -> None:
    for random, model, nodes, network, users in cases("users"):
        fewer = speed(best(model, f"{nodes}, net={network}", users))
        more = speed(best(model, f"{nodes}, net={network}", users * random.choice((2, 10, 1000))))
        assert more >= 0.9 * fewer, (model, nodes, network, users)


def test_a_tighter_limit_never_brings_more() -> None:
    for random, model, nodes, network, users in cases("slo"):
        itl_ms, ttft_ms = random.choice((10, 20, 40, 80)), random.choice((100, 500, 2000, 10000))
        tight = best(model, f"{nodes}, net={network}", users, slo=f"itl={itl_ms}ms,ttft={ttft_ms}ms")
        loose = best(model, f"{nodes}, net={network}", users, slo=f"itl={2 * itl_ms}ms,ttft={2 * ttft_ms}ms")
        if tight is not None and not tight.missed:
            assert loose is not None and not loose.missed
            assert speed(loose) >= EQUAL * speed(tight), (model, nodes, network, users, itl_ms, ttft_ms)


def test_the_order_of_nodes_changes_nothing() -> None:
    for random, model, nodes, network, users in cases("order", most_cards=1):
        other = machine(random, 1)
        first = best(model, f"{nodes} + {other}, net={network}", users)
        second = best(model, f"{other} + {nodes}, net={network}", users)
        assert speed(first) == pytest.approx(speed(second), rel=1e-9), (model, nodes, other, network, users)


def test_the_order_of_nodes_changes_no_plan_of_equal_ones() -> None:
    """Plans that tie, and links that make two sorts of one card, have one order too."""
    for random, model, _, network, users in cases("ties"):
        kinds = random.choices(("RTX4090", "RTX3090", "A100", "L40S", "RTX A6000", "H100 PCIe"), k=3)
        nodes = [f"{random.choice((1, 2))}x({random.choice((1, 2))}x{kind})" for kind in kinds]
        first, second = (
            titles(model, f"{' + '.join(told)}, net={network}", users)
            for told in (nodes, random.sample(nodes, len(nodes)))
        )
        assert first == second, (model, nodes, network, users)


def test_machines_and_limits_are_written_as_they_are_read(library: Library) -> None:
    for random, _, nodes, network, users in cases("units"):
        sized = nodes.replace(")", f" {random.choice((24, 40, 80, 200))}GiB)") if random.random() < 0.3 else nodes
        cluster = parse_cluster(f"{sized} + {machine(random)}, net={network}", library)
        again = parse_cluster(cluster.title, library)
        assert [(kind.key, kind.count) for kind in again.kinds] == [(kind.key, kind.count) for kind in cluster.kinds]
        assert again.title == cluster.title
        assert parse_slo(f"itl={users}ms") == parse_slo(f"itl={users / 1000:.3f}s")
