"""How far the planner is from real vLLM on this machine's processor: bytes, cache blocks, memory, times.

``single``: replicas of one rank, forked from a warm zygote. A calibration run on two models, `longboat plan calibrate`
on its rows, and then the other models: weights, blocks and memory as predicted, and the time between tokens.
``network``: a model split over two hosts of the network lab, by tensor and by pipeline: step times over a link of 100
Mbit/s against those over one of 1 Gbit/s. Ends with status 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from plan_gang import GangLoad, measured
from real_engine import Answer, Bench, bench, closed_loop, machine_facts, prompt_of, told_weights

from longboat.builtin.models import ensure
from longboat.catalog.library import built_in_library
from longboat.catalog.read_model import read_model
from longboat.folders import home_folder
from longboat.planner.fit import Fit, plan_fit
from longboat.planner.predict.calibration_file import read_calibration
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.rows import COLUMNS, Row, read_rows
from longboat.planner.predict.sample import SampleMaker
from longboat.planner.predict.serving import Prediction, predict
from longboat.planner.processor import LIBRARIES
from longboat.planner.split_shape import Load, Split, card_of

LONGBOAT = (sys.executable, "-c", "from longboat.cli.app import main; main()")
LIBRARY = built_in_library()
HARDWARE = "EPYC 7003 core"
BLOCK_TOKENS = 32
LEARNED = ("builtin:random-10m", "builtin:random-100m")
TESTED = ("builtin:tiny", "builtin:random-50m", "builtin:random-250m")
SPLIT_MODEL = "builtin:random-250m"
CONCURRENCY = (1, 4)
CONTEXT_TOKENS, CACHE_TOKENS = 1024, 2048
PROMPT_TOKENS, OUTPUT_TOKENS, WAVES = 64, 32, 3
FILLING_TOKENS = 1000
SPLITS = {"tensor": (2, 1), "pipeline": (1, 2)}
RATES = {"100MbE": 100_000_000, "1GbE": 1_000_000_000}
GANG_PROMPT_TOKENS, GANG_OUTPUT_TOKENS, GANG_ROUNDS = 512, 16, 2
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One figure. limit: how far the prediction may be off, as a fraction; 0: not at all; None: told, not judged."""

    what: str
    predicted: float
    actual: float
    unit: str
    limit: float | None

    @property
    def off(self) -> float:
        return self.predicted / self.actual - 1.0

    @property
    def holds(self) -> bool:
        return self.limit is None or abs(self.off) <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One model on one rank. answers: by concurrency; added_bytes: memory that the replica took, its cache full."""

    source: str
    weight_bytes: int
    num_blocks: int
    added_bytes: int
    answers: dict[int, Answer]


def main() -> int:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("single", "network"), action="append", help="only this; may be given again")
    parser.add_argument("--split", choices=SPLITS, action="append", help="of network, only this; may be given again")
    parser.add_argument("--calibration", type=Path, help="a calibration to use; the run on two models is left out")
    parser.add_argument("--keep-calibration", type=Path, help="write the calibration here too")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    parts = options.part or ["single", "network"]
    with tempfile.TemporaryDirectory(prefix="lb-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        splits = options.split or list(SPLITS)
        checks = list(run(Path(folder), parts, splits, options.calibration, options.keep_calibration))
    show(checks)
    if options.json:
        document = {"machine": machine_facts(), "checks": [{**asdict(one), "holds": one.holds} for one in checks]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if all(check.holds for check in checks) else 1


def run(
    folder: Path, parts: Sequence[str], splits: Sequence[str], given: Path | None, kept: Path | None
) -> Iterator[Check]:
    """All figures of these parts, each told as it comes."""
    file = given or folder / "calibration.toml"
    if given is None or "single" in parts:
        with bench(folder) as node:
            if given is None:
                calibrate(folder, [measure(node, source, fill=False) for source in LEARNED], file)
            if kept is not None:
                kept.write_text(file.read_text())
            if "single" in parts:
                calibration = read_calibration(file.read_text(), str(file))
                for source in TESTED:
                    yield from told(single_checks(measure(node, source), calibration))
    if "network" in parts:
        yield from told(network_checks(read_calibration(file.read_text(), str(file)), splits))


def told(checks: Iterator[Check]) -> Iterator[Check]:
    """The same, with a line on stderr for each."""
    for check in checks:
        print(
            f"{check.what}: {check.predicted:g} predicted, {check.actual:g} {check.unit}", file=sys.stderr, flush=True
        )
        yield check


def measure(node: Bench, source: str, *, fill: bool = True) -> Seen:
    """Start a replica, ask it, look at it. fill: use the whole cache once before memory is read."""
    with node.running(source, context_tokens=CONTEXT_TOKENS, cache_bytes=cache_bytes(source)) as engine:
        engine.api.ask(prompt_of(PROMPT_TOKENS, 1), 4)
        answers = {
            count: closed_loop(
                engine.api,
                concurrency=count,
                prompt_tokens=PROMPT_TOKENS,
                output_tokens=OUTPUT_TOKENS,
                waves=WAVES,
                seed=100 * count,
            )
            for count in CONCURRENCY
        }
        for number in range(CACHE_TOKENS // FILLING_TOKENS + 1 if fill else 0):
            engine.api.ask(prompt_of(FILLING_TOKENS, 9000 + number), 1)
        weight_bytes, _ = told_weights(engine.log)
        return Seen(
            source=source,
            weight_bytes=weight_bytes,
            num_blocks=engine.api.num_blocks(),
            added_bytes=engine.added_bytes(),
            answers=answers,
        )


def model_folder(source: str) -> str:
    return str(ensure(source, home_folder()))


def cache_bytes(source: str) -> int:
    """What the engine is told to give to its cache: room for ``CACHE_TOKENS``, in fp32."""
    return int(CACHE_TOKENS * read_model(model_folder(source), LIBRARY).kv_bytes_per_token(4))


def fit_of(source: str) -> Fit:
    """What the planner says of one rank with these settings."""
    shape, card = read_model(model_folder(source), LIBRARY), card_of(LIBRARY.accelerators.find(HARDWARE))
    load = Load(context_tokens=CONTEXT_TOKENS, cache_bytes=cache_bytes(source), engine="vllm")
    return plan_fit(shape, [card], Split(stages=(len(shape.layers),)), load)


def calibrate(folder: Path, seen: Sequence[Seen], output: Path) -> None:
    """Rows in the documented form, and what ``longboat plan calibrate`` makes of them."""
    rows = folder / "rows.csv"
    lines = [",".join((*COLUMNS, "spread"))]
    for one in seen:
        for count, answer in one.answers.items():
            lines.append(
                f"{model_folder(one.source)},{HARDWARE},vllm,,1,1,{count},{PROMPT_TOKENS},{OUTPUT_TOKENS},"
                f"{answer.ttft_s * 1e3:.3f},{answer.itl_s * 1e3:.4f},0"
            )
    rows.write_text("\n".join(lines) + "\n")
    print(rows.read_text(), file=sys.stderr)
    words = ("plan", "calibrate", str(rows), "--output", str(output), "--source", "bench_plan.py")
    subprocess.run([*LONGBOAT, *words], check=True, timeout=120)


def single_checks(seen: Seen, calibration: Calibration) -> Iterator[Check]:
    """Bytes and blocks exact, memory within 10 %, the time between tokens within 20 %."""
    (rank,) = (fit := fit_of(seen.source)).ranks
    name = seen.source.removeprefix("builtin:")
    own_bytes = rank.used_bytes - rank.overhead[LIBRARIES]
    blocks = fit.num_kv_blocks(BLOCK_TOKENS) or 0
    yield Check(what=f"{name}: weights", predicted=rank.weight_bytes, actual=seen.weight_bytes, unit="bytes", limit=0.0)
    yield Check(what=f"{name}: cache", predicted=blocks, actual=seen.num_blocks, unit="blocks", limit=0.0)
    yield Check(what=f"{name}: memory", predicted=own_bytes / MIB, actual=seen.added_bytes / MIB, unit="MiB", limit=0.1)
    for count, answer in seen.answers.items():
        said = predicted(replace(row_of(seen.source), concurrency=float(count)), calibration)
        what = f"{name}: ITL, {count} at once"
        yield Check(what=what, predicted=said.itl_s.value * 1e3, actual=answer.itl_s * 1e3, unit="ms", limit=0.2)


def row_of(source: str, *, tensor: int = 1, pipeline: int = 1, link: str = "") -> Row:
    """A deployment as a row of the documented form; its times are not used."""
    text = (
        f"{','.join(COLUMNS)},spread,link\n{model_folder(source)},{HARDWARE},vllm,,{tensor},{pipeline},1,"
        f"{PROMPT_TOKENS},{OUTPUT_TOKENS},1,1,0,{link}\n"
    )
    return read_rows(text, "bench_plan.py")[0]


def predicted(row: Row, calibration: Calibration) -> Prediction:
    """What the time model says of a row."""
    maker = SampleMaker(LIBRARY, lambda name: read_model(name, LIBRARY))
    return predict(maker.deployment(row), maker.sample(row).load, calibration)


def network_checks(calibration: Calibration, splits: Sequence[str]) -> Iterator[Check]:
    """Step times at the low rate over those at the high one, within 25 %."""
    low, high = RATES
    for title in splits:
        tensor, pipeline = SPLITS[title]
        load = GangLoad(
            source=SPLIT_MODEL,
            context_tokens=CONTEXT_TOKENS,
            cache_bytes=cache_bytes(SPLIT_MODEL),
            prompt_tokens=GANG_PROMPT_TOKENS,
            output_tokens=GANG_OUTPUT_TOKENS,
            rounds=GANG_ROUNDS,
        )
        real = measured(load, tensor=tensor, pipeline=pipeline, rates_bits_per_s=list(RATES.values()))
        said = {}
        for name, rate in RATES.items():
            row = row_of(SPLIT_MODEL, tensor=tensor, pipeline=pipeline, link=name)
            row = replace(row, prompt_tokens=float(GANG_PROMPT_TOKENS), output_tokens=float(GANG_OUTPUT_TOKENS))
            said[name] = predicted(row, calibration)
            pairs = (
                ("prefill", said[name].prefill_s.value, real[rate].ttft_s),
                ("decode", said[name].step_s.value, real[rate].itl_s),
            )
            for step, guess_s, real_s in pairs:
                what = f"{title}, {name}: {step} step"
                yield Check(what=what, predicted=guess_s * 1e3, actual=real_s * 1e3, unit="ms", limit=None)
        slow, quick = real[RATES[low]], real[RATES[high]]
        yield Check(
            what=f"{title}: prefill step, {low} / {high}",
            predicted=said[low].prefill_s.value / said[high].prefill_s.value,
            actual=slow.ttft_s / quick.ttft_s,
            unit="times",
            limit=0.25,
        )
        yield Check(
            what=f"{title}: decode step, {low} / {high}",
            predicted=said[low].step_s.value / said[high].step_s.value,
            actual=slow.itl_s / quick.itl_s,
            unit="times",
            limit=0.25,
        )


def show(checks: Sequence[Check]) -> None:
    """A Markdown table."""
    facts = machine_facts()
    print(f"\n{facts['processor']}, {facts['cores']} cores, {facts['memory']}\n")
    print("| what | predicted | actual | unit | off | limit | |")
    print("| --- | ---: | ---: | --- | ---: | ---: | --- |")
    for check in checks:
        limit = "" if check.limit is None else "exact" if check.limit == 0.0 else f"{check.limit:.0%}"
        verdict = "" if check.limit is None else "holds" if check.holds else "does not hold"
        values = (number(check.predicted, check.unit), number(check.actual, check.unit))
        print(f"| {check.what} | {values[0]} | {values[1]} | {check.unit} | {check.off:+.1%} | {limit} | {verdict} |")


def number(value: float, unit: str) -> str:
    """Whole where it is a count, else with as many digits as are worth reading."""
    return f"{value:,.0f}" if unit in ("bytes", "blocks") else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
