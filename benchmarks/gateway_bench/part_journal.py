"""What it costs to keep a stream's tokens, so that another engine could go on with it, beside relaying it."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any

from gateway_bench.figures import Figure, median, ratio, spread
from gateway_bench.processes import Proxy, free_port, wait_for_url
from gateway_bench.stand import Stand, say
from gateway_bench.targets import Running
from longboat.core.policy import Policy
from longboat.core.states import Endpoint, EndpointTable, ResumeLevel
from longboat.gateway.config import GatewayConfig
from longboat.gateway.control_client import GatewayControl, gateway_command, gateway_stdin

__all__ = ("measure_journal",)

LIMIT = 1.15
TOKEN = secrets.token_hex(8)
CHUNKS = 64
WORDS = ("--clients", 32, "--chunks", CHUNKS, "--prompt-chars", 800, "--stagger-s", 0.17, "--max-s", 12)
LEVELS = {"without journal": ResumeLevel.NONE, "with journal": ResumeLevel.CARRIED}


def measure_journal(num_rounds: int, *, quick: bool) -> dict[str, Any]:
    """CPU of a chunk in two gateways that differ only in what they were told of the engines."""
    rounds: dict[str, list[float]] = defaultdict(list)
    with Stand() as stand:
        stand.mock_engines()
        gateways = {name: stand.adopt(name, started(stand, level)) for name, level in LEVELS.items()}
        for number in range(num_rounds):
            for name in list(LEVELS)[:: -1 if number % 2 else 1]:
                say(f"journal, round {number + 1} of {num_rounds}: {name}")
                result = stand.load(gateways[name], *WORDS, "--requests", 60 if quick else 600)
                rounds[name].append(1e6 * result["cpu_s"] / (result["requests"] * CHUNKS))
    print("\njournal: CPU us of a chunk, median (range) of the rounds")
    for name, values in rounds.items():
        print(f"  {name:16}{median(values):8.2f}  ({spread(values)})")
    found = ratio(rounds["with journal"], rounds["without journal"])
    figures = []
    if found is not None:
        figures.append(
            Figure(
                name="CPU of a chunk with journal, ratio to without", value=found.middle, unit="", limit=LIMIT,
                interval=(found.low, found.high),
            )
        )  # fmt: skip
    return {"rounds": rounds, "figures": figures}


def started(stand: Stand, level: ResumeLevel) -> Running:
    """A gateway by itself that takes the engines for ones that can or cannot resume."""
    port = free_port()
    socket = stand.folder / f"control-{port}"
    config = GatewayConfig(
        port=port, control_socket=str(socket), control_token=TOKEN, policy=Policy(salt="bench"), orphan_grace_s=3600.0
    )
    document = stand.folder / f"gateway-{port}.json"
    document.write_bytes(gateway_stdin(config))
    command = f"exec {shlex.join(gateway_command())} < {shlex.quote(str(document))}"
    proxy = Proxy(f"gateway-{port}", ["sh", "-c", command], stand.folder)
    url = f"http://127.0.0.1:{port}"
    wait_for_url(f"{url}/livez", 60.0, {}, proxy.process)
    asyncio.run(tell(stand, socket, level))
    return Running(url=url, proxy=proxy)


async def tell(stand: Stand, socket: Path, level: ResumeLevel) -> None:
    """Which engines there are."""
    endpoints = tuple(
        Endpoint(model="mock", replica=f"r{at}", generation=1, url=url, api_key="bench", resume=level, revision="r")
        for at, url in enumerate(stand.upstreams)
    )
    control = GatewayControl(str(socket), TOKEN, timeout_s=10.0)
    await control.put_table("bench", EndpointTable(version=1, models=("mock",), endpoints=endpoints))
