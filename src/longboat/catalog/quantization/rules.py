"""Reads how a model's files store numbers: quantization_config and hf_quant_config.json become rules by weight.

Bits include scales and zero points. Formats as the producers document them: AutoAWQ and GPTQ (one fp16 scale and one
packed zero per group), compressed-tensors, OCP MXFP4 (one 8-bit exponent for 32), NVFP4 (one 8-bit scale for 16),
bitsandbytes NF4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from longboat.catalog.formats.config_fields import Fields

__all__ = ("NOT_QUANTIZED", "Form", "Quantization", "Rule", "read_quantization")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The storage format of a weight's numbers; fields as in ``Weight``."""

    bits: float
    group: int = 0
    row_group: int = 0
    per_row_bits: float = 0.0  # bits of one scale per row


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The form of the weights whose path matches one of ``patterns``."""

    form: Form
    patterns: tuple[str, ...] = ()  # empty: all linear weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The rules of a model: the first that matches counts."""

    name: str = ""  # method as users know it (``fp8``, ``awq``, ``nvfp4``); ``""``: none
    rules: tuple[Rule, ...] = ()
    excluded: tuple[str, ...] = ()  # patterns of weights that are not quantized
    experts_only: bool = False  # only experts are quantized (MXFP4 of gpt-oss)
    ends: bool = False  # embedding and head are quantized too (MLX)
    kv_cache_dtype: str = ""
    estimate: tuple[str, ...] = ()


NOT_QUANTIZED = Quantization()
FP8 = Form(bits=8.0)
FP8_CHANNEL = Form(bits=8.0, per_row_bits=32.0)
INT8_CHANNEL = Form(bits=8.0, per_row_bits=32.0)
MXFP4 = Form(bits=4.25, group=32)
NVFP4 = Form(bits=4.5, group=16)
NF4_DOUBLE = Form(bits=4.0 + 8 / 64 + 32 / (64 * 256), group=0)
NF4 = Form(bits=4.5)
# Algorithms of NVIDIA's Model Optimizer.
MODELOPT = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL,
    "FP8_PB_WO": Form(bits=8.0 + 32 / 128**2, group=128, row_group=128),
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "MXFP4": MXFP4,
    "W4A8_MXFP4_FP8": MXFP4,
    "MXFP8": Form(bits=8.25, group=32),
    "W4A16_AWQ": Form(bits=4.125, group=128),
    "W4A8_AWQ": Form(bits=4.125, group=128),
    "INT4_AWQ": Form(bits=4.125, group=128),
    "W8A8_SQ_PER_CHANNEL": INT8_CHANNEL,
    "INT8_SQ": INT8_CHANNEL,
}


def read_quantization(config: Mapping[str, object], beside: Mapping[str, object] | None = None) -> Quantization:
    """Return the rules in a config.json, or in the hf_quant_config.json ``beside`` it."""
    root = Fields(config)
    for section in (root, root.section("text_config")):
        if found := section.section("quantization_config", "compression_config"):
            return _from_config(found, root, beside)
        if (mlx := section.section("quantization")) and mlx.count("bits"):
            return _mlx(mlx)
    if beside is not None and (told := Fields(beside).section("quantization")):
        return _modelopt(told)
    return NOT_QUANTIZED


def _from_config(found: Fields, root: Fields, beside: Mapping[str, object] | None) -> Quantization:
    method = found.word("quant_method", "quant_algo").lower()
    if found.word("moe_quant_algo") or method in ("modelopt", "modelopt_fp4", "modelopt_mixed"):
        told = Fields(beside).section("quantization") if beside is not None else Fields({})
        if told and told.word("quant_algo") not in ("", "MIXED_PRECISION"):
            return _modelopt(told)
        return _mixed(found, told)
    match method:
        case "fp8" | "fbgemm_fp8":
            return _fp8(found, root)
        case "awq" | "gptq" | "gptq_marlin" | "awq_marlin" | "auto-round" | "intel/auto-round" | "inc":
            return _grouped(found, method)
        case "mxfp4":
            return Quantization(name="mxfp4", rules=(Rule(form=MXFP4),), excluded=_excluded(found), experts_only=True)
        case "bitsandbytes":
            return _bitsandbytes(found)
        case "compressed-tensors":
            return _compressed_tensors(found)
        case _:
            return _unknown(found, method)


