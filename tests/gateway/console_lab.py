"""A gateway with a console to look at: fleets as the controller describes them, tenants, and a little traffic."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import orjson
from console_daemon import Daemon
from engine_lab import Engine
from gateway_lab import RawClient, config, endpoint, push_policy

from longboat.cluster.protocol.console_view import view_document
from longboat.cluster.protocol.messages import Announcement, FleetReport, GatewayReport, ModelCount
from longboat.core.external import Price
from longboat.core.policy import AdminCredential, KeyRecord, Policy, TenantPolicy
from longboat.core.states import EndpointTable, EngineActual, Phase, RankState, ReplicaState, ResumeLevel
from longboat.gateway.limits.keys import new_admin_key, new_key
from longboat.gateway.process.server import Gateway

__all__ = ("HOSTILE", "MODELS", "Lab", "fleet_view", "opened_lab")

HOSTILE = "<img src=x onerror=document.title='owned'>\u202e"
MODELS = ("qwen3-32b", "llama-3.1-8b", "mistral-small")
_WORDS = "Explain in two sentences why a fair queue keeps one busy tenant from slowing down all others. "


class Lab:
    """What a test or a script needs of the gateway: its address, and keys that open it."""

    def __init__(self, gateway: Gateway, keys: dict[str, str], daemon: Daemon) -> None:
        self.gateway = gateway
        self.daemon = daemon
        self.keys = keys  # ``viewer``, ``operator``, and each tenant → the secret

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}/console"


def fleet_view(num_nodes: int = 4, num_replicas: int = 9, models: Sequence[str] = MODELS) -> dict[str, Any]:
    """Return a fleet whose first model is split over two hosts; a replica loads, one finds no room, and one failed."""
    now_s = time.time()
    nodes = [f"{index:02x}" * 14 for index in range(1, num_nodes + 1)]
    replicas = list(_with_cards(_replica(index, nodes, models) for index in range(num_replicas)))
    last = replicas[-1]
    failed = Announcement(state=last, slot=0, log_tail=("CUDA error: an illegal memory access was encountered",))
    report = FleetReport(
        fleet="harbour",
        document="",
        at_s=now_s,
        replicas=tuple(replicas),
        gateways=tuple(_gateway(node, index) for index, node in enumerate(nodes)),
        failures={last.model: failed} if num_replicas > 4 else {},
        counts={model: _count(model, replicas, now_s) for model in models},
        decisions=(
            {"at_s": now_s - 340, "model": models[-1], "before": 2, "replicas": 3, "by": "scaling",
             "reason": "TTFT p90 is 1.9 s; 2 replicas would miss the objective of 1.5 s"},
        ),
        planned={},
    )  # fmt: skip
    resources = {
        node: {"CPU": 64.0, "GPU": 8.0, "memory": 512.0 * 2**30, "accelerator_type:H100": 1.0} for node in nodes
    }
    return view_document(report, resources)


def _replica(index: int, nodes: Sequence[str], models: Sequence[str]) -> ReplicaState:
    model = models[index % len(models)]
    size = 2 if index % len(models) == 0 and len(nodes) > 1 else 1
    phase, detail = Phase.READY, ""
    if index % 50 == 4:
        phase, detail = Phase.LOADING, "loading weights: 61% of 61.0 GiB"
    elif index % 50 == 5:
        phase, detail = Phase.PLACING, "no node has 4 free accelerators: 2 are free on host-2"
    elif index % 50 == 8:
        phase, detail = Phase.FAILED, "rank 0 ended with signal 6"
    places = [] if phase is Phase.PLACING else [nodes[(index + rank) % len(nodes)] for rank in range(size)]
    ranks = tuple(
        RankState(
            node_rank=rank,
            node_id=node,
            address=f"10.0.0.{nodes.index(node) + 11}",
            hostname=f"host-{nodes.index(node) + 1}",
            pid=4000 + index,
            memory_bytes=int((61 + index % 7) * 2**30),
        )
        for rank, node in enumerate(places)
    )
    spent = {"placing": 0.4, "starting": 3.1, "loading": 21.0, "warming": 4.2, phase.value: 40.0 + index}
    actual = EngineActual(kv_blocks=41_000, rank_bytes=61 * 2**30, num_tokens=90_000, itl_s=0.021, ttft_s=0.34)
    return ReplicaState(
        model=model,
        replica=f"{model[:5]}-{index:x}7f{index}",
        generation=1,
        phase=phase,
        ranks=ranks,
        phase_s=spent,
        detail=detail,
        shape="TP2 × PP2" if size == 2 else "TP2",
        resume=ResumeLevel.CARRIED,
        actual=actual if phase is Phase.READY else None,
    )


def _with_cards(replicas: Iterable[ReplicaState]) -> Iterator[ReplicaState]:
    """Give each rank the next two of its node's eight cards."""
    used: dict[str, int] = {}
    for state in replicas:
        ranks = []
        for rank in state.ranks:
            first = used.get(rank.node_id, 0)
            used[rank.node_id] = min(8, first + 2)
            cards = tuple(map(str, range(first, used[rank.node_id])))
            ranks.append(dataclasses.replace(rank, gpu_ids=cards))
        yield dataclasses.replace(state, ranks=tuple(ranks))


def _gateway(node: str, index: int) -> GatewayReport:
    return GatewayReport(
        node_id=node,
        address=f"10.0.0.{index + 11}",
        hostname=f"host-{index + 1}",
        url=f"http://10.0.0.{index + 11}:8000",
        pid=77,
        table_version=3,
        in_flight=3 + 5 * index % 11,
    )


