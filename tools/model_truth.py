# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.6", "transformers>=5.0"]
# ///
"""Writes the table of parameters and cache bytes by which the readers of configs are tested.

Each model is built by transformers' own class on the meta device, where weights take no memory: parameters are counted
from its tensors (a tied one once), and cache bytes from the shapes of its attention modules.

    uv run tools/model_truth.py          # writes tests/catalog/model_truth.json and the defaults of config classes
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

sys.modules["torchvision"] = None  # type: ignore[assignment]

import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.auto import modeling_auto as auto  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/catalog/model_truth.json"
DEFAULTS = ROOT / "src/longboat/catalog/data/config_defaults.json"
PUBLISHED = ROOT / "tests/catalog/published_configs.json"
FAMILIES = ROOT / "tests/catalog/families_by_default.txt"
CLASSES = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForMultimodalLM")
CLASSES += ("AutoModelForSpeechSeq2Seq",)
VISION_CLASS = "AutoModelForImageTextToText"
TEXT_MAPPINGS = (
    auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)
SECTIONS = (
    "_text",
    "_text_model",
    "_vision",
    "_vision_model",
    "_vl",
    "_vl_moe",
    "gemma3",
    "llava",
    "mllama",
    "mistral3",
)
TOWERS = ("vision", "visual", "audio", "encoder")
# Words in the names of fields that say nothing of weights or caches.
ASIDE = (
    "token_id",
    "dropout",
    "pdrop",
    "_std",
    "eps",
    "rope_p",
    "rope_s",
    "rope_t",
    "_coef",
    "output_",
    "initializer",
    "range",
    "return_",
)
ASIDE += (
    "transformers_version",
    "chunk_size_feed",
    "problem_type",
    "is_encoder",
    "id2label",
    "theta",
    "use_cache",
    "loss",
    "_token_index",
    "layerdrop",
)
# As in longboat.catalog.families.unread.
STRUCTURAL = re.compile(
    r"layer|head|expert|dim|size|rank|width|proj|attn|attention|ffn|mlp|moe|mamba|ssm|conv|kv|mem|block|window|state|latent"
    r"|group|tie|bias|norm|expan|embd|d_model|inner|positions|position_emb|pattern|period|index|query|decoder|width|types|freq|step"
)
FUSED = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv")
OUT = ("o_proj", "dense", "c_proj", "out_proj", "attn_proj", "resid_proj")
KEYS_AND_VALUES = (("k_proj", "v_proj"), ("Wk", "Wv"))
LATENT = "kv_a_proj_with_mqa"
STATEFUL = ("Delta", "Lightning", "LinearAttention", "Mamba", "Conv", "Rwkv", "Recurrent", "Cross")


def build(config: Any) -> Any:
    """Return the model on the meta device, by the first automatic class that knows it."""
    with torch.device("meta"):
        failed: Exception | None = None
        for name in (*((VISION_CLASS,) if hasattr(config, "vision_config") else ()), *CLASSES):
            try:
                return getattr(transformers, name).from_config(config)
            except ValueError as error:
                failed = error
    raise failed or ValueError(config.model_type)


def parameters(model: Any) -> int:
    return sum({id(one): one.numel() for one in model.parameters()}.values())


def kv_numbers(module: Any) -> int:
    """Return the numbers that one attention module caches for a token; 0 for a module without a cache."""
    if hasattr(module, LATENT):
        return int(module.kv_a_proj_with_mqa.out_features)
    for name, other in KEYS_AND_VALUES:
        if hasattr(getattr(module, name, None), "weight"):
            key = getattr(module, name)
            value = getattr(module, other, None) or key
            return int(key.weight.shape[0] + value.weight.shape[0])
    fused = next((getattr(module, name) for name in FUSED if hasattr(module, name)), None)
    out = next((getattr(module, name) for name in OUT if hasattr(module, name)), None)
    if fused is None or out is None:
        return 0
    rows = fused.nf if hasattr(fused, "nf") else fused.weight.shape[0]
    inputs = out.weight.shape[0] if hasattr(out, "nf") else out.weight.shape[1]
    return int(rows - inputs)


def index_bytes(module: Any) -> int:
    """Return the bytes of the key that an indexer keeps of a token: 8 bits a number and 4 bytes for each 128."""
    if not type(module).__name__.endswith("Indexer") or not hasattr(module, "wk"):
        return 0
    dim = int(module.wk.weight.shape[0])
    return dim + 4 * -(-dim // 128)


def slides(module: Any, config: Any) -> bool:
    """Return whether the module attends to a window only."""
    index = getattr(module, "layer_idx", None)
    kinds = getattr(config, "layer_types", None)
    if kinds and index is not None:
        return kinds[index] in ("sliding_attention", "chunked_attention")
    if getattr(module, "sliding_window", None):
        return True
    return not kinds and bool(getattr(config, "sliding_window", None)) and getattr(config, "use_sliding_window", True)


def kv_bytes(model: Any) -> tuple[int, int]:
    """Return the bytes in 16 bits that a token adds: past all windows, and besides within them."""
    config = model.config.get_text_config(decoder=True)
    grown = window = 0
    for name, module in model.named_modules():
        stateful = any(word in type(module).__name__ for word in STATEFUL) and not hasattr(module, LATENT)
        if stateful or any(word in name.lower() for word in TOWERS):
            continue
        if getattr(module, "is_kv_shared_layer", False):
            continue
        found = 2 * kv_numbers(module) + index_bytes(module)
        if slides(module, config):
            window += found
        else:
            grown += found
    return grown, window


def row(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table. ``told``: the config as it is published."""
    config = transformers.AutoConfig.for_model(**told)
    model = build(config)
    grown, window = kv_bytes(model)
    told = {"architectures": [type(model).__name__], **told}
    return {
        "name": name,
        "parameters": parameters(model),
        "kv_bytes_per_token": grown,
        "window_kv_bytes_per_token": window,
        "config": told,
    }


