"""Writes what Longboat and AIConfigurator predict for twelve published measurements: docs/benchmarks/planner-peers.md.

    python benchmarks/planner_peers.py --aiconfigurator ENVIRONMENT/bin/aiconfigurator

A peer whose program is not there is left out, and the page says so. Needs no accelerator; each case of AIConfigurator
takes about six seconds of CPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.predict.calibration.rows import Row
from longboat.planner.predict.calibration.sample import SampleMaker
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.load import Load
from longboat.planner.predict.serving import predict

RESULT = Path(__file__).parents[1] / "docs" / "benchmarks" / "planner-peers.md"
DEADLINE_S = 240
FIGURE = re.compile(r"(TTFT|TPOT):\s+([\d.]+) ms")
SYSTEMS = {"H100 SXM": "h100_sxm", "H200 SXM": "h200_sxm"}
HUBS = {
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    "Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "gpt-oss-120b": "openai/gpt-oss-120b",
}
SILICON = "ai-dynamo/aiconfigurator, silicon_sample.csv"
HEAD = """\
# The planner beside its peers: results

Repeat it with `python benchmarks/planner_peers.py --aiconfigurator ENVIRONMENT/bin/aiconfigurator`, where ENVIRONMENT
has the package `aiconfigurator`. Each case is a published measurement with its split and load given; TTFT and time
between tokens (ITL) are in milliseconds. Longboat knows, from the recipes of the runs, where all lengths were equal;
the peer has no such setting.
"""
FAIRNESS = """\
**Neither is blind.** Longboat's built-in calibration is fitted to rows of the same file, so the column "Longboat,
uncalibrated" has the default constants, without that fit. AIConfigurator interpolates its own measurements of kernels
on these accelerators, and its maintainers publish this file to check it. Versions of engines differ: it predicts its
newest database, and the rows are older. [Prediction](prediction.md) has Longboat's errors for models and machines that
the calibration did not see.

**Sources.** Eleven cases are rows of ai-dynamo/aiconfigurator's `silicon_sample.csv` (Apache-2.0), the last is from
GPUStack's performance lab, without a TTFT.

**No answer** is one that did not come within four minutes on a loaded machine, or an error that the program prints.

**Not here.** llmfit answers for one request without a split: [its answers about memory](memory-peers.md) stand apart.
gguf-parser answers for GGUF files in llama.cpp only: [a page of its own](memory-peers-gguf.md) has it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One published measurement. ttft_ms: 0 where none was published."""

    model: str
    hub: str
    hardware: str
    engine: str
    tensor: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    ttft_ms: float
    itl_ms: float
    quantization: str = ""
    spread: float = 0.2  # ``Load.spread``: 0 where all lengths of the published run are equal
    source: str = SILICON


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one program says of a case, in milliseconds."""

    ttft_ms: float
    itl_ms: float


def _case(name: str, cards: str, load: tuple[int, int, int], measured: tuple[float, float], **more: Any) -> Case:
    """Return a case. cards: ``2x H100 SXM vllm``; load: requests, prompt, output; measured: TTFT, ITL."""
    model, _, quantization = name.partition(" ")
    count, _, rest = cards.partition("x ")
    hardware, _, engine = rest.rpartition(" ")
    return Case(
        model=model,
        hub=HUBS[model],
        hardware=hardware,
        engine=engine,
        tensor=int(count),
        concurrency=load[0],
        prompt_tokens=load[1],
        output_tokens=load[2],
        ttft_ms=measured[0],
        itl_ms=measured[1],
        quantization=quantization,
        **more,
    )


