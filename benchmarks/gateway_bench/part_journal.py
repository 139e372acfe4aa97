"""What it costs to keep a stream's tokens, so that another engine could go on with it, beside relaying it."""

from __future__ import annotations

import asyncio
import secrets
import shlex
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway_bench.figures import Figure, median, ratio, spread
from gateway_bench.longboat_gateway import LIMITS, PLENTY, TENANTS
from gateway_bench.processes import Proxy, free_port, wait_for_url
from gateway_bench.stand import Stand, say
from gateway_bench.targets import Running, Target
from longboat.core.policy import Policy, TenantPolicy
from longboat.core.states import Endpoint, EndpointTable, ResumeLevel
from longboat.gateway.admin.control_client import GatewayControl, gateway_command, gateway_stdin
from longboat.gateway.config import GatewayConfig
from longboat.gateway.limits.keys import new_key

__all__ = ("measure_journal",)

LIMIT = 1.15
ROUTER_LIMIT = 0.75
TOKEN = secrets.token_hex(8)
CHUNKS = 64
WORDS = ("--clients", 32, "--chunks", CHUNKS, "--prompt-chars", 800, "--stagger-s", 0.17, "--max-s", 12)
LEVELS = {"without journal": ResumeLevel.NONE, "with journal": ResumeLevel.CARRIED}


def measure_journal(peers: Sequence[Target], num_rounds: int, *, quick: bool) -> dict[str, Any]:
    """CPU of a chunk: of two gateways that differ only in what they know of the engines, and of the Rust routers."""
    rounds: dict[str, list[float]] = defaultdict(list)
    with Stand() as stand:
        stand.mock_engines()
        proxies = {name: stand.adopt(name, started(stand, level)) for name, level in LEVELS.items()}
        proxies |= {peer.name: found for peer in peers if peer.rust and (found := stand.start(peer)) is not None}
        for number in range(num_rounds):
            for name in list(proxies)[:: -1 if number % 2 else 1]:
                say(f"journal, round {number + 1} of {num_rounds}: {name}")
                result = stand.load(proxies[name], *WORDS, "--requests", 60 if quick else 600)
                rounds[name].append(1e6 * result["cpu_s"] / (result["requests"] * CHUNKS))
    return reported(rounds)


def reported(rounds: dict[str, list[float]]) -> dict[str, Any]:
    """Print and judge."""
    print("\njournal: CPU us of a chunk, median (range) of the rounds")
    for name, values in rounds.items():
        print(f"  {name:16}{median(values):8.2f}  ({spread(values)})")
    routers = [name for name in rounds if name not in LEVELS]
    others = {"without journal": LIMIT}
    if routers:
        others[min(routers, key=lambda name: median(rounds[name]))] = ROUTER_LIMIT
    figures = []
    for name, limit in others.items():
        found = ratio(rounds["with journal"], rounds[name])
        if found is not None:
            title, interval = f"CPU of a chunk with journal, ratio to {name}", (found.low, found.high)
            figures.append(Figure(name=title, value=found.middle, unit="", limit=limit, interval=interval))
    return {"rounds": rounds, "figures": figures}


def started(stand: Stand, level: ResumeLevel) -> Running:
    """A gateway with all features on that takes the engines for ones that can or cannot resume."""
    port = free_port()
    socket = stand.folder / f"control-{port}"
    keys, records = zip(*(new_key(tenant, now_s=time.time()) for tenant in TENANTS), strict=True)
    tenants = tuple(TenantPolicy(name=name, **dict.fromkeys(LIMITS, PLENTY)) for name in TENANTS)
    config = GatewayConfig(
        port=port, control_socket=str(socket), control_token=TOKEN, orphan_grace_s=3600.0,
        policy=Policy(auth="keys", tenants=tenants, keys=records, salt="bench"),
        access_log=str(stand.folder / f"access-{port}.log"), state_folder=str(stand.folder / f"state-{port}"),
    )  # fmt: skip
    document = stand.folder / f"gateway-{port}.json"
    document.write_bytes(gateway_stdin(config))
    command = f"exec {shlex.join(gateway_command())} < {shlex.quote(str(document))}"
    proxy = Proxy(f"gateway-{port}", ["sh", "-c", command], stand.folder)
    url = f"http://127.0.0.1:{port}"
    wait_for_url(f"{url}/livez", 60.0, {}, proxy.process)
    asyncio.run(tell(stand, socket, level))
    return Running(url=url, proxy=proxy, keys=keys)


async def tell(stand: Stand, socket: Path, level: ResumeLevel) -> None:
    """Which engines there are."""
    endpoints = tuple(
        Endpoint(model="mock", replica=f"r{at}", generation=1, url=url, api_key="bench", resume=level, revision="r")
        for at, url in enumerate(stand.upstreams)
    )
    control = GatewayControl(str(socket), TOKEN, timeout_s=10.0)
    await control.put_table("bench", EndpointTable(version=1, models=("mock",), endpoints=endpoints))
