"""Longboat on an NVIDIA GPU: predictions beside measurements, two models on one card, and engines killed under streams.

usage: python benchmarks/bench_gpu.py --environment /opt/vllm [--parts speed share resume] [--model builtin:random-8b]
The environment holds vLLM for CUDA. Every part brings a fleet up on this machine and takes it down. Nothing is
downloaded: the models have random weights of real shapes. Writes build/gpu.json. ``--gpus 0 --parts resume`` runs the
last part on processors.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fleet.fleet_lab import FleetLab, wait_until  # noqa: E402
from fleet.load import Load, num_resumed  # noqa: E402
from longboat.planner.search.measured import at_users  # noqa: E402

UP_S = 900.0
PROMPT_CHARS, PROMPT_TOKENS, OUTPUT_TOKENS = 2048, 430, 128
USERS = (1, 8, 32, 128)
BIG = """name: bench
models:
  - name: big
    source: '%(model)s'
    engine: {environment: %(environment)s, args: [%(args)s]}
    context: 4096
    load: {users: 128, prompt_tokens: %(prompt)d, output_tokens: %(output)d}
"""
SHARED = """name: bench
models:
  - {name: a, source: 'builtin:random-1b', context: 4096, resources: {gpus: 0.5}, engine: &vllm {environment: %(environment)s, args: [%(args)s]}}
  - {name: b, source: 'builtin:tiny', context: 2048, resources: {gpus: 0.25}, engine: *vllm}
"""  # noqa: E501
TOO_MUCH = """name: bench
models:
  - {name: a, source: '%(model)s', resources: {gpus: 0.1}, engine: &vllm {environment: %(environment)s}}
"""
TWO = """name: bench
models:
  - name: a
    source: '%(small)s'
    context: 2048
    replicas: 2
    resources: {gpus: %(gpus)g, cpus: 0.5}
    engine: {environment: %(environment)s, args: [%(args)s], env: {%(env)s}}