CASES = (
    _case("Qwen3-32B", "2x H100 SXM vllm", (32, 1024, 1024), (236.8, 20.06), spread=0.0),
    _case("Qwen3-32B", "4x H100 SXM vllm", (8, 4096, 1024), (422.8, 11.79), spread=0.0),
    _case("Qwen3-32B", "2x H100 SXM sglang", (16, 1024, 128), (840.8, 16.54), spread=0.0),
    _case("Qwen3-32B", "8x H100 SXM sglang", (64, 2048, 256), (1589.2, 15.62), spread=0.0),
    _case("Llama-3.1-70B fp8", "8x H100 SXM vllm", (16, 1024, 1024), (93.0, 11.39)),
    _case("Llama-3.1-70B fp8", "4x H100 SXM vllm", (64, 1024, 1024), (256.0, 19.51)),
    _case("Llama-3.1-70B fp8", "1x H200 SXM vllm", (16, 1024, 1024), (315.8, 24.72)),
    _case("Llama-3.1-70B fp8", "4x H200 SXM vllm", (32, 8192, 1024), (1117.0, 28.62)),
    _case("gpt-oss-120b", "2x H100 SXM vllm", (64, 1024, 1024), (169.0, 14.83)),
    _case("gpt-oss-120b", "1x H200 SXM vllm", (4, 1024, 1024), (85.7, 6.33)),
    _case("gpt-oss-120b", "2x H200 SXM vllm", (32, 8192, 1024), (630.3, 15.74)),
    # 542 tokens/s of four requests; no TTFT was published.
    _case("Qwen3-8B", "1x H100 SXM vllm", (4, 512, 128), (0.0, 7.38), source="GPUStack's performance lab"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aiconfigurator", type=Path, help="the peer's program, in an environment of its own")
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    columns: dict[str, list[Told | None]] = {
        "Longboat": [_longboat(case, built_in_calibration()) for case in CASES],
        "Longboat, uncalibrated": [_longboat(case, Calibration()) for case in CASES],
    }
    peer, missing = given.aiconfigurator, ""
    if peer is not None and peer.is_file():
        columns["AIConfigurator"] = [_aiconfigurator(peer, case) for case in CASES]
    else:
        missing = "AIConfigurator was not installed, and is left out.\n"
    lines = [HEAD, f"{date.today().isoformat()}, {len(CASES)} cases.\n", *([missing] if missing else [])]
    given.output.write_text("\n".join([*lines, *_table(columns), "", FAIRNESS.rstrip(), ""]), encoding="utf-8")
    print(f"written: {given.output}")
    return 0


def _longboat(case: Case, calibration: Calibration) -> Told:
    library = built_in_library()
    maker = SampleMaker(library, lambda name: shape_of_entry(library.models.find(name)))
    row = Row(
        model=case.model,
        hardware=case.hardware,
        engine=case.engine,
        quantization=case.quantization,
        tensor=case.tensor,
        pipeline=1,
        attention_data=1,
        expert=1,
        link="",
        hop="",
        concurrency=case.concurrency,
        prompt_tokens=case.prompt_tokens,
        output_tokens=case.output_tokens,
        spread=case.spread,
        poll_steps=1.0,
        ttft_s=1.0,
        itl_s=1.0,
    )
    load = Load(
        concurrency=row.concurrency,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
        spread=row.spread,
    )
    found = predict(maker.deployment(row), load, calibration)
    return Told(ttft_ms=found.ttft_s.value * 1e3, itl_ms=found.itl_s.value * 1e3)


def _aiconfigurator(program: Path, case: Case) -> Told | None:
    """Return the peer's answer; None where it has none."""
    values = {
        "--model-path": case.hub,
        "--system": SYSTEMS[case.hardware],
        "--backend": case.engine,
        "--tp-size": case.tensor,
        "--batch-size": case.concurrency,
        "--isl": case.prompt_tokens,
        "--osl": case.output_tokens,
    }
    if case.quantization:
        values["--gemm-quant-mode"] = case.quantization
    if case.model.startswith("gpt-oss"):
        values["--moe-tp-size"] = case.tensor
    command = [str(program), "cli", "estimate", *(str(word) for pair in values.items() for word in pair)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    figures = dict(FIGURE.findall(done.stdout))
    if len(figures) < 2:
        print(f"{case.hub}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return Told(ttft_ms=float(figures["TTFT"]), itl_ms=float(figures["TPOT"]))


def _table(columns: dict[str, list[Told | None]]) -> Iterator[str]:
    for name, of in (("ITL", lambda one: one.itl_ms), ("TTFT", lambda one: one.ttft_ms)):
        yield f"## {name}\n"
        yield f"| model | machine, load | published | {' | '.join(columns)} |"
        yield f"| --- | --- | ---: |{' ---: |' * len(columns)}"
        errors: dict[str, list[float]] = {column: [] for column in columns}
        for index, case in enumerate(CASES):
            true = of(case)
            if not true:
                continue
            cells = []
            for column, told in columns.items():
                one = told[index]
                cells.append(f"{of(one):.3g} ({of(one) / true - 1:+.0%})" if one else "no answer")
                errors[column] += [abs(of(one) / true - 1)] if one else []
            yield f"| {_model(case)} | {_load(case)} | {true:.3g} | {' | '.join(cells)} |"
        yield f"| **median error** | | | {' | '.join(_median(found) for found in errors.values())} |\n"


def _model(case: Case) -> str:
    return f"{case.model} {case.quantization}".strip()


def _load(case: Case) -> str:
    lengths = f"{case.prompt_tokens} + {case.output_tokens} tokens"
    return f"{case.tensor}x {case.hardware}, {case.engine}, {case.concurrency} requests of {lengths}"


def _median(errors: Sequence[float]) -> str:
    return f"{median(errors):.0%} of {len(errors)}" if errors else "-"


if __name__ == "__main__":
    sys.exit(main())
