"""How far the planner is from real vLLM on this machine's processor: bytes, cache blocks, memory, times.

``single``: replicas of one rank, forked from a warm zygote. A calibration run on three models, `longboat plan
calibrate` on its rows, and then other models: weights, blocks and memory as predicted, and the time between tokens.
``network``: a model split over two hosts of the network lab, by tensor and by pipeline: step times over a link of 100
Mbit/s against those over one of 1 Gbit/s. Its calibration has rows of a smaller model, split the same ways over a link
of 1 Gbit/s. Ends with status 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from plan_gang import GangLoad, measured
from real_engine import SPREAD, Answer, Api, Bench, bench, closed_loop, machine_facts, prompt_of, told_weights

from longboat.builtin.models import ensure
from longboat.catalog.library import built_in_library
from longboat.catalog.read_model import read_model
from longboat.folders import home_folder
from longboat.planner.memory.fit import Fit, plan_fit
from longboat.planner.memory.processor import LIBRARIES
from longboat.planner.memory.split_shape import Load, Split, card_of
from longboat.planner.predict.calibration.calibration_file import read_calibration
from longboat.planner.predict.calibration.rows import COLUMNS, read_rows
from longboat.planner.predict.calibration.sample import SampleMaker
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.serving import Prediction, predict

LONGBOAT = (sys.executable, "-c", "from longboat.cli.app import main; main()")
LIBRARY = built_in_library()
HARDWARE = "EPYC 7003 core"
BLOCK_TOKENS = 32
LEARNED = ("builtin:random-2m", "builtin:random-10m", "builtin:random-100m")
TESTED = ("builtin:tiny", "builtin:random-50m", "builtin:random-250m")
SPLIT_MODEL = "builtin:random-250m"
SPLIT_LEARNED = "builtin:random-100m"
CONTEXT_TOKENS, CACHE_TOKENS = 1024, 2048
OUTPUT_TOKENS, WAVES, LEAST_S = 32, 6, 4.0
FILLING_TOKENS = 1000
SPLITS = {"tensor": (2, 1), "pipeline": (1, 2)}
RATES = {"100MbE": 100_000_000, "1GbE": 1_000_000_000}
LEARNED_RATE = "1GbE"
SHORT_TOKENS, LONG_TOKENS = 64, 512
# Requests at once and tokens of a prompt.
ASKED = ((1, SHORT_TOKENS), (4, SHORT_TOKENS), (1, LONG_TOKENS))
GANG_ROUNDS = 5
HEADER = ",".join((*COLUMNS, "spread", "link"))
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
    """One model on one rank. answers: by ``ASKED``; added_bytes: memory that the replica took, its cache full."""

    source: str
    weight_bytes: int
    num_blocks: int
    added_bytes: int
    answers: dict[tuple[int, int], Answer]


def main() -> int:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("single", "network"), action="append", help="only this; may be given again")
    parser.add_argument("--split", choices=SPLITS, action="append", help="of network, only this; may be given again")
    parser.add_argument("--calibration", type=Path, help="a calibration to use; the run on three models is left out")
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
                learned = [measure(node, source, fill=False) for source in LEARNED]
                together = splits if "network" in parts else ()
                gangs = {split: gang_times(SPLIT_LEARNED, split, [LEARNED_RATE]) for split in together}
                calibrate(folder, [*rows_of(learned), *gang_rows(gangs)], file)
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
        engine.api.ask(prompt_of(SHORT_TOKENS, 1), 4)
        if fill:
            use_whole_cache(engine.api)
        added_bytes = engine.added_bytes()
        answers = {
            (count, length): closed_loop(
                engine.api,
                concurrency=count,
                prompt_tokens=length,
                output_tokens=OUTPUT_TOKENS,
                waves=WAVES,
                seed=10_000 * count + 1_000_000 * (length == LONG_TOKENS),
                least_s=LEAST_S,
            )
            for count, length in ASKED
        }
        weight_bytes, _ = told_weights(engine.log)
        return Seen(
            source=source,
            weight_bytes=weight_bytes,
            num_blocks=engine.api.num_blocks(),
            added_bytes=added_bytes,
            answers=answers,
        )


def use_whole_cache(api: Api) -> None:
    """Requests as they are measured afterwards, and prompts that fill every block."""
    for count, length in ASKED:
        closed_loop(
            api,
            concurrency=count,
            prompt_tokens=length,
            output_tokens=OUTPUT_TOKENS,
            waves=3,
            seed=500 * count + length,
            spread=0.0,
        )
    for number in range(CACHE_TOKENS // FILLING_TOKENS + 1):
        api.ask(prompt_of(FILLING_TOKENS, 9000 + number), 1)


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


NOT_USED = Answer(ttft_s=1.0, itl_s=1.0)


def rows_of(seen: Sequence[Seen]) -> Iterator[str]:
    """Rows of calibration: one rank."""
    for one in seen:
        for (count, length), answer in one.answers.items():
            yield row_text(one.source, concurrency=count, prompt_tokens=length, answer=answer)


def gang_rows(gangs: Mapping[str, Mapping[tuple[str, int], Answer]]) -> Iterator[str]:
    """Rows of calibration: gangs over a link."""
    for split, times in gangs.items():
        for (link, length), answer in times.items():
            yield row_text(SPLIT_LEARNED, split=SPLITS[split], link=link, prompt_tokens=length, answer=answer)


def row_text(
    source: str,
    *,
    split: tuple[int, int] = (1, 1),
    link: str = "",
    concurrency: int = 1,
    prompt_tokens: int = SHORT_TOKENS,
    answer: Answer = NOT_USED,
) -> str:
    """A line of the documented form. answer: its times, where anybody uses them."""
    cells = (model_folder(source), HARDWARE, "vllm", "", *split, concurrency, prompt_tokens, OUTPUT_TOKENS)
    times = (f"{answer.ttft_s * 1e3:.3f}", f"{answer.itl_s * 1e3:.4f}")
    return ",".join(map(str, (*cells, *times, 0 if link else SPREAD, link)))


def calibrate(folder: Path, lines: Sequence[str], output: Path) -> None:
    """What ``longboat plan calibrate`` makes of these rows."""
    rows = folder / "rows.csv"
    rows.write_text("\n".join([HEADER, *lines]) + "\n")
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
    for (count, length), answer in seen.answers.items():
        said = predicted(row_text(seen.source, concurrency=count, prompt_tokens=length), calibration)
        what = f"{name}: ITL, {count} at once" + (f", prompts of {length}" if length != SHORT_TOKENS else "")
        yield Check(what=what, predicted=said.itl_s.value * 1e3, actual=answer.itl_s * 1e3, unit="ms", limit=0.2)


def predicted(text: str, calibration: Calibration) -> Prediction:
    """What the time model says of a row, whose own times are not used."""
    (row,) = read_rows(f"{HEADER}\n{text}\n", "bench_plan.py")
    maker = SampleMaker(LIBRARY, lambda name: read_model(name, LIBRARY))
    return predict(maker.deployment(row), maker.sample(row).load, calibration)


def gang_times(source: str, split: str, links: Sequence[str]) -> Mapping[tuple[str, int], Answer]:
    """(Link, prompt tokens) → TTFT and ITL of a gang over two hosts, by the links' names."""
    load = GangLoad(
        source=source,
        context_tokens=CONTEXT_TOKENS,
        cache_bytes=cache_bytes(source),
        prompt_tokens=(SHORT_TOKENS, LONG_TOKENS),
        output_tokens=OUTPUT_TOKENS,
        rounds=GANG_ROUNDS,
    )
    tensor, pipeline = SPLITS[split]
    names = {RATES[link]: link for link in links}
    seen = measured(load, tensor=tensor, pipeline=pipeline, rates_bits_per_s=list(names))
    return {(names[rate], length): answer for (rate, length), answer in seen.items()}


def network_checks(calibration: Calibration, splits: Sequence[str]) -> Iterator[Check]:
    """Step times at the low rate over those at the high one, within 25 %: a prompt's of 512 tokens, and a token's."""
    for split in splits:
        seen = gang_times(SPLIT_MODEL, split, list(RATES))
        told = {
            link: predicted(
                row_text(SPLIT_MODEL, split=SPLITS[split], link=link, prompt_tokens=LONG_TOKENS), calibration
            )
            for link in RATES
        }
        times = {
            "prefill": {link: (told[link].ttft_s.value, seen[link, LONG_TOKENS].ttft_s) for link in RATES},
            "decode": {link: (told[link].itl_s.value, seen[link, LONG_TOKENS].itl_s) for link in RATES},
        }
        for step, pairs in times.items():
            for link, (guess_s, real_s) in pairs.items():
                what = f"{split}, {link}: {step} step"
                yield Check(what=what, predicted=guess_s * 1e3, actual=real_s * 1e3, unit="ms", limit=None)
            low, high = pairs.values()
            what = f"{split}: {step} step, {' / '.join(pairs)}"
            yield Check(what=what, predicted=low[0] / high[0], actual=low[1] / high[1], unit="times", limit=0.25)


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