def _excluded(found: Fields) -> tuple[str, ...]:
    names = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules")
    return tuple(pattern for name in names for pattern in found.words(name))


def _fp8(found: Fields, root: Fields) -> Quantization:
    block = found.numbers("weight_block_size")
    # Scales stored as bare exponents take 8 bits; others are fp32.
    scale_bits = 8 if found.word("scale_fmt") == "ue8m0" and root.word("expert_dtype") else 32
    form = FP8_CHANNEL if found.word("quant_method") == "fbgemm_fp8" else FP8
    if len(block) == 2:
        form = Form(bits=8.0 + scale_bits / (block[0] * block[1]), group=block[1], row_group=block[0])
    rules: tuple[Rule, ...] = (Rule(form=form),)
    if root.word("expert_dtype") == "fp4":
        rules = (Rule(form=MXFP4, patterns=("re:.*\\.experts\\..*",)), *rules)
    return Quantization(name="fp8", rules=rules, excluded=_excluded(found))


def _grouped(found: Fields, method: str) -> Quantization:
    bits, group = found.count("bits", "w_bit", default=4), found.count("group_size", "q_group_size")
    name = {"gptq_marlin": "gptq", "awq_marlin": "awq"}.get(method, method)
    return Quantization(name=name, rules=(Rule(form=grouped_form(bits, group)),), excluded=_excluded(found))


def grouped_form(bits: int, group: int, *, zeros: bool = True) -> Form:
    """Return integers with one fp16 scale and a packed zero point per group; group 0: per row."""
    extra = 16 + (bits if zeros else 0)
    return Form(bits=bits + extra / group, group=group) if group else Form(bits=float(bits), per_row_bits=float(extra))


def _bitsandbytes(found: Fields) -> Quantization:
    if found.flag("load_in_8bit") or found.flag("_load_in_8bit"):
        form = INT8_CHANNEL
    else:
        form = NF4_DOUBLE if found.flag("bnb_4bit_use_double_quant") else NF4
    return Quantization(name="bitsandbytes", rules=(Rule(form=form),), excluded=_excluded(found))


def _compressed_tensors(found: Fields) -> Quantization:
    groups = [Fields(group) for group in found.section("config_groups").values.values() if isinstance(group, dict)]
    rules = tuple(_compressed_rule(group) for group in groups)
    name = found.word("format").removesuffix("-pack-quantized").removesuffix("-quantized") or "compressed-tensors"
    kv = "fp8" if found.section("kv_cache_scheme").count("num_bits") == 8 else ""
    return Quantization(
        name=name if name in ("mxfp4", "nvfp4") else "compressed-tensors",
        rules=tuple(sorted(rules, key=lambda rule: not rule.patterns)),
        excluded=_excluded(found),
        kv_cache_dtype=kv,
    )


def _compressed_rule(group: Fields) -> Rule:
    targets = tuple(target for target in group.words("targets") if target not in ("Linear", "LinearBase"))
    return Rule(form=_compressed_form(group.section("weights")), patterns=targets)


def _compressed_form(weights: Fields) -> Form:
    bits, group = weights.count("num_bits", default=16), weights.count("group_size")
    if weights.word("type") == "float" and bits == 4:
        return MXFP4 if group == 32 else NVFP4
    if block := weights.numbers("block_structure"):
        return Form(bits=bits + 32 / (block[0] * block[-1]), group=block[-1], row_group=block[0])
    if weights.word("type") == "float" and not group:
        return FP8 if weights.word("strategy") in ("", "tensor") else FP8_CHANNEL
    return grouped_form(bits, group, zeros=not weights.flag("symmetric", True))


