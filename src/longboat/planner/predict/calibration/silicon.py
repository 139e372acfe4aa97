"""What the columns of aiconfigurator's ``silicon_sample.csv`` mean, and what its rows do not say but their source does.

Most of its rows come from the daily sweeps of SemiAnalysis' InferenceX (formerly InferenceMAX). Their recipes are
public: ``benchmarks/single_node`` of that repository, looked up 2026-11-22.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ("SILICON_NAMES", "is_repeated", "is_silicon", "poll_steps_of", "spread_of")

Cells = Mapping[str, str]

SILICON_NAMES = {
    "model_path": "model",
    "system": "hardware",
    "backend": "engine",
    "precision": "quantization",
    "tp_size": "tensor",
    "pp_size": "pipeline",
    "attention_dp_size": "attention_data",
    "moe_ep_size": "expert",
    "batch_size": "concurrency",
    "isl": "prompt_tokens",
    "osl": "output_tokens",
    "silicon_ttft_ms": "ttft_ms",
    "silicon_tpot_ms": "itl_ms",
    "silicon_data_source": "source",
}
# An artefact of that file: these repeat the values of smaller degrees.
REPEATED_TENSOR = ("16", "64")
# The sweeps draw lengths between 80 and 100 %; the other sources in that file use equal lengths.
SWEEP = re.compile(r"^db-dump/|^source_file=\d{4}-\d\d-\d\d\.csv|gap-analysis\.csv")
SWEEP_SPREAD = 0.2
# The recipes of SGLang on these set ``--scheduler-recv-interval`` to 30 from 16 requests on, else to 10. Those of GLM
# leave it at 1, but for FP4: always 10. Those for older hardware never set it.
POLLING_HARDWARE = ("b200", "b300", "gb200", "gb300")
MANY_REQUESTS = 16.0
POLL_STEPS_OF_MANY, POLL_STEPS_OF_FEW = 30.0, 10.0


def is_silicon(columns: Mapping[str, object]) -> bool:
    """Return whether a line has that file's columns."""
    return "silicon_ttft_ms" in columns


def is_repeated(cells: Cells) -> bool:
    """Return whether a row is a copy of another one."""
    return cells["tensor"] in REPEATED_TENSOR


def spread_of(cells: Cells) -> float:
    """Return ``Load.spread`` of a row."""
    return SWEEP_SPREAD if _is_sweep(cells) else 0.0


def poll_steps_of(cells: Cells, concurrency: float) -> float:
    """Return ``EngineTraits.poll_steps`` of a row."""
    hardware = cells["hardware"].lower()
    if cells["engine"].lower() != "sglang" or not hardware.startswith(POLLING_HARDWARE) or not _is_sweep(cells):
        return 1.0
    if "glm" in cells["model"].lower():
        return POLL_STEPS_OF_FEW if "fp4" in cells["quantization"].lower() else 1.0
    return POLL_STEPS_OF_MANY if concurrency >= MANY_REQUESTS else POLL_STEPS_OF_FEW


def _is_sweep(cells: Cells) -> bool:
    return bool(SWEEP.search(cells.get("source", "")))
