"""What a very long prompt costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gateway_bench.figures import Figure, median, spread
from gateway_bench.stand import Stand, say
from gateway_bench.targets import BARE, LONGBOAT, Target

__all__ = ("measure_large",)

PROMPT_CHARS = 400_000
LIMIT_MS = 5.0


def measure_large(peers: Sequence[Target], num_rounds: int, *, quick: bool) -> dict[str, Any]:
    """CPU milliseconds of one request with a prompt of 400 kB, answered with one chunk."""
    rounds: dict[str, list[float]] = defaultdict(list)
    words = ("--clients", 2, "--prompt-chars", PROMPT_CHARS, "--requests", 20 if quick else 200, "--max-s", 8)
    targets = [BARE, LONGBOAT, *(peer for peer in peers if not peer.heavy)]
    with Stand() as stand:
        stand.mock_engines()
        for number in range(num_rounds):
            turn = number % len(targets)
            for target in (*targets[turn:], *targets[:turn]):
                say(f"large prompts, round {number + 1} of {num_rounds}: {target.name}")
                running = stand.start(target)
                result = stand.load(running, *words) if running else {"requests": 0}
                if result["requests"]:
                    rounds[target.name].append(1e3 * result["cpu_s"] / result["requests"])
    print(f"\nlarge: CPU ms of a request with a prompt of {PROMPT_CHARS // 1000} kB, median (range) of the rounds")
    for name, values in rounds.items():
        print(f"  {name:14}{median(values):8.2f}  ({spread(values)})")
    own = median(rounds[LONGBOAT.name])
    return {"rounds": rounds, "figures": [Figure(name="CPU of a 400 kB prompt", value=own, unit="ms", limit=LIMIT_MS)]}
