"""What it costs SGLang's scheduler to tell which prefixes it holds: its CPU time for each request, with and without.

First its radix tree alone: the time to insert a prompt of 2,048 tokens without and with notes, and to send these. Then
a real SGLang serves the built-in model on a processor; every request has a prompt of its own, so nothing is cached. The
model's steps do not count: here they take most of the time, and on a GPU they take none of the scheduler's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from engines.test_vllm_serves import plan_on_loopback
from longboat.builtin.models import ensure
from longboat.cluster.gang.probe import wait_for_token
from longboat.engines.environments.environment import environment_at
from longboat.engines.launch.overlay import build_overlay
from longboat.engines.registry import adapter_for

KEY = {"authorization": "Bearer a-secret"}
READY_S = 300.0
IDLE_S = 0.5  # after the last answer, until the scheduler has written


@contextmanager
def serving(python: Path, folder: Path, page: int, tells: bool) -> Iterator[str]:
    """Serve the built-in model with a scheduler that measures itself, and yield its address."""
    environment, adapter = environment_at("sglang", python), adapter_for("sglang")
    plan = plan_on_loopback(ensure("builtin:tiny", folder), pipeline=1, num_nodes=1)
    args = ("--page-size", str(page), "--max-total-tokens", "16384", "--chunked-prefill-size", "4096")
    plan = replace(plan, context_tokens=4096, extra_args=args)
    command = adapter.command(plan, 0, environment, str(build_overlay(folder, environment)))
    env = {**os.environ, **{name: value for name, value in command.env.items() if value is not None}}
    env |= {"LONGBOAT_BENCH_OUT": str(folder / "spent.json"), "LONGBOAT_SGLANG_PREFIXES": str(int(tells))}
    main = Path(__file__).with_name("measured_sglang.py")
    with (folder / "engine.log").open("ab") as log:
        words = [environment.python, str(main), *command.argv[3:]]
        engine = subprocess.Popen(words, env=env, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{plan.head.ports['api']}"
        asyncio.run(asyncio.wait_for(wait_for_token(url, adapter.probe(plan), plan.api_key), READY_S))
        yield url
    finally:
        engine.terminate()
        engine.wait(60)


def measure_tree(python: Path) -> None:
    """Print what notes cost the tree, by a program in SGLang's environment."""
    environment = environment_at("sglang", python)
    with tempfile.TemporaryDirectory() as name:
        env = {**os.environ, **adapter_for("sglang").preload_env(environment, offline=True)}
        env["PYTHONPATH"] = str(build_overlay(Path(name), environment))
        tree = Path(__file__).with_name("sglang_tree.py")
        subprocess.run([environment.python, "-W", "ignore", str(tree)], env=env, check=True, timeout=300)


def spent_for(url: str, folder: Path, count: int, tokens: int, answer: int, seed: int) -> tuple[float, float]:
    """Send requests one after the other. Return the scheduler's own time for each, and that of sending (ms)."""
    chance = random.Random(seed)
    before = _written(folder)
    for _ in range(count):
        prompt = [chance.randrange(300, 500) for _ in range(tokens)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True}
        httpx.post(f"{url}/v1/completions", json=body, headers=KEY, timeout=120).raise_for_status()
    after = _written(folder)
    own, send = (1000.0 * (after[name] - before[name]) / count for name in ("own_s", "send_s"))
    return own, send


def _written(folder: Path) -> dict[str, float]:
    time.sleep(IDLE_S)
    return dict(json.loads((folder / "spent.json").read_text()))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--python", type=Path, default=os.environ.get("LONGBOAT_TEST_SGLANG_PYTHON"))
    options.add_argument("--pages", type=int, nargs="+", default=[16, 64])
    options.add_argument("--requests", type=int, default=40)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--prompt", type=int, default=2048)
    options.add_argument("--answer", type=int, default=32)
    given = options.parse_args()
    if given.python is None:
        options.error("--python names no environment of SGLang")
    print(f"load {os.getloadavg()[0]:.1f}; prompts of {given.prompt} tokens, answers of {given.answer}", flush=True)
    measure_tree(given.python)
    for page in given.pages:
        for tells in (False, True):
            with tempfile.TemporaryDirectory() as name, serving(given.python, Path(name), page, tells) as url:
                rounds = [
                    spent_for(url, Path(name), given.requests, given.prompt, given.answer, seed)
                    for seed in range(given.rounds)
                ]
            own, send = (median(column) for column in zip(*rounds, strict=True))
            low, high = min(own for own, _ in rounds), max(own for own, _ in rounds)
            print(f"page {page:2}, {'with' if tells else 'without'}: {own:.2f} ms of the scheduler for each request "
                  f"({low:.2f} to {high:.2f}), {send:.3f} ms of them to send", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
