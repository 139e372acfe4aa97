"""How long a replica takes to start, part by part: from the change of the replica count to its first token.

One machine, then one gang over two hosts of the network lab; forked from a warm zygote, then started plainly. Every
round adds one replica to a running one and takes it away again. Prints medians, and how many times longer plain takes.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGBOAT = (sys.executable, "-c", "from longboat.cli.app import main; main()")
PARTS = ("serve", "placing", "engine", "total")
MEANING = {
    "serve": "Serve: new count noticed, supervisor's process started",
    "placing": "agents started, addresses, ports and files found",
    "engine": "supervisor's request to first token",
    "total": "change of the replica count to first token",
}
ROUND_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is measured. limit_s: most that a part should take from a warm zygote, where there is a limit."""

    title: str
    split: str
    num_hosts: int
    limit_s: Mapping[str, float]


CASES = {
    "vllm": (
        Case(title="one host", split="{}", num_hosts=1, limit_s={"engine": 2.0, "total": 4.5}),
        Case(title="two hosts, pipeline 2", split="{pipeline: 2}", num_hosts=2, limit_s={"engine": 2.0, "total": 6.5}),
    ),
    "sglang": (
        Case(title="one host", split="{}", num_hosts=1, limit_s={"engine": 3.0}),
        Case(title="two hosts, tensor 2", split="{tensor: 2}", num_hosts=2, limit_s={}),
    ),
}

Rounds = list[dict[str, float]]