def whole(model_type: str) -> dict[str, Any]:
    """Return the default config of a family with all its fields."""
    config = transformers.AutoConfig.for_model(model_type).to_dict()
    return {key: value for key, value in config.items() if value is not None and not aside(key)} | {
        "model_type": model_type
    }


def aside(name: str) -> bool:
    return any(word in name for word in ASIDE)


def class_defaults(kind: type) -> dict[str, Any]:
    """Return what a config class sets for fields that a config.json leaves out, and the names of its other fields."""
    found, names = {}, []
    for field in dataclasses.fields(kind):
        value = field.default
        if aside(field.name) or field.name.startswith("_") or not STRUCTURAL.search(field.name):
            continue
        if isinstance(value, int | str) and value != "" and value is not False:
            found[field.name] = value
        else:
            names.append(field.name)
    return {"defaults": found, "others": names}


def defaults() -> dict[str, dict[str, Any]]:
    table = {}
    for model_type, kind in sorted(transformers.CONFIG_MAPPING.items()):
        if not any(model_type in names for names in TEXT_MAPPINGS) and not model_type.endswith(SECTIONS):
            continue
        if kind.__name__.endswith("Config") and dataclasses.is_dataclass(kind):
            table[model_type] = class_defaults(kind)
    return table


def main() -> None:
    """Write both files; a model that cannot be built is named and left out."""
    rows = []
    cases: list[tuple[str, Any]] = [(one["name"], one["config"]) for one in json.loads(PUBLISHED.read_text())]
    cases += [(f"{kind} (defaults)", kind) for kind in FAMILIES.read_text().split()]
    for name, told in cases:
        try:
            rows.append(row(name, whole(told) if isinstance(told, str) else told))
        except Exception as error:  # a family that this version of transformers cannot build
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    TABLE.write_text("[\n" + ",\n".join(json.dumps(one, sort_keys=True) for one in rows) + "\n]\n")
    lines = (f"{json.dumps(kind)}: {json.dumps(told, sort_keys=True)}" for kind, told in defaults().items())
    DEFAULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(rows)} models in {TABLE}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