"""


def main() -> int:
    """Run the parts and print a table for each."""
    options = _options()
    console, found = Console(width=120), dict[str, Any]()
    parts = {"speed": speed, "share": share, "resume": resume}
    with tempfile.TemporaryDirectory(prefix="longboat-gpu-") as folder:
        for name in options.parts:
            run = Path(folder) / name
            run.mkdir(mode=0o700)
            console.rule(name)
            try:
                found[name] = parts[name](options, run, console)
            except (AssertionError, OSError, subprocess.TimeoutExpired, KeyError) as error:
                found[name] = {"failed": str(error)[-6000:]}
                console.print(f"failed: {str(error)[-6000:]}", markup=False)
    output = ROOT / "build" / "gpu.json"
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(found, indent=2) + "\n")
    return 1 if any("failed" in part for part in found.values()) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--environment", required=True, help="folder of the Python environment with vLLM")
    parser.add_argument("--parts", nargs="+", default=["speed", "share", "resume"])
    parser.add_argument("--model", default="builtin:random-8b", help="of the part speed")
    parser.add_argument("--small", default="builtin:tiny", help="of the part resume")
    parser.add_argument("--args", default="", help="more arguments of the engines, by comma")
    parser.add_argument("--gpus", type=float, default=0.25, help="of each of the two engines of the part resume")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--kills-s", type=float, default=600.0, help="begin no kill after this time")
    parser.add_argument("--env", default="", help="of the engines of the part resume, as in \"NAME: '1'\"")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="copy the logs of each part there")
    return parser.parse_args()


@contextmanager
def fleet(options: argparse.Namespace, run: Path, text: str) -> Iterator[FleetLab]:
    """A fleet that is up, and down afterwards."""
    lab = FleetLab(run)
    values = {**vars(options), "prompt": PROMPT_TOKENS, "output": OUTPUT_TOKENS}
    try:
        lab.must("up", lab.write(text % values), "--detach", timeout_s=UP_S)
        yield lab
    finally:
        lab.stop_watching()
        _keep_logs(run, options.logs)
        lab.cli("down", timeout_s=120)
        lab.end()


def _keep_logs(run: Path, folder: Path | None) -> None:
    for log in run.rglob("*.log") if folder else ():
        kept = folder / run.name / log.relative_to(run)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, kept)


def speed(options: argparse.Namespace, run: Path, console: Console) -> dict[str, Any]:
    """Predicted and measured times of one model on the whole card."""
    began_s = time.monotonic()
    with fleet(options, run, BIG) as lab:
        up_s = time.monotonic() - began_s
        planned = lab.status()["planned"]["models"]["big"]
        rows = [_speed_row(lab, planned, users) for users in USERS]
        time.sleep(6.0)
        console.print(lab.must("status", timeout_s=60), markup=False)
    table = Table("users", "ITL ms", "predicted", "ratio", "TTFT ms", "predicted", "ratio", box=None)
    for row in rows:
        cells = [f"{row[name]:.2f}" for name in ("itl_ms", "predicted_itl_ms", "itl_ratio")]
        cells += [f"{row[name]:.2f}" for name in ("ttft_ms", "predicted_ttft_ms", "ttft_ratio")]
        table.add_row(str(row["users"]), *cells)
    console.print(table)
    return {"up_s": up_s, "rows": rows}


def _speed_row(lab: FleetLab, planned: dict[str, Any], users: int) -> dict[str, Any]:
    url = f"http://127.0.0.1:{lab.local_port}/v1/chat/completions"
    words = ["--model", "big", "--clients", str(users), "--requests", str(max(8, users * 4)), "--chunks"]
    words += [
        str(OUTPUT_TOKENS),
        "--prompt-chars",
        str(PROMPT_CHARS),
        "--seed",
        str(users),
        "--max-s",
        "60",
        "--merged",
    ]
    command = [sys.executable, str(ROOT / "benchmarks" / "load.py"), url, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["requests"], f"no request came back: {told['failures']}"
    ttft_s = told["ttft_s"]["p50"]
    itl_s = (told["total_s"]["p50"] - ttft_s) / (OUTPUT_TOKENS - 1)
    expected = at_users(planned, users)
    assert expected is not None
    return {
        "users": users,
        "failures": told["failures"],
        "itl_ms": itl_s * 1e3,
        "predicted_itl_ms": expected[0] * 1e3,
        "itl_ratio": expected[0] / itl_s,
        "ttft_ms": ttft_s * 1e3,
        "predicted_ttft_ms": expected[1] * 1e3,
        "ttft_ratio": expected[1] / ttft_s,
        "tokens_per_s": told["requests"] * OUTPUT_TOKENS / told["wall_s"],
    }


def share(options: argparse.Namespace, run: Path, console: Console) -> dict[str, Any]:
    """Two models on one card: what each was to take and takes; one that cannot fit is refused."""
    lab = FleetLab(run)
    refused = lab.cli("up", lab.write(TOO_MUCH % vars(options), "much.yaml"), "--detach", timeout_s=UP_S)
    lab.end()
    console.print(refused.stderr, markup=False)
    assert refused.returncode != 0, "a model that does not fit its part of the card was started"
    with fleet(options, run, SHARED) as lab:
        answers = [lab.ask(name, timeout_s=60)[0] for name in ("a", "b")]
        time.sleep(20.0)
        console.print(lab.must("status", timeout_s=60), markup=False)
        replicas = lab.replicas()
        memory = {one["model"]: max(rank["memory_bytes"] for rank in one["ranks"]) for one in replicas}
    console.print({name: f"{count / 2**30:.2f} GiB" for name, count in memory.items()})
    return {"answers": answers, "memory_bytes": memory, "refused": refused.stderr[-1500:]}


def resume(options: argparse.Namespace, run: Path, console: Console) -> dict[str, Any]:
    """Streams while engines are killed, each compared with its quiet answer; first as long without a kill."""
    with fleet(options, run, TWO) as lab:
        levels = [(one["resume"], one["resume_detail"]) for one in lab.replicas("a")]
        console.print(levels, markup=False)
        console.print(lab.must("status", timeout_s=60), markup=False)
        found: dict[str, Any] = {"levels": levels}
        for name, kills in (("calm", ()), ("killed", range(options.kills))):
            found[name] = _streams(lab, kills, options.kills_s)
            console.print({name: found[name], "resumed": num_resumed(lab.local_port)}, markup=False)
        found["resumed"] = num_resumed(lab.local_port)
    return found


def _streams(lab: FleetLab, kills: Sequence[int], kills_s: float) -> dict[str, Any]:
    url = f"http://127.0.0.1:{lab.local_port}"
    back_s: list[float] = []
    with Load(url, "a", num_clients=16, max_tokens=1000, timeout_s=120.0, more={"ignore_eos": True}) as load:
        ends_s = time.monotonic() + kills_s
        for number in kills:
            if time.monotonic() > ends_s:
                break
            time.sleep(2.0)
            victims = lab.replicas("a")
            os.kill(victims[number % len(victims)]["ranks"][0]["pid"], signal.SIGKILL)
            gone = victims[number % len(victims)]["replica"]
            back_s.append(wait_until("it is back", lambda gone=gone: _is_back(lab, gone), 300))
        time.sleep(2.0 if kills else 15.0)
    differing = sum("another text" in line for line in load.wrong)
    return {
        "streams": load.num_streams,
        "failed": len(load.wrong) - differing,
        "differing": differing,
        "back_s": back_s,
        "wrong": load.wrong[:5],
    }


def _is_back(lab: FleetLab, gone: str) -> bool:
    ready = lab.replicas("a")
    return len(ready) == 2 and all(one["replica"] != gone for one in ready)


if __name__ == "__main__":
    sys.exit(main())