def main() -> int:
    """Measure all cases and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="rounds with a warm zygote")
    parser.add_argument("--plain-runs", type=int, default=3, help="rounds of a plain start (0: none)")
    parser.add_argument("--only", choices=["1", "2"], help="only so many hosts")
    parser.add_argument("--engine", choices=[*CASES], default="vllm")
    parser.add_argument("--inside", nargs=2, metavar=("FILE", "RUNS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        measure_here(options.inside[0], int(options.inside[1]))
        return 0
    for case in CASES[options.engine]:
        if options.only in (None, str(case.num_hosts)):
            runs = {"zygote": options.runs, "plain": options.plain_runs}
            zygote, plain = (
                run_case(case, f"{{kind: {options.engine}, startup: {startup}}}", num_runs)
                for startup, num_runs in runs.items()
            )
            show(case, zygote, plain)
    return 0


def run_case(case: Case, engine: str, num_runs: int) -> Rounds:
    """All rounds of one case, on machines of their own. engine: as in the fleet file"""
    if num_runs == 0:
        return []
    print(f"{case.title}, {engine}: {num_runs} rounds …", file=sys.stderr, flush=True)
    return on_one_host(case, engine, num_runs) if case.num_hosts == 1 else on_two_hosts(case, engine, num_runs)


def on_one_host(case: Case, engine: str, num_runs: int) -> Rounds:
    """A local cluster in a run folder of its own."""
    with tempfile.TemporaryDirectory(prefix="lb-", ignore_cleanup_errors=True) as folder:
        env = {**os.environ, "LONGBOAT_RUN": folder}
        try:
            subprocess.run(
                [*LONGBOAT, "node", "start", "--head", "--local", "--num-cpus", "4"],
                env=env,
                check=True,
                timeout=180,
                stdout=subprocess.DEVNULL,
            )
            return rounds_by(functools.partial(_output, env), case, engine, num_runs, folder)
        finally:
            subprocess.run([*LONGBOAT, "node", "stop"], env=env, check=False, timeout=120, stdout=subprocess.DEVNULL)


def on_two_hosts(case: Case, engine: str, num_runs: int) -> Rounds:
    """Two hosts made of namespaces, with Ray on both."""
    sys.path.insert(0, str(ROOT / "tests"))
    from netlab.lab import Lab, why_unavailable

    if reason := why_unavailable():
        print(f"skipped: {reason}", file=sys.stderr)
        return []
    with Lab(2) as lab:
        first, second = lab.hosts
        common = ("--num-cpus", "4", "--token-file", str(lab.folder / "token"))
        first.run([*LONGBOAT, "node", "start", "--head", *common], timeout=240)
        second.run([*LONGBOAT, "node", "start", "--join", first.address, *common], timeout=240)

        def run(words: list[str]) -> str:
            output: str = first.run(words, timeout=ROUND_DEADLINE_S * num_runs).stdout
            return output

        return rounds_by(run, case, engine, num_runs, first.env["LONGBOAT_RUN"])


def _output(env: Mapping[str, str], words: list[str]) -> str:
    return subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout


def rounds_by(run: Callable[[list[str]], str], case: Case, engine: str, num_runs: int, folder: str) -> Rounds:
    """Have this program measure on a host; ``run`` leads there."""
    path = Path(folder) / "bench.yaml"
    nodes = f", placement: {{nodes: {case.num_hosts}}}" if case.num_hosts > 1 else ""
    model = f"{{name: m, source: 'builtin:tiny', engine: {engine}, context: 512, split: {case.split}{nodes}}}"
    path.write_text(f"name: bench\nmodels: [{model}]\ngateway: {{port: 8765}}\n")
    output = run([sys.executable, __file__, "--inside", str(path), str(num_runs)])
    rounds: Rounds = json.loads(output.strip().splitlines()[-1])
    return rounds


def measure_here(file: str, num_runs: int) -> None:
    """On a host of the cluster: bring one replica up, then time the second, again and again."""
    from longboat.cli.shared.cluster_at_hand import connect
    from longboat.cluster.ray.count_changes import change_hold

    subprocess.run([*LONGBOAT, "up", file, "--detach"], check=True, timeout=600, stdout=subprocess.DEVNULL)
    with connect() as session:
        scale_to = functools.partial(change_hold, session, "m", "scale", by="bench_start")
        rounds = [one_round(session, scale_to) for _ in range(num_runs + 1)][1:]  # the first finds files not yet cached
    print(json.dumps(rounds))


def one_round(session, scale_to) -> dict[str, float]:  # type: ignore[no-untyped-def]
    """Seconds of each part of one start."""
    before = {state.replica for state in session.report().replicas}
    began_s = time.monotonic()
    scale_to(asked=2)
    new = wait_for(lambda: [s for s in session.report().replicas if s.phase == "ready" and s.replica not in before])[0]
    total_s = time.monotonic() - began_s
    phases = dict(new.phase_s)
    engine_s = sum(phases.get(name, 0.0) for name in ("starting", "loading", "compiling", "warming"))
    placing_s = phases.get("placing", 0.0)
    scale_to(asked=1)
    wait_for(lambda: sum(s.phase == "ready" for s in session.report().replicas) == 1)
    wait_for(lambda: not any(s.phase == "draining" for s in session.report().replicas))
    time.sleep(1.0)
    return {"serve": total_s - placing_s - engine_s, "placing": placing_s, "engine": engine_s, "total": total_s}


def wait_for(condition):  # type: ignore[no-untyped-def]
    """The first true value of ``condition``."""
    deadline_s = time.monotonic() + ROUND_DEADLINE_S
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {ROUND_DEADLINE_S:.0f} s")
        time.sleep(0.1)
    return value


def show(case: Case, zygote: Rounds, plain: Rounds) -> None:
    """One table: medians with their range, and the ratio."""
    if not zygote:
        return
    print(f"\n{case.title}: median of {len(zygote)} from a warm zygote (range), of {len(plain)} plain; seconds")
    print(f"  {'part':9}{'zygote':>8}{'range':>16}{'limit':>8}{'plain':>8}{'ratio':>7}  what")
    for part in PARTS:
        values = sorted(r[part] for r in zygote)
        middle = statistics.median(values)
        limit = case.limit_s.get(part, "")
        line = f"  {part:9}{middle:8.2f}{f'{values[0]:.2f} – {values[-1]:.2f}':>16}{limit:>8}"
        if plain:
            slow = statistics.median(r[part] for r in plain)
            line += f"{slow:8.2f}{slow / middle:7.1f}"
        print(f"{line}  {MEANING[part]}")


if __name__ == "__main__":
    sys.exit(main())
