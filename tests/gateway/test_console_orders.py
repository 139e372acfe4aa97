"""Orders and reads of the console over HTTP: plans, keys, adapters, logs and weights, and their roles."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from console_client import API, Browser, signed_in
from console_lab import HOSTILE, fleet_view, lab_policy

from longboat.core.policy import Policy
from longboat.gateway.console import node_reads
from longboat.gateway.console.node_reads import stored_weights
from longboat.gateway.console.plan_worker import PlanWorkers
from longboat.gateway.console.sections import Sections
from longboat.gateway.http.responses import Refusal
from longboat.gateway.orders.model_orders import ModelOrders
from longboat.gateway.process.server import Gateway
from waiting import is_alive, wait_until_async

PLAN = {"kind": "plan", "model": "Llama-3.1-8B", "on": "2x(2xRTX4090), net=10GbE", "slo": "ttft=2s"}
ORDERS = (
    "plan",
    "make-key",
    "revoke-key",
    "add-adapter",
    "remove-adapter?name=x",
    "kill-engine",
    "start-model",
    "end-model?model=x",
)


@asynccontextmanager
async def daemon_at(path: Path, reply: Callable[[dict[str, Any]], Any], asked: list[Any]) -> AsyncIterator[None]:
    """A node's daemon that answers each question with ``reply(question)``; None closes without an answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = json.loads(await reader.readline())
        asked.append(question)
        if (found := reply(question)) is not None:
            writer.write(json.dumps(found).encode())
            await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield


@pytest.fixture
async def lab(make_gateway: Any, make_upstream: Any, tmp_path: Path) -> tuple[Gateway, dict[str, str], Path]:
    policy, keys = lab_policy(("a", "b"))
    socket = tmp_path / "d.sock"
    gateway = await make_gateway(await make_upstream(), policy=policy, settings={"daemon_socket": str(socket)})
    return gateway, keys, socket


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("who", ["viewer", "a"])
async def test_only_operators_give_orders(lab: Any, order: str, who: str) -> None:
    gateway, keys, socket = lab
    asked: list[Any] = []
    async with daemon_at(socket, lambda _: {"value": {}}, asked):
        browser = await signed_in(gateway, keys[who])
        assert (await browser.post(API + order, PLAN)).code == "not_allowed"
        assert (await browser.get(API + "log?model=tiny")).code == "not_allowed"
    assert asked == []


async def test_tenant_sees_neither_weights_nor_adapters(lab: Any) -> None:
    gateway, keys, _ = lab
    browser = await signed_in(gateway, keys["a"])
    for section in ("weights", "adapters"):
        assert (await browser.get(f"{API}live/{section}")).code == "not_allowed"


# plans


async def test_plan_has_speed_memory_cost_and_reasons(lab: Any) -> None:
    gateway, keys, _ = lab
    browser = await signed_in(gateway, keys["operator"])
    answer = await browser.post(API + "plan", PLAN)
    assert answer.status == 200, answer.body
    best = answer.json()["plans"][0]
    assert best["total"]["tokens_per_s"] > 0 and best["reasons"] and best["cost"]["usd_per_million"] > 0
    fullest = best["groups"][0]["fullest"]
    assert 0 < fullest["used_bytes"] <= fullest["memory_bytes"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/etc/passwd"}, "is not a name of the catalog"),
        ({"model": "a/../../etc/passwd"}, "is not a name of the catalog"),
        ({"model": "../x"}, "is not a name of the catalog"),
        ({"model": HOSTILE}, "is not a name of the catalog"),
        ({"on": "/etc/cluster.yaml"}, "is a file"),
        ({"on": "cluster.yml"}, "is a file"),
        ({"on": "3xNoSuchCard"}, "NoSuchCard"),
        ({"on": "1xRTX4090", "model": "Llama-3.1-405B", "slo": "ttft=0"}, "ttft"),
        ({"concurrency": 0}, "concurrency"),
        ({"chart": "/tmp/x.svg"}, "chart"),
        ({"slo": "soon"}, "soon"),
    ],
    ids=lambda value: next(iter(value)) + str(len(str(value))) if isinstance(value, dict) else "",
)
async def test_plan_that_cannot_be_says_why(lab: Any, change: dict[str, Any], words: str) -> None:
    gateway, keys, _ = lab
    browser = await signed_in(gateway, keys["operator"])
    answer = await browser.post(API + "plan", PLAN | change)
    assert (answer.status, answer.code) == (400, "no_plan")
    assert words in answer.json()["error"]["message"]


