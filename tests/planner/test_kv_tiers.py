"""Tiers behind the cache: what they keep, and when loading is quicker than computing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longboat.cli.plan.outputs.what_if_notes import tier_notes
from longboat.cli.plan.plan_options import PlanRequest
from longboat.cli.plan.planning import planner_for
from longboat.core.errors import UserInputError
from longboat.planner.compare.kv_tiers import TierGain, parse_tier, tier_gain
from longboat.planner.machines.pools import pools_of


def gain(tier: str, on: str = "1xH100", model: str = "Qwen3-8B", prompt_tokens: int = 8000) -> TierGain:
    planner = planner_for(PlanRequest(on=on, prompt_tokens=prompt_tokens, offline=True))
    found = planner.plan(planner.read(model))
    return tier_gain(parse_tier(tier), found.plans[0].groups[0], pools_of(found.cluster), planner.calibration)


def test_ram_keeps_its_size_in_tokens_and_loads_them_over_pcie() -> None:
    """Qwen3-8B: 36 layers of 8 heads of 128, 147,456 bytes a token; 51.2 GB/s are reached over PCIe 5 x16."""
    found = gain("ram 256GiB")
    assert found.tokens == 256 * 2**30 // 147_456
    assert found.load_s == pytest.approx(1e-3 + found.prompt_tokens * 147_456 / 51.2e9, rel=0.01)
    assert found.is_worth_it
    assert found.load_s < found.compute_s / 5


def test_every_node_and_every_rank_counts() -> None:
    one, two = gain("ram 256GiB", "8xH100", "Llama-3.1-70B"), gain("ram 256GiB", "2x(8xH100)", "Llama-3.1-70B")
    assert two.tokens == pytest.approx(2 * one.tokens, abs=1)


def test_a_slow_disk_is_slower_than_computing() -> None:
    slow, quick = gain("disk 2TB 0.2GB/s"), gain("disk 2TB 7GB/s")
    assert not slow.is_worth_it
    assert quick.is_worth_it
    assert slow.needed_bytes_per_s is not None and 0.2e9 < slow.needed_bytes_per_s < 7e9
    assert not any(first <= slow.prompt_tokens <= last for first, last in slow.worth)
    assert any("is slower" in note for note in tier_notes(slow))
    assert any("saves" in note for note in tier_notes(quick))


def test_a_disk_with_the_needed_speed_breaks_even() -> None:
    needed = gain("disk 2TB").needed_bytes_per_s or 0.0
    even = gain(f"disk 2TB {needed / 1e9:.6f}GB/s")
    assert even.load_s == pytest.approx(even.compute_s, rel=0.01)


def test_memory_that_is_the_machines_own_has_no_ram_behind_it() -> None:
    with pytest.raises(UserInputError, match="no memory apart"):
        gain("ram 256GiB", "M3 Ultra")


@pytest.mark.parametrize("tier", ["ram 256GiB", "disk 2TB"])
def test_a_plan_of_a_part_of_the_machines_reads_its_own_nodes(tier: str) -> None:
    alone, beside = (gain(tier, on) for on in ("2x(8xL4), net=10GbE", "2x(8xL4) + 1x(M3 Ultra), net=10GbE"))
    assert beside == alone


def test_where_computing_takes_less_than_looking_up_no_speed_is_named() -> None:
    found = gain("disk 2TB", model="Qwen3-0.6B", prompt_tokens=100)
    assert found.needed_bytes_per_s is None
    assert any("at any speed" in note for note in tier_notes(found))
    assert found.longest <= 40_960


def test_an_engine_without_tiers_is_refused() -> None:
    planner = planner_for(PlanRequest(on="2xRTX4090", engine="llama.cpp", offline=True))
    found = planner.plan(planner.read("Qwen3-8B"))
    with pytest.raises(UserInputError, match=r"llama\.cpp loads no caches"):
        tier_gain(parse_tier("ram 256GiB"), found.plans[0].groups[0], pools_of(found.cluster), planner.calibration)


@pytest.mark.parametrize("text", ["", "ram", "ram 0GiB", "tape 2TB", "disk 2TB 0GB/s", "ram 256", "disk 2TB 7"])
def test_a_tier_that_is_not_understood_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserInputError) as refused:
        parse_tier(text)
    assert "--kv-tier" in str(refused.value.hint)


def test_lengths_for_which_loading_is_quicker_have_no_holes_untold() -> None:
    """On eight cards, a short prompt takes a whole read of the weights, and a long one much attention."""
    found = gain("disk 2TB", "8xH200", "DeepSeek-R1", 1024)
    assert not found.is_worth_it
    assert not any(first <= found.prompt_tokens <= last for first, last in found.worth)


def test_states_count_beside_what_grows_with_a_prompt(tmp_path: Path) -> None:
    """Each of Mamba's 64 layers keeps a state, whatever the length: 10 GiB have room for some hundred prompts."""
    config = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 4096, "state_size": 16}
    config |= {"num_hidden_layers": 64, "vocab_size": 65024, "intermediate_size": 8192, "time_step_rank": 256}
    config |= {"conv_kernel": 4, "expand": 2, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    planner = planner_for(PlanRequest(on="1xH100", prompt_tokens=8000, offline=True))
    (state,) = {layer.cache.state_bytes for layer in planner.read(str(tmp_path)).layers}
    found = gain("ram 10GiB", model=str(tmp_path))
    assert found.tokens // found.prompt_tokens == 10 * 2**30 // (64 * state)