def _modelopt(told: Fields) -> Quantization:
    """Read hf_quant_config.json's ``quantization``."""
    algorithm = told.word("quant_algo")
    if algorithm == "MIXED_PRECISION":
        return _mixed(Fields({}), told)
    form = MODELOPT.get(algorithm)
    if form is None:
        return _unknown(told, algorithm.lower()) if algorithm else NOT_QUANTIZED
    doubt = () if _excluded(told) else ("weights: hf_quant_config.json does not say which weights stay unquantized",)
    return Quantization(
        name=_family(algorithm),
        rules=(Rule(form=form),),
        excluded=_excluded(told),
        kv_cache_dtype="fp8" if told.word("kv_cache_quant_algo") == "FP8" else "",
        estimate=doubt,
    )


def _mixed(found: Fields, told: Fields) -> Quantization:
    """Read Model Optimizer's config: groups with targets, or a table of layers and their algorithms."""
    table = told.section("quantized_layers") or found.section("quantized_layers")
    if rules := _table_rules(table):
        block = found.numbers("weight_block_size")
        if found.word("quant_method") == "fp8" and len(block) == 2:
            rest = Form(bits=8.0 + 8 / (block[0] * block[1]), group=block[1], row_group=block[0])
            rules = (*rules, Rule(form=rest))
        return Quantization(name="nvfp4", rules=rules, kv_cache_dtype=_kv_dtype(found, told))
    algorithm = found.word("quant_algo")
    groups = [Fields(group) for group in found.section("config_groups").values.values() if isinstance(group, dict)]
    rules = tuple(_compressed_rule(group) for group in groups)
    if not rules and algorithm in MODELOPT:
        rules = (Rule(form=MODELOPT[algorithm]),)
    return Quantization(
        name=_family(algorithm),
        rules=tuple(sorted(rules, key=lambda rule: not rule.patterns)),
        excluded=_excluded(found) or _excluded(told),
        kv_cache_dtype=_kv_dtype(found, told),
    )


def _table_rules(table: Fields) -> tuple[Rule, ...]:
    by_form: dict[Form, list[str]] = {}
    for path, entry in table.values.items():
        form = MODELOPT.get(Fields(entry).word("quant_algo")) if isinstance(entry, dict) else None
        if form is not None:
            by_form.setdefault(form, []).append(path)
    return tuple(Rule(form=form, patterns=tuple(paths)) for form, paths in by_form.items())


def _kv_dtype(found: Fields, told: Fields) -> str:
    eight_bits = found.section("kv_cache_scheme").count("num_bits") == 8 or found.word("kv_cache_scheme") == "FP8"
    return "fp8" if eight_bits or told.word("kv_cache_quant_algo") == "FP8" else ""


def _family(algorithm: str) -> str:
    families: Iterable[str] = ("nvfp4", "mxfp4", "fp8", "awq")
    return next((family for family in families if family in algorithm.lower()), algorithm.lower() or "modelopt")


def _mlx(told: Fields) -> Quantization:
    """Read MLX's config: integers with one fp16 scale and one fp16 bias per group, embedding and head included."""
    bits, group = told.need("bits"), told.count("group_size", default=64)
    return Quantization(name="mlx", rules=(Rule(form=Form(bits=bits + 32 / group, group=group)),), ends=True)


def _unknown(found: Fields, method: str) -> Quantization:
    bits = found.count("bits", "nbits", "w_bit", "weight_bits", default=8)
    return Quantization(
        name=method or "unknown",
        rules=(Rule(form=grouped_form(bits, found.count("group_size", default=128))),),
        excluded=_excluded(found),
        estimate=(
            f"weights: quantization {method or 'without a name'} is unknown: counted with {bits} bits per number",
        ),
    )
