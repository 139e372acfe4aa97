"""Writes LoRA adapters in PEFT's format, with random weights that are large enough to change answers; PEFT can too."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
from array import array
from collections.abc import Mapping
from pathlib import Path

__all__ = ("PEFT", "TINY_MODULES", "make_by_peft", "write_adapter")

PEFT = os.environ.get("LONGBOAT_TEST_PEFT", "")
"""A folder with PEFT; empty: there is none."""
TOOL = Path(__file__).resolve().parent.parent / "tools" / "peft_adapters.py"

TINY_MODULES: dict[str, tuple[int, int]] = {
    "self_attn.q_proj": (128, 256),
    "self_attn.v_proj": (128, 128),
    "self_attn.o_proj": (256, 128),
    "mlp.down_proj": (384, 128),
}
"""Matrices of ``builtin:tiny``: inputs and outputs."""
LAYERS = 4


def write_adapter(
    folder: Path,
    seed: int,
    *,
    rank: int = 4,
    modules: Mapping[str, tuple[int, int]] = TINY_MODULES,
    layers: int = LAYERS,
    spread: float = 1.0,
    config: Mapping[str, object] = {},
) -> Path:
    """Write an adapter whose numbers depend on ``seed`` only, and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "builtin:tiny",
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
    }
    (folder / "adapter_config.json").write_text(json.dumps({**told, **config}))
    draw, header, data = random.Random(seed), {}, b""
    for layer in range(layers):
        for name, (inputs, outputs) in modules.items():
            for half, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                numbers = array("f", [draw.uniform(-spread, spread) / rank for _ in range(shape[0] * shape[1])])
                key = f"base_model.model.model.layers.{layer}.{name}.lora_{half}.weight"
                start, data = len(data), data + numbers.tobytes()
                header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def make_by_peft(python: str, model: Path, folder: Path, *, number: int, tokens: int) -> Path:
    """Have PEFT make the adapters ``ad0``, ``ad1`` … of ``model``, and answer with each; return their folder.

    python: an interpreter with torch and transformers
    """
    words = (python, str(TOOL), str(model), str(folder), str(number), str(tokens))
    subprocess.run(words, env={**os.environ, "PYTHONPATH": PEFT}, check=True, timeout=600)
    return folder