def _count(model: str, replicas: Sequence[ReplicaState], now_s: float) -> ModelCount:
    states = [state for state in replicas if state.model == model]
    unplaced = sum(state.phase is Phase.PLACING for state in states)
    problem = "1 replica finds no room on 4 nodes" if unplaced else ""
    return ModelCount(
        wanted=len(states), by="scaling", since_s=now_s, minimum=1, maximum=8, unplaced=unplaced, problem=problem
    )


def lab_policy(tenants: Sequence[str]) -> tuple[Policy, dict[str, str]]:
    """Return a policy with two admins and these tenants, a key for each, and the secrets by name."""
    secrets: dict[str, str] = {}
    admins: list[AdminCredential] = []
    records: list[KeyRecord] = []
    for role in ("viewer", "operator"):
        secrets[role], admin = new_admin_key(role, role)
        admins.append(admin)
    for tenant in tenants:
        secrets[tenant], record = new_key(tenant, now_s=time.time() - 5e6, note=f"key of {tenant}")
        records.append(record)
    rows = tuple(
        TenantPolicy(
            name=name,
            priority=index % 3,
            tokens_per_minute=20_000 * (1 + index % 5),
            money_per_day=None if index % 3 else 25.0,
            weight=1.0 + index % 2,
        )
        for index, name in enumerate(tenants)
    )
    prices = {name: Price(input_per_million=0.4, output_per_million=1.6, currency="EUR") for name in MODELS}
    policy = Policy(auth="keys", tenants=rows, keys=tuple(records), admins=tuple(admins), prices=prices)
    return policy, secrets


@asynccontextmanager
async def opened_lab(
    *,
    models: Sequence[str] = MODELS,
    tenants: Sequence[str] = ("research", "support", "batch"),
    view: dict[str, Any] | None = None,
    traffic: bool = False,
    with_engines: bool = True,
    demo: bool = False,
    real: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[Lab]:
    """A gateway whose models fake engines serve, the first of them with two replicas.

    traffic: whether every tenant sends requests all the time; with_engines: False runs none
    demo: whether operators may kill engines; real: model → address of an engine that runs already
    """
    names = [*models, models[0]] if with_engines else []
    engines = [Engine(options=("--model", model, "--itl-ms", "18", "--ttft-ms", "90")) for model in names]
    policy, secrets = lab_policy(tenants)
    policy = dataclasses.replace(policy, demo=demo)
    stack = AsyncExitStack()
    run = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lb-console-")))
    own = {"policy": policy, "fleet": "harbour", "node": "host-1", "daemon_socket": str(run / "daemon.sock")}
    gateway = Gateway(config(**own, scrape_s=None))
    daemon = Daemon(policy, lambda changed: push_policy(gateway, changed))
    sending: list[asyncio.Task[None]] = []
    try:
        await stack.enter_async_context(daemon.at(run / "daemon.sock"))
        for engine in engines:
            await asyncio.to_thread(engine.start)
        await gateway.start()
        places = [
            endpoint(engine.url, f"{model[:5]}-{index}", model, capacity=8, resume=ResumeLevel.CARRIED, revision="r")
            for index, (engine, model) in enumerate(zip(engines, names, strict=True))
        ]
        daemon.kills = {place.replica: engine.kill for place, engine in zip(places, engines, strict=True)}
        places += [endpoint(url, f"{model}-0", model, capacity=8) for model, url in real.items()]
        names += real
        scaling = {model: {"wanted": names.count(model), "minimum": 1, "maximum": 8} for model in models}
        table = EndpointTable(version=1, models=tuple(dict.fromkeys(names)), endpoints=tuple(places), scaling=scaling)
        gateway.state.offer_table("e", table)
        if view is not None:
            await gateway.steering.offer_view(orjson.dumps(view))
        if traffic:
            sending = [
                asyncio.create_task(_send(gateway, secrets[tenant], models[(at + user) % len(models)]))
                for at, tenant in enumerate(tenants)
                for user in range(3)
            ]
        yield Lab(gateway, secrets, daemon)
    finally:
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        for engine in engines:
            engine.kill()
        gateway.stop(0.0)
        with suppress(TimeoutError):
            await asyncio.wait_for(gateway.stopped.wait(), 10.0)
        await stack.aclose()


async def _send(gateway: Gateway, key: str, model: str) -> None:
    """Send one streamed request after another, of lengths that differ."""
    number = 0
    while True:
        number += 1
        client = await RawClient.to(gateway)
        prompt = _WORDS * (1 + number % 7) + key[-4:]
        document = {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": True}
        document |= {"max_tokens": 15 + number * 13 % 60}
        try:
            await client.post(document, headers=f"authorization: Bearer {key}\r\n")
        finally:
            client.abort()
        await asyncio.sleep(0.05 + 0.4 * (number % 5 == 0))


def with_hostile_names(view: dict[str, Any]) -> dict[str, Any]:
    """Return the view with hostile text wherever text can come from outside."""
    text = msgspec.json.decode(msgspec.json.encode(view))
    for replica in text["replicas"]:
        replica["detail"] = replica["resume_detail"] = replica["shape"] = HOSTILE
    for node in text["nodes"]:
        node["hostname"] = HOSTILE + node["id"][:2]
    text["problems"] = [HOSTILE]
    text["failures"] = {HOSTILE: [HOSTILE]}
    text["started"] = {HOSTILE: {"by": HOSTILE, "since_s": 1.0}}
    return text
