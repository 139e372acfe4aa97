"""LoRA adapters at the gateway: names of their own, owners, the replica that holds one, streams that go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_lab import CHAT, REQUESTS, Engine, Json, streamed
from gateway_lab import API_KEY, EVEN, config, endpoint, keyed, push_policy, table

from engines.fake_process import PLAIN
from longboat.core.policy import AdapterRights, Alias, Policy, ResumePolicy, TenantPolicy, WeightedPool
from longboat.core.states import Endpoint, ResumeLevel
from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.http.response_head import ResponseHead
from longboat.gateway.process.server import Gateway
from longboat.gateway.resume.resume_state import ResumeState

RIGHTS = tuple(AdapterRights(name=name, model="tiny") for name in ("red", "blue", "green"))
POLICY = Policy(adapters=RIGHTS, resume=ResumePolicy(seeds=False), routing=EVEN)
KNOWN = {"red": "1" * 16, "blue": "2" * 16, "green": "3" * 16}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """Two fake engines that know three adapters and hold two."""
    engines = [Engine(options=("--itl-ms", "10", "--adapters-held", "2")) for _ in range(2)]
    folder = str(tmp_path_factory.mktemp("adapters"))
    for engine in engines:
        engine.start()
        teach(engine, folder, *KNOWN.items(), ("red", "9" * 16))
    yield engines
    for engine in engines:
        engine.kill()


def teach(engine: Engine, folder: str, *adapters: tuple[str, str]) -> Json:
    entries = [{"name": name, "revision": revision, "path": folder} for name, revision in adapters]
    headers = {"authorization": f"Bearer {API_KEY}"}
    url = f"{engine.url}/longboat/v1/adapters"
    answer = httpx.post(url, json={"adapters": entries}, headers=headers, verify=PLAIN)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def of(engine: Engine, replica: str, **adapters: str) -> Endpoint:
    return engine.endpoint(replica, adapters=adapters or KNOWN, adapters_held=2)


async def gateway_of(make_gateway: Any, *endpoints: Endpoint, policy: Policy = POLICY) -> Gateway:
    gateway: Gateway = await make_gateway(policy=policy)
    gateway.state.offer_table("f", table(*endpoints))
    return gateway


def asked(model: str) -> tuple[str, Json]:
    path, document = REQUESTS["usage"]
    return path, {**document, "model": model}


async def replicas_of(gateway: Gateway, model: str, number: int = 1) -> list[str]:
    for _ in range(number):
        stream = await streamed(gateway, *asked(model))
        assert stream.done
    gateway.state.accounting.flush()
    return [record.attempts[-1].replica for record in gateway.state.recent.newest(limit=number)]


async def test_adapters_answer_under_their_own_names(adapted: list[Engine], make_gateway: Any, connect: Any) -> None:
    gateway = await gateway_of(make_gateway, *(of(engine, f"r{n}") for n, engine in enumerate(adapted)))
    texts = {}
    for model in ("tiny", *KNOWN):
        stream = await streamed(gateway, *asked(model))
        assert {event["model"] for event in stream.events} == {model}
        texts[model] = json.dumps(stream.meaning()["texts"])
    assert len(set(texts.values())) == 4
    listed = (await (await connect(gateway)).get("/v1/models")).json()["data"]
    assert {card["id"]: card.get("parent") for card in listed} == {"tiny": None, **dict.fromkeys(KNOWN, "tiny")}


async def test_load_of_an_adapter_is_its_models(adapted: list[Engine], make_gateway: Any, connect: Any) -> None:
    gateway = await gateway_of(make_gateway, of(adapted[0], "r0"))
    assert (await gateway.steering.report())["model_counts"] == {}, "no model follows the load"
    elastic = {"tiny": {"minimum": 0.0, "maximum": 2.0}}
    gateway.state.offer_table("f", replace(table(of(adapted[0], "r0"), version=2), scaling=elastic))
    for model in ("tiny", "red"):
        await streamed(gateway, *asked(model))
    for policy in (POLICY, replace(POLICY, adapters=())):
        push_policy(gateway, policy)
        (counts,) = (await gateway.steering.report())["model_counts"].values()
        assert {model: (count["arrived"], count["ended"]) for model, count in counts.items()} == {"tiny": (2, 2)}
    push_policy(gateway, POLICY)
    for model in ("tiny", "red"):  # the gateway knows now that a number of replicas follows from them
        await streamed(gateway, *asked(model))
    (counts,) = (await gateway.steering.report())["model_counts"].values()
    answers = counts["tiny"]["answers"]
    assert {name: {key: one["number"] for key, one in classes.items()} for name, classes in answers.items()} == {
        "tiny": {"1": 1},
        "red": {"1": 1},
    }
    ((computed, generated, ttft_s, itl_s),) = answers["red"]["1"]["newest"]
    record = next(one for one in gateway.state.recent.newest(limit=2) if one.model == "red")
    assert (computed, generated) == (record.prompt_tokens - (record.cached_tokens or 0), record.completion_tokens)
    assert ttft_s == record.first_byte_s
    assert itl_s == pytest.approx((record.ended_s - record.first_byte_s) / (generated - 1))
    assert (await (await connect(gateway)).post({**CHAT, "model": "tiny", "stream": False})).status == 200
    (counts,) = (await gateway.steering.report())["model_counts"].values()
    assert counts["tiny"]["answers"]["tiny"]["1"]["newest"][-1][3] is None, "it was not streamed"
    assert counts["tiny"]["classes"].keys() == {"1"} and counts["tiny"]["classes"]["1"].keys() == {"ttft", "itl"}


@pytest.mark.parametrize("name", REQUESTS)
async def test_streams_of_an_adapter_go_on_exactly(name: str, adapted: list[Engine], make_gateway: Any) -> None:
    path, document = REQUESTS[name]
    document = {**document, "model": "red"}
    gateway = await gateway_of(make_gateway, *(of(engine, f"r{n}") for n, engine in enumerate(adapted)))
    whole = await streamed(gateway, path, document)
    await adapted[0].fault("break", after_tokens=2)
    await adapted[1].fault("break", after_tokens=5)
    broken = await streamed(gateway, path, document)
    assert (broken.status, broken.done, broken.meaning()) == (200, True, whole.meaning())
    await asyncio.gather(*(engine.fault("none") for engine in adapted))


async def test_a_stream_does_not_go_on_with_other_contents(adapted: list[Engine], make_gateway: Any) -> None:
    """One replica has newer contents of the adapter, the other does not: each answer comes from one of them."""
    ends = of(adapted[0], "r0"), of(adapted[1], "r1", red="9" * 16)
    gateway = await gateway_of(make_gateway, *ends, policy=Policy(adapters=RIGHTS, resume=ResumePolicy(wait_s=0)))
    await asyncio.gather(*(engine.fault("break", after_tokens=3) for engine in adapted))
    broken = await streamed(gateway, *asked("red"))
    assert broken.events[-1]["error"]["code"] == "engine_lost"
    await asyncio.gather(*(engine.fault("none") for engine in adapted))


async def test_requests_go_where_the_adapter_is_and_leave_when_it_is_busy(
    adapted: list[Engine], make_gateway: Any
) -> None:
    gateway = await gateway_of(make_gateway, *(of(engine, f"r{n}") for n, engine in enumerate(adapted)))
    (home,) = set(await replicas_of(gateway, "red", 4))
    streams = await asyncio.gather(*(streamed(gateway, *asked("red")) for _ in range(8)))
    assert all(stream.done for stream in streams)
    gateway.state.accounting.flush()
    records = gateway.state.recent.newest(limit=8)
    assert {record.attempts[-1].replica for record in records} == {"r0", "r1"}
    assert {str(record.attempts[-1].reason) for record in records} >= {"it holds the adapter"}
    assert home in ("r0", "r1")


async def test_only_replicas_that_serve_the_adapter_are_asked(adapted: list[Engine], make_gateway: Any) -> None:
    bare = adapted[0].endpoint("r0")
    gateway = await gateway_of(make_gateway, bare, of(adapted[1], "r1"))
    assert set(await replicas_of(gateway, "blue", 4)) == {"r1"}
    assert set(await replicas_of(gateway, "tiny", 4)) == {"r0", "r1"}


async def test_an_engine_without_these_contents_is_left_for_another(adapted: list[Engine], make_gateway: Any) -> None:
    """The table may be a moment older than the engine."""
    gateway = await gateway_of(make_gateway, of(adapted[0], "r0", red="0" * 16), of(adapted[1], "r1"))
    for _ in range(4):
        assert (await streamed(gateway, *asked("red"))).done


async def test_an_adapter_that_no_replica_serves_is_not_ready(
    adapted: list[Engine], make_gateway: Any, connect: Any
) -> None:
    gateway = await gateway_of(
        make_gateway,
        of(adapted[0], "r0", blue="2" * 16),
        policy=Policy(adapters=RIGHTS, resume=ResumePolicy(wait_s=0)),
    )
    answer = await (await connect(gateway)).post({**CHAT, "model": "red"})
    assert (answer.status, answer.code) == (503, "model_not_ready")


async def test_an_adapter_comes_and_goes_with_the_policy(
    adapted: list[Engine], make_gateway: Any, connect: Any
) -> None:
    gateway = await gateway_of(make_gateway, of(adapted[0], "r0"), policy=Policy())
    client = await connect(gateway)
    assert (await client.post({**CHAT, "model": "red", "stream": False})).code == "model_not_found"
    push_policy(gateway, POLICY)
    assert (await client.post({**CHAT, "model": "red", "stream": False})).status == 200
    push_policy(gateway, Policy())
    assert (await client.post({**CHAT, "model": "red", "stream": False})).code == "model_not_found"


async def test_owners_alone_see_and_use_an_adapter(adapted: list[Engine], make_gateway: Any, connect: Any) -> None:
    rights = (
        AdapterRights(name="red", model="tiny", tenants=("acme",)),
        AdapterRights(name="blue", model="tiny"),
        AdapterRights(name="green", model="tiny"),
    )
    tenants = (
        TenantPolicy(name="acme"),
        TenantPolicy(name="other"),
        TenantPolicy(name="one", models=("green",)),
        TenantPolicy(name="base", models=("tiny",)),
    )
    aliases = (Alias(name="best", pools=(WeightedPool(model="red"),)),)
    policy, keys = keyed(*tenants, adapters=rights, aliases=aliases, fallbacks={"blue": ("red",)})
    gateway = await gateway_of(make_gateway, of(adapted[0], "r0"), policy=policy)
    client = await connect(gateway)
    names = ("tiny", "red", "blue", "green", "best")
    allowed: dict[str, set[str]] = {}
    for tenant, key in zip(tenants, keys, strict=True):
        listed = {card["id"] for card in (await client.get("/v1/models", key)).json()["data"]}
        answers = {n: await client.post({**CHAT, "model": n, "stream": False}, headers=key) for n in names}
        allowed[tenant.name] = {name for name, answer in answers.items() if answer.status == 200}
        assert answers["red"].status == (200 if tenant.name == "acme" else 404)
        assert listed - {"best"} == allowed[tenant.name] - {"best"}
        if tenant.name != "acme":
            told = {name: answer.json()["error"]["message"] for name, answer in answers.items() if answer.status == 404}
            assert all(" red" not in text for text in told.values()), told
    assert allowed == {
        "acme": set(names),
        "other": {"tiny", "blue", "green"},
        "one": {"green"},
        "base": {"tiny", "blue", "green"},
    }


async def test_clients_reach_no_path_that_changes_an_engines_adapters(
    adapted: list[Engine], make_gateway: Any, connect: Any
) -> None:
    gateway = await gateway_of(make_gateway, of(adapted[0], "r0"))
    client = await connect(gateway)
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/longboat/v1/adapters"):
        answer = await client.post({"model": "tiny", "lora_name": "x", "lora_path": "/x", "adapters": []}, path)
        assert answer.status == 404, path
    mine = f"x-longboat-adapter: red@{'1' * 16}\r\n"
    plain = (await client.post({**CHAT, "stream": False})).json()
    assert (await client.post({**CHAT, "stream": False}, headers=mine)).json()["choices"] == plain["choices"]


async def test_the_fake_engine_holds_the_most_recently_used(adapted: list[Engine], tmp_path: Path) -> None:
    engine = Engine(options=("--adapters-held", "2"))
    engine.start()
    try:
        told = teach(engine, str(tmp_path), *KNOWN.items())
        assert (len(told["known"]), told["held"], told["problems"]) == (3, [], {})
        headers = {"authorization": f"Bearer {API_KEY}"}
        async with httpx.AsyncClient(verify=PLAIN, headers=headers) as client:
            for name in ("red", "blue", "red", "green"):
                line = {"x-longboat-adapter": f"{name}@{KNOWN[name]}"}
                body = {**CHAT, "model": name, "stream": False}
                assert (await client.post(f"{engine.url}/v1/chat/completions", json=body, headers=line)).is_success
        held = teach(engine, str(tmp_path), *KNOWN.items())["held"]
        assert held == sorted(f"{name}@{KNOWN[name]}" for name in ("red", "green"))
        assert teach(engine, str(tmp_path / "none"), ("red", "1" * 16))["problems"]
    finally:
        engine.kill()


def test_an_endpoint_of_another_level_is_built(adapted: list[Engine]) -> None:
    assert endpoint("http://127.0.0.1:1", adapters=KNOWN).resume is ResumeLevel.NONE


def test_a_stream_has_the_contents_it_was_sent_for(adapted: list[Engine]) -> None:
    """An adapter may change between the sending of a request and the head of its answer."""
    state = GatewayState(config())
    state.offer_table("e", table(of(adapted[0], "r1")))
    (upstream,) = state.table.endpoints("tiny") or ()
    before = upstream.revision_of("tiny")
    resume_state = ResumeState(AnswerKind.OPENAI_EVENTS, 1, None)
    resume_state.model, resume_state.asked = "red", f"{before}+old"
    resume_state.begins(ResponseHead(200, []), upstream)
    assert resume_state.revision == f"{before}+old"
