"""Tests of the catalog's data: every entry has its source and plausible numbers, and is found by common names."""

from __future__ import annotations

import datetime

import pytest

from longboat.catalog.entries import Accelerator, Entry, Link
from longboat.catalog.library import Library, built_in_files, built_in_library, load_library, read_catalog_file
from longboat.catalog.names import normal_name
from longboat.core.errors import UserInputError

LIBRARY = built_in_library()
ACCELERATORS = tuple(LIBRARY.accelerators.values())
LINKS = tuple(LIBRARY.links.values())
ENTRIES = tuple(entry for shelf in (getattr(LIBRARY, name) for name in Library.__slots__) for entry in shelf.values())


@pytest.mark.parametrize("origin", [origin for origin, _ in built_in_files()])
def test_every_file_is_read_and_holds_something(origin: str) -> None:
    file = read_catalog_file(dict(built_in_files())[origin], origin)
    assert sum(len(getattr(file, name)) for name in file.__struct_fields__) > 0


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_says_where_it_comes_from(entry: Entry) -> None:
    assert len(entry.source) > 10
    assert datetime.date(2025, 1, 1) <= entry.checked <= datetime.date.today()


def test_names_and_aliases_are_unique_over_all_files() -> None:
    for name in CatalogKinds:
        seen: dict[str, str] = {}
        for origin, text in built_in_files():
            for entry in getattr(read_catalog_file(text, origin), name):
                for written in {normal_name(word) for word in (entry.name, *entry.aliases)}:
                    assert written not in seen, f"{written}: {seen.get(written)} and {entry.name}"
                    seen[written] = entry.name


CatalogKinds = ("accelerator", "link", "engine", "electricity", "api", "cloud", "model")


@pytest.mark.parametrize("card", ACCELERATORS, ids=lambda card: card.name)
def test_accelerator_has_plausible_units(card: Accelerator) -> None:
    assert 4 * 1024 <= card.memory_mib <= 6 * 1024**2
    assert 0.5 <= card.usable_ratio <= 1
    assert 10 <= card.bandwidth_gb_s <= 10_000
    assert card.tflops
    assert all(0.05 <= value <= 20_000 for value in card.tflops.values())
    assert card.tflops.get("fp8", 1e9) >= card.tflops.get("bf16", 0)
    assert card.tdp_w == 0 or 10 <= card.tdp_w <= 2000
    assert (card.price_usd > 0) <= (card.price_date is not None)
    assert 0 <= card.rent_usd_per_hour < 20


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_link_has_plausible_units(link: Link) -> None:
    assert 0.01 <= link.bandwidth_gb_s <= 1000
    assert 0.3 <= link.achievable_ratio <= 1
    assert 1 <= link.latency_us <= 10_000


def test_narrow_types_fall_back_to_wider_ones() -> None:
    old, new = LIBRARY.accelerators["RTX 3090"], LIBRARY.accelerators["RTX 4090"]
    assert old.flops("fp8") == old.flops("bf16") == 71e12
    assert new.flops("fp8") == new.flops("fp4") == 330e12
    assert LIBRARY.accelerators["T4"].flops("bf16") == 65e12
    assert LIBRARY.accelerators["M3 Ultra"].flops("fp16") == 28e12


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("rtx 4090", "RTX 4090"),
        ("RTX4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("a4000", "RTX A4000"),
        ("RTX 6000 Ada", "RTX 6000 Ada"),
        ("H100", "H100 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA B300 SXM6 AC", "B300 SXM"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell"),
        ("dgx spark", "DGX Spark GB10"),
        ("M3 Ultra", "M3 Ultra"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_cards_are_found_by_the_names_people_write(written: str, name: str) -> None:
    assert LIBRARY.accelerators.find(written).name == name


@pytest.mark.parametrize(
    ("written", "name"),
    [("10 GbE", "10GbE"), ("10gbe", "10GbE"), ("HDR", "InfiniBand HDR"), ("nvlink", "NVLink 4"), ("wifi", "Wi-Fi 6")],
)
def test_networks_are_found_by_the_names_people_write(written: str, name: str) -> None:
    assert LIBRARY.links.find(written).name == name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Qwen/Qwen3-32B", "Qwen3-32B"),
        ("llama 3.1 70b", "Llama-3.1-70B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.1-70B"),
        ("deepseek-r1", "DeepSeek-R1"),
    ],
)
def test_models_are_found_by_the_names_people_write(written: str, name: str) -> None:
    assert LIBRARY.models.find(written).name == name


@pytest.mark.parametrize(
    ("written", "near"), [("rtx 4095", "RTX 409"), ("H1000", "H100"), ("qqqqqqqq", "a catalog file")]
)
def test_unknown_names_get_the_nearest_ones(written: str, near: str) -> None:
    with pytest.raises(UserInputError, match=written) as caught:
        LIBRARY.accelerators.find(written, where="nodes[0].gpus")
    assert near in caught.value.hint
    assert caught.value.problems[0].where == "nodes[0].gpus"


OWN = """
[[accelerator]]
name = "RTX 4090"
vendor = "nvidia"
memory_mib = 49140
bandwidth_gb_s = 1008.0
tflops = { bf16 = 165.0 }
source = "our own modified cards"
checked = 2026-11-21
"""


def test_own_file_replaces_ours_by_name() -> None:
    library = load_library([*built_in_files(), ("mine.toml", OWN)])
    assert library.accelerators.find("4090").memory_mib == 49140
    assert len(library.accelerators) == len(LIBRARY.accelerators)


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        (("memory_mib = 49140", "memory_mib = '48 GB'"), "mine.toml: accelerator[0].memory_mib", "Expected `int`"),
        (("memory_mib", "memory_gib"), "mine.toml: accelerator[0]", "unknown field `memory_gib`"),
        (('vendor = "nvidia"', 'vendor = "acme"'), "mine.toml: accelerator[0].vendor", "Invalid enum value 'acme'"),
        (("[[accelerator]]", "[[accelerator]"), "mine.toml", "not TOML"),
    ],
)
def test_mistakes_in_an_own_file_are_told_with_their_path(change: tuple[str, str], where: str, what: str) -> None:
    with pytest.raises(UserInputError) as caught:
        load_library([("mine.toml", OWN.replace(*change))])
    problem = caught.value.problems[0]
    assert problem.where == where
    assert what in problem.what


def test_machine_is_no_mac() -> None:
    with pytest.raises(UserInputError) as refused:
        LIBRARY.accelerators.find("machine")
    assert "M3 Ultra" not in refused.value.hint


@pytest.mark.parametrize("name", ["mac studio", "MacBook Pro", "Mac mini"])
def test_mac_is_answered_with_the_names_of_chips(name: str) -> None:
    with pytest.raises(UserInputError) as refused:
        LIBRARY.accelerators.find(name)
    assert "M3 Ultra" in refused.value.hint
    assert "M4 Max" in refused.value.hint


def test_a_name_that_is_near_none_gets_the_command_that_lists_them() -> None:
    with pytest.raises(UserInputError) as refused:
        LIBRARY.accelerators.find("zzzzzz")
    assert refused.value.hint.startswith("longboat plan list cards ")