async def test_plan_that_is_no_object_is_refused(lab: Any) -> None:
    gateway, keys, _ = lab
    browser = await signed_in(gateway, keys["operator"])
    assert (await browser.post(API + "plan", [1])).code == "bad_plan"


async def test_plan_that_is_nested_too_deep_is_refused(lab: Any) -> None:
    gateway, keys, _ = lab
    browser = await signed_in(gateway, keys["operator"])
    nested: Any = "x"
    for _ in range(300):
        nested = [nested]
    answer = await browser.post(API + "plan", {"kind": "plan", "model": nested})
    assert (answer.status, answer.code) == (400, "bad_plan")


def sleeper(tmp_path: Path) -> tuple[list[str], Path]:
    """Return a planner that starts a child, writes down both processes, and never answers."""
    pids = tmp_path / "pids"
    text = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}} {{os.getpriority(os.PRIO_PROCESS, 0)}}")
time.sleep(600)
"""
    return [sys.executable, "-c", text], pids


async def test_planner_that_is_too_slow_is_ended_with_its_children(tmp_path: Path) -> None:
    command, pids = sleeper(tmp_path)
    workers = PlanWorkers(None, command=command, deadline_s=3.0)
    found = await workers.answer({"kind": "plan"}, 0.0)
    assert isinstance(found, Refusal) and (found.status, found.code) == (504, "planner_too_slow")
    worker, child, priority = map(int, pids.read_text().split())
    assert priority == 19
    await wait_until_async(lambda: not is_alive(worker) and not is_alive(child))


async def test_few_planners_run_at_once_and_the_rest_is_refused(tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    text = f"import os, time; open({str(started)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(600)"
    workers = PlanWorkers(None, command=[sys.executable, "-c", text], deadline_s=4.0)
    asking = [asyncio.create_task(workers.answer({"n": n}, 0.0)) for n in range(12)]
    for _ in range(400):
        if len(list(started.iterdir())) == 2 and sum(task.done() for task in asking) >= 4:
            break
        await asyncio.sleep(0.02)
    busy = [task.result() for task in asking if task.done()]
    assert len(busy) == 4 and all(isinstance(found, Refusal) and found.code == "planner_busy" for found in busy)
    assert len(list(started.iterdir())) == 2
    for task in asking:
        task.cancel()


async def test_equal_questions_are_one_process(tmp_path: Path) -> None:
    started = tmp_path / "started"
    started.mkdir()
    text = f"import os; open({str(started)!r} + f'/{{os.getpid()}}', 'w'); print('{{\"value\": {{\"x\": 1}}}}')"
    workers = PlanWorkers(None, command=[sys.executable, "-c", text])
    found = await asyncio.gather(*(workers.answer({"kind": "plan", "on": "x"}, 5.0) for _ in range(5)))
    assert found == [{"x": 1}] * 5 and len(list(started.iterdir())) == 1


@pytest.mark.parametrize("said", ["", "no JSON", "[1]"])
async def test_planner_that_breaks_is_an_error_and_no_more(said: str) -> None:
    workers = PlanWorkers(None, command=[sys.executable, "-c", f"print({said!r}, end='')"])
    found = await workers.answer({"kind": "plan"}, 0.0)
    assert isinstance(found, Refusal) and (found.status, found.code) == (503, "planner_failed")


async def test_planner_that_ends_before_it_has_its_question_is_an_error_and_no_more() -> None:
    workers = PlanWorkers(None, command=["true"])
    found = [await workers.answer({"kind": "plan", "on": str(number)}, 0.0) for number in range(5)]
    assert {isinstance(item, Refusal) and item.code for item in found} == {"planner_failed"}


async def test_planner_has_the_lowest_priority_beside_the_gateway_too() -> None:
    session = "open('/proc/self/autogroup').read()"
    text = f"import json, os; print(json.dumps({{'value': {{'nice': os.getpriority(0, 0), 'session': {session}}}}}))"
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("this kernel divides its processors without regard to sessions")
    command = [sys.executable, "-c", f"input(); {text}"]  # it reads, so its priority is set before it looks
    found = await PlanWorkers(None, command=command).answer({"kind": "plan"}, 0.0)
    assert isinstance(found, dict) and found["nice"] == 19 and found["session"].strip().endswith("nice 19")


def noting(tmp_path: Path, said: str) -> tuple[PlanWorkers, Path]:
    """Return planners that answer ``said``, and the folder in which each process leaves a file."""
    started = tmp_path / "started"
    started.mkdir()
    text = f"import os; open({str(started)!r} + f'/{{os.getpid()}}', 'w'); print({said!r}, end='')"
    return PlanWorkers(None, command=[sys.executable, "-c", text]), started


@pytest.mark.parametrize(
    ("said", "num_started"),
    [("", 2), ('{"error": "the catalog is away", "hint": ""}', 2), ('{"value": {"models": []}}', 1)],
    ids=["nothing", "error", "models"],
)
async def test_only_answers_are_kept_for_an_hour(tmp_path: Path, said: str, num_started: int) -> None:
    workers, started = noting(tmp_path, said)
    for now_s in (0.0, 1.0):
        await workers.answer({"kind": "models"}, now_s)
    assert len(list(started.iterdir())) == num_started


async def test_few_plans_are_kept_and_none_that_is_old() -> None:
    made: list[int] = []
    sections = Sections(3)

    async def plan(number: int, now_s: float, age_s: float = 60.0) -> None:
        async def make() -> bytes:
            made.append(number)
            return b"x"

        await sections.raw(("plan", str(number)), make, now_s, age_s)

    for number in (1, 2, 3, 4):
        await plan(number, float(number))
    for number in (4, 3, 2):
        await plan(number, 5.0)
    assert made == [1, 2, 3, 4] and len(sections._made) == 3
    await plan(5, 64.5)
    assert len(sections._made) == 1


# keys


async def test_key_is_shown_once_and_the_fleet_gets_its_digest(lab: Any) -> None:
    gateway, keys, socket = lab
    asked: list[Any] = []

    def reply(question: dict[str, Any]) -> Any:
        (order,) = question["args"]
        key_id = order["add_key"]["key_id"] if "add_key" in order else order["remove_key"]
        return {"value": {"key": {"id": key_id, "gateways": 2, "informed": 2}}}

    async with daemon_at(socket, reply, asked):
        browser = await signed_in(gateway, keys["operator"])
        wanted = {"tenant": "a", "note": "for\nthe web", "expires_days": 2}
        answer = await browser.post(API + "make-key", wanted)
        made = answer.json()
        assert answer.headers["cache-control"] == "no-store" and made["informed"] == 2
        record = asked[0]["args"][0]["add_key"]
        assert record["sha256"] == hashlib.sha256(made["key"].encode()).hexdigest()
        assert made["key"] not in json.dumps(asked) and record["note"] == "for the web"
        assert 1.9 < (record["expires_s"] - record["created_s"]) / 86400 < 2.1
        assert (await browser.post(API + "revoke-key", {"id": made["id"]})).json()["id"] == made["id"]
        assert asked[1]["args"][0]["remove_key"] == made["id"]


@pytest.mark.parametrize(
    ("order", "body"),
    [
        ("make-key", {}),
        ("make-key", {"tenant": ""}),
        ("make-key", {"tenant": "a", "expires_days": 0}),
        ("make-key", {"tenant": "a", "sha256": "0"}),
        ("revoke-key", {}),
        ("revoke-key", {"id": 7}),
    ],
    ids=["none", "empty", "expires", "digest", "no-id", "number"],
)
async def test_wrong_keys_reach_no_daemon(lab: Any, order: str, body: Any) -> None:
    gateway, keys, socket = lab
    asked: list[Any] = []
    async with daemon_at(socket, lambda _: None, asked):
        browser = await signed_in(gateway, keys["operator"])
        assert (await browser.post(API + order, body)).code == "bad_key"
    assert asked == []


async def test_refused_key_is_not_shown(lab: Any) -> None:
    gateway, keys, socket = lab
    wrong = {"value": {"status": 400, "error": "the fleet x has no tenant 'c'", "hint": "did you mean a?"}}
    async with daemon_at(socket, lambda _: wrong, []):
        browser = await signed_in(gateway, keys["operator"])
        answer = await browser.post(API + "make-key", {"tenant": "c"})
    assert answer.code == "bad_key" and b"lb-" not in answer.body and b"did you mean a?" in answer.body


async def test_gateway_alone_names_the_command_for_keys(make_gateway: Any, make_upstream: Any) -> None:
    policy, keys = lab_policy(("a",))
    browser = await signed_in(await make_gateway(await make_upstream(), policy=policy), keys["operator"])
    answer = await browser.post(API + "make-key", {"tenant": "a"})
    assert answer.code == "no_fleet" and b"longboat keys create --file" in answer.body


# adapters


async def test_adapters_are_changed_as_by_the_admin_api(lab: Any) -> None:
    gateway, keys, socket = lab
    asked: list[Any] = []
    async with daemon_at(socket, lambda _: {"value": {"adapter": {"name": "x"}}}, asked):
        browser = await signed_in(gateway, keys["operator"])
        added = await browser.post(API + "add-adapter", {"model": "tiny", "source": "/adapters/x"})
        assert added.json() == {"adapter": {"name": "x"}}
        assert (await browser.post(API + "remove-adapter?name=x", {})).json() == {"removed": "x"}
    orders = [question["args"][0] for question in asked]
    assert orders[0]["add"]["source"] == "/adapters/x" and orders[1]["remove"] == "x"
    assert (await browser.live("adapters"))["data"] == {"adapters": []}


# logs and weights


async def with_view(gateway: Gateway, keys: dict[str, str]) -> tuple[Browser, dict[str, Any]]:
    view = fleet_view(models=("tiny",))
    await gateway.steering.offer_view(json.dumps(view).encode())
    return await signed_in(gateway, keys["operator"]), view


async def test_log_begins_with_its_end_and_goes_on_at_its_offset(lab: Any) -> None:
    gateway, keys, socket = lab
    asked: list[Any] = []
    text = HOSTILE * 9000
    async with daemon_at(socket, lambda _: {"value": [77, text]}, asked):
        browser, view = await with_view(gateway, keys)
        found = (await browser.get(API + "log?model=tiny")).json()
        assert found["offset"] == 77 and found["cut"] and len(found["text"]) == 64 * 1024
        assert len(found["replicas"]) == 9 and found["replica"] == view["replicas"][0]["replica"]
        chosen = view["replicas"][3]
        await browser.get(f"{API}log?model=tiny&replica={chosen['replica']}&rank=1&offset=77")
    first, second = (question["args"] for question in asked)
    assert first[1] == "read_log" and first[5] is None
    assert second == [chosen["ranks"][1]["node"], "read_log", "tiny", chosen["replica"], 1, 77, 200]
    assert (await gateway.steering.report())["watched"]


@pytest.mark.parametrize(
    "query",
    ["model=tiny&replica=..%2F..%2Fetc", "model=..%2F..&replica=x", "model=other", "model="],
    ids=["replica", "model", "other", "none"],
)
async def test_log_of_nothing_that_runs_asks_no_node(lab: Any, query: str) -> None:
    gateway, keys, socket = lab
    asked: list[Any] = []
    async with daemon_at(socket, lambda _: {"value": [0, "secret"]}, asked):
        browser, _ = await with_view(gateway, keys)
        assert (await browser.get(f"{API}log?{query}")).json()["text"] == ""
    assert asked == []


async def test_log_waits_for_the_view_and_names_a_silent_node(lab: Any) -> None:
    gateway, keys, socket = lab
    browser = await signed_in(gateway, keys["operator"])
    assert (await browser.get(API + "log?model=tiny")).code == "no_view"
    async with daemon_at(socket, lambda _: {"error": "node 01 has no daemon", "hint": ""}, []):
        browser, _ = await with_view(gateway, keys)
        answer = await browser.get(API + "log?model=tiny")
    assert answer.code == "log_away" and b"node 01 has no daemon" in answer.body


async def test_weights_are_listed_by_node_and_a_silent_one_is_named(lab: Any) -> None:
    gateway, keys, socket = lab
    row = {"key": "qwen", "source": "Qwen/Qwen3-32B", "total_bytes": 9, "have_bytes": 9, "is_whole": True}

    def reply(question: dict[str, Any]) -> Any:
        return {"error": "gone", "hint": ""} if question["args"][0].startswith("02") else {"value": [row]}

    async with daemon_at(socket, reply, []):
        _, view = await with_view(gateway, keys)
        browser = await signed_in(gateway, keys["viewer"])
        found = (await browser.live("weights"))["data"]
    assert len(found["nodes"]) == len(view["nodes"]) - 1 and found["silent"] == ["host-2"]
    assert found["nodes"][0]["weights"] == [row]


async def test_nodes_that_are_not_asked_in_time_count_as_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        await reader.read()
        writer.close()

    monkeypatch.setattr(node_reads, "_ALL_S", 0.5)
    names = [f"host-{number}" for number in range(20)]
    view = {"nodes": [{"id": name, "hostname": name, "alive": True} for name in names]}
    async with await asyncio.start_unix_server(hang, tmp_path / "d.sock"):
        found = await stored_weights(str(tmp_path / "d.sock"), view)
    assert found == {"nodes": [], "known": True, "silent": names}
    assert len(asked) <= 8


async def test_planner_gets_the_run_folder_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBOAT_RUN", "the user's")
    command = [
        sys.executable,
        "-c",
        "import json, os; print(json.dumps({'value': {'run': os.environ['LONGBOAT_RUN']}}))",
    ]
    for run, named in ((tmp_path, str(tmp_path)), (None, "the user's")):
        assert await PlanWorkers(run, command=command).answer({"kind": "plan"}, 0.0) == {"run": named}


# models


def answering(tmp_path: Path, said: str) -> ModelOrders:
    """Return orders whose process writes down what it reads, and answers ``said``."""
    text = f"import sys; open({str(tmp_path / 'order')!r}, 'w').write(sys.stdin.read()); print({said!r})"
    return ModelOrders(tmp_path, command=[sys.executable, "-c", text])


async def test_model_is_started_in_the_operators_name(lab: Any, tmp_path: Path) -> None:
    gateway, keys, _ = lab
    gateway.state.model_orders = answering(tmp_path, '{"value": {"started": "m"}}')
    browser = await signed_in(gateway, keys["operator"])
    form = {"source": "hf:Qwen/Qwen3-0.6B", "by": "somebody else", "order": "end"}
    answer = await browser.post(API + "start-model", form)
    assert (answer.status, answer.json()) == (200, {"started": "m"})
    order = json.loads((tmp_path / "order").read_text())
    assert order == {"source": "hf:Qwen/Qwen3-0.6B", "by": "operator, console", "order": "start"}
    await browser.post(API + "end-model?model=m")
    assert json.loads((tmp_path / "order").read_text()) == {"order": "end", "model": "m"}


@pytest.mark.parametrize(
    ("said", "status", "code", "words"),
    [
        (
            '{"status": 400, "error": "m: no room", "hint": "add a node"}',
            400,
            "bad_model",
            "no room. Hint: add a node.",
        ),
        ('{"status": 503, "error": "no fleet is up", "hint": ""}', 503, "change_failed", "no fleet is up."),
        ("", 503, "change_failed", "The change failed"),
        ("[]", 503, "change_failed", "The change failed"),
    ],
    ids=["refused", "no fleet", "nothing", "no object"],
)
async def test_model_that_cannot_be_started_says_why(
    lab: Any, tmp_path: Path, said: str, status: int, code: str, words: str
) -> None:
    gateway, keys, _ = lab
    gateway.state.model_orders = answering(tmp_path, said)
    browser = await signed_in(gateway, keys["operator"])
    answer = await browser.post(API + "start-model", {"source": "builtin:tiny"})
    assert (answer.status, answer.code) == (status, code)
    assert words in answer.json()["error"]["message"]


async def test_form_of_a_model_that_is_no_object_is_refused(lab: Any) -> None:
    gateway, keys, _ = lab
    browser = await signed_in(gateway, keys["operator"])
    assert (await browser.post(API + "start-model", [1])).code == "bad_model"


async def test_one_model_is_started_at_a_time(tmp_path: Path) -> None:
    command, pids = sleeper(tmp_path)
    orders = ModelOrders(tmp_path, command=command, deadline_s=5.0)
    first = asyncio.create_task(orders.end("m"))
    await asyncio.sleep(0)
    second = await orders.end("n")
    assert isinstance(second, Refusal) and (second.status, second.code) == (409, "another_change")
    found = await first
    assert isinstance(found, Refusal) and (found.status, found.code) == (504, "change_not_confirmed")
    worker, child, _ = map(int, pids.read_text().split())
    await wait_until_async(lambda: not is_alive(worker) and not is_alive(child))


async def test_model_is_started_also_where_the_person_leaves_the_page(tmp_path: Path) -> None:
    began, done = tmp_path / "began", tmp_path / "done"
    text = f"import time; open({str(began)!r}, 'w').close(); time.sleep(1); open({str(done)!r}, 'w').close()"
    orders = ModelOrders(tmp_path, command=[sys.executable, "-c", text])
    asking = asyncio.create_task(orders.start(b'{"source": "builtin:tiny"}', "x"))
    for _ in range(1200):
        if began.exists():
            break
        await asyncio.sleep(0.05)
    asking.cancel()
    for _ in range(1200):
        if done.exists():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the order ended with its client")


async def test_gateway_by_itself_starts_no_model() -> None:
    found = await ModelOrders(None).end("m")
    assert isinstance(found, Refusal) and (found.status, found.code) == (409, "no_fleet")


@pytest.mark.parametrize("demo", [False, True])
async def test_engines_are_killed_only_in_a_fleet_for_showing(
    make_gateway: Any, make_upstream: Any, tmp_path: Path, demo: bool
) -> None:
    policy, keys = lab_policy(("a",))
    policy = dataclasses.replace(policy, demo=demo)
    own = {"daemon_socket": str(tmp_path / "d.sock")}
    gateway = await make_gateway(await make_upstream(), policy=policy, settings=own)
    asked: list[Any] = []
    async with daemon_at(tmp_path / "d.sock", lambda _: {"value": {"killed": {"replica": "r"}}}, asked):
        found = []
        for who in ("operator", "viewer", "a"):
            browser = await signed_in(gateway, keys[who])
            may = (await browser.get(API + "session")).json()["may_kill"]
            found.append((may, (await browser.post(API + "kill-engine", {"replica": "r"})).status))
    assert found == [(demo, 200 if demo else 403), (False, 403), (False, 403)]
    assert [question["args"][0]["kill"] for question in asked] == ["r"] * demo


async def test_owner_of_a_keyless_demo_may_kill_engines(make_gateway: Any, make_upstream: Any, tmp_path: Path) -> None:
    own = {"daemon_socket": str(tmp_path / "d.sock")}
    gateway = await make_gateway(await make_upstream(), policy=Policy(demo=True), settings=own)
    async with daemon_at(tmp_path / "d.sock", lambda _: {"value": {"killed": {"replica": "r"}}}, []):
        browser = Browser(gateway)
        browser.host = f"localhost:{gateway.port}"
        session = (await browser.get(API + "session")).json()
        assert (session["may_kill"], session["may_steer"]) == (True, False)
        browser.csrf = session["csrf"]
        assert (await browser.post(API + "kill-engine", {"replica": "r"})).status == 200
        assert (await browser.post(API + "kill-engine", {"replica": "r"}, headers="")).status == 403
        assert (await browser.post(API + "drain")).status == 403
