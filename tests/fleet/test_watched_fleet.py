"""A real Prometheus scrapes a real fleet: every panel has data, and each alert fires with its fault and ends with it.

The rules are those that ``longboat dashboards`` writes, with every duration divided by 30: ten seconds stand for five
minutes. ``make check-watch`` runs this file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from free_ports import free_port
from longboat.dashboards.alert_list import ALERTS
from longboat.dashboards.files import all_files
from longboat.folders import home_folder
from longboat.gateway.limits.keys import new_admin_key

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gateway"))

from check_panels import empty_panels
from redis_server import RedisServer, programs

PROMETHEUS = shutil.which("prometheus") or ""
pytestmark = [
    pytest.mark.watch,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PROMETHEUS, reason="Prometheus is not installed: apt-get install prometheus"),
    pytest.mark.skipif(not programs(), reason="no redis-server is here: install the development requirements"),
]
FASTER = 30
FAULT_S = 150.0
VIEWER, VIEWER_RECORD = new_admin_key("eye", "viewer")
OPERATOR, OPERATOR_RECORD = new_admin_key("hand", "operator")

REAL = """
  - name: real
    source: builtin:tiny
    context: 512
    load: {users: 2, prompt_tokens: 64, output_tokens: 64}
    resources: {cpus: 1}
"""
"""A model of vLLM: of fake engines the planner knows nothing, so that they have no forecast."""

FLEET = """
name: watched
models:{real}
  - name: a
    source: builtin:tiny
    engine: {{kind: fake, options: {{max_num_seqs: 2, itl_ms: 20, ttft_ms: 20, poison: nightshade}}}}
    replicas: 2
    resources: {{cpus: 0.1}}
  - name: lone
    source: builtin:tiny
    engine: {{kind: fake, options: {{max_num_seqs: 2, itl_ms: 20, start_s: 45}}}}
    resources: {{cpus: 0.1}}
  - name: outside
    engine:
      kind: external
      urls: ["http://127.0.0.1:{outside}/v1"]
      price: {{input_per_million: 1, output_per_million: 2}}
gateway:
  port: {port}
  processes: 2
  auth: keys
  demo: true
  tenants:
    - {{name: urgent, priority: 0, external: true}}
    - {{name: batch, priority: 5, tokens_per_day: 1000000000}}
    - {{name: small, requests_per_minute: 1}}
  queue: {{max_wait_s: 30}}
  prices: {{a: {{input_per_million: 1, output_per_million: 2}}}}
  fallbacks: {{lone: [outside]}}
  resume: {{wait_s: 1, whole_wait_s: 1}}
  redis: {{url: "{redis}"}}
  admin:
    - {{name: eye, role: viewer, sha256: {eye}}}
    - {{name: hand, role: operator, sha256: {hand}}}
"""


def scaled(text: str) -> str:
    """Return rules with all their durations divided by ``FASTER``."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[2]) * {"s": 1, "m": 60, "h": 3600}[found[3]]
        return f"{found[1]}{max(seconds // FASTER, 1 if 's' in found[3] else 5)}s{found[4]}"

    return re.sub(r"(for: |\[)(\d+)([smh])(\]|$)", shorter, text, flags=re.MULTILINE)


@dataclass
class Watched:
    """A fleet with its Prometheus, and keys that open it."""

    lab: FleetLab
    prometheus: str
    keys: dict[str, str]
    redis: RedisServer
    has_vllm: bool

    def ask(self, tenant: str, model: str, prompt: str = "row", max_tokens: int = 3, **more: object) -> int:
        """Return the status of a streamed completion; 0 where it broke off."""
        return self._complete(tenant, model, prompt, max_tokens, **more)[0]

    def replica_that_answers(self, tenant: str, model: str, prompt: str) -> str:
        return self._complete(tenant, model, prompt, 2)[2]

    def _complete(self, tenant: str, model: str, prompt: str, max_tokens: int, **more: object) -> tuple[int, Any, str]:
        values = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": True, **more}
        return self._post(f"http://127.0.0.1:{self.lab.port}/v1/completions", values, self.keys[tenant])

    def admin(self, path: str, **body: object) -> Any:
        return self._post(f"http://127.0.0.1:{self.lab.port}/admin/v1/{path}", body, OPERATOR)[1]

    def engines(self, model: str) -> dict[str, str]:
        """Return replica → the address of its engine."""
        groups = json.loads(self._get("prometheus-targets?of=engines"))
        found = [(group["labels"], group["targets"][0]) for group in groups]
        return {labels["replica"]: f"http://{target}" for labels, target in found if labels["model"] == model}

    def plant(self, url: str, **fault: object) -> None:
        self._post(f"{url}/fault", fault, "")

    def firing(self) -> set[str]:
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/alerts", timeout=20) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def seen(self, alert: str) -> str:
        """Say what the alert's expression was while the fault lasted, and how many scrapes failed."""
        (expr,) = (one.expr for one in ALERTS if one.name == alert)
        found = {name: self._range(text) for name, text in (("it", scaled(expr)), ("up", 'up{job="longboat"}'))}
        of_series = [f"{row['metric']}: {len(row['values'])} of {FAULT_S:.0f} s, {_ends(row)}" for row in found["it"]]
        failed = sum(value == "0" for row in found["up"] for _, value in row["values"])
        return f"{'; '.join(of_series) or 'no value'}; {failed} scrapes failed"

    def _range(self, expr: str) -> list[dict[str, Any]]:
        now_s = time.time()
        query = urllib.parse.urlencode({"query": expr, "start": now_s - FAULT_S, "end": now_s, "step": 1})
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/query_range?{query}", timeout=20) as answer:
            return list(json.load(answer)["data"]["result"])

    def _get(self, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {VIEWER}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.lab.port}/admin/v1/{path}", None, headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bytes(answer.read())

    def _post(self, url: str, values: dict[str, Any], key: str) -> tuple[int, Any, str]:
        """Return the status (0 where it broke off), the body, and the replica that answered."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        request = urllib.request.Request(url, json.dumps(values).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                data = answer.read()
            found = json.loads(data) if data.startswith((b"{", b"[")) else data
            return answer.status, found, answer.headers.get("x-longboat-replica", "")
        except urllib.error.HTTPError as error:
            return error.code, error.read(), ""
        except OSError as error:
            return 0, str(error), ""

    @contextmanager
    def always(self, *works: Callable[[], object]) -> Iterator[None]:
        """Repeat each of these works in a thread of its own until the block is left."""
        over = threading.Event()

        def repeat(work: Callable[[], object]) -> None:
            while not over.wait(0.05):
                with contextlib.suppress(OSError, KeyError, StopIteration, ValueError):
                    work()

        threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(100)

    def fires_and_ends(self, fault: contextlib.AbstractContextManager[object], *alerts: str) -> None:
        """Check that none of the alerts fires before the fault, that all fire while it lasts, and none after it."""
        missing: set[str] = set(alerts)

        def all_fired() -> bool:
            missing.difference_update(self.firing())
            return not missing

        wait_until(f"{alerts} are quiet", lambda: not self.firing() & set(alerts), FAULT_S)
        with fault:
            try:
                wait_until("fire", all_fired, FAULT_S)
            except AssertionError:
                seen = "\n".join(f"{name}: {self.seen(name)}" for name in sorted(missing))
                raise AssertionError(f"these do not fire with their fault, and Prometheus saw:\n{seen}") from None
        wait_until(f"{alerts} end with the fault", lambda: not self.firing() & set(alerts), FAULT_S)


def _ends(row: dict[str, Any]) -> str:
    values = [float(value) for _, value in row["values"]]
    return f"between {min(values):.3g} and {max(values):.3g}"


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lb-", ignore_cleanup_errors=True))
        lab = FleetLab(Path(folder), env={"LONGBOAT_HOME": f"{folder}/home"})
        stack.callback(lab.end)
        redis = RedisServer(next(iter(programs().values())), lab.folder)
        redis.start()
        stack.callback(redis.kill)
        outside = free_port()
        _process(stack, sys.executable, "-m", "longboat_fake", "--model", "outside", "--port", str(outside))
        file = lab.folder / "fleet.yaml"
        eye, hand = VIEWER_RECORD.sha256, OPERATOR_RECORD.sha256
        has_vllm = _with_engines(lab.folder / "home")
        real = REAL if has_vllm else ""
        file.write_text(FLEET.format(real=real, port=lab.port, outside=outside, redis=redis.url, eye=eye, hand=hand))
        lab.must("up", str(file), "--detach", timeout_s=240)
        keys = {name: lab.must("keys", "create", "--tenant", name).strip() for name in ("urgent", "batch", "small")}
        wait_until("all are ready", lambda: len(lab.replicas()) == 3 + has_vllm)
        yield Watched(lab, _prometheus(stack, lab), keys, redis, has_vllm)


def _with_engines(home: Path) -> bool:
    """Let the fleet find this machine's engines; return whether vLLM is among them."""
    home.mkdir()
    (home / "engines").symlink_to(home_folder() / "engines")
    return any((home / "engines").glob("vllm-*"))


def _process(stack: ExitStack, *words: str) -> None:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait, 30)
    stack.callback(process.kill)


def _prometheus(stack: ExitStack, lab: FleetLab) -> str:
    """Run Prometheus with the files of ``longboat dashboards``, in faster time; return its address."""
    (lab.folder / "key").write_text(VIEWER)
    files = all_files((f"127.0.0.1:{lab.port}",), key_file=str(lab.folder / "key"))
    settings = files["prometheus.yaml"].replace("15s", "1s")
    (lab.folder / "prometheus.yaml").write_text(settings)
    (lab.folder / "longboat-alerts.yaml").write_text(scaled(files["longboat-alerts.yaml"]))
    port = free_port()
    _process(
        stack, PROMETHEUS, f"--config.file={lab.folder}/prometheus.yaml", f"--storage.tsdb.path={lab.folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    )  # fmt: skip
    return f"http://127.0.0.1:{port}"


def test_no_panel_of_a_busy_fleet_is_empty(watched: Watched) -> None:
    lab = watched.lab

    def kill_one() -> None:
        watched.admin("kill-engine", replica=next(iter(watched.engines("a"))))
        time.sleep(15)

    def hang_one() -> None:
        watched.plant(next(iter(watched.engines("a").values())), kind="hang")
        time.sleep(20)

    batch = lambda: watched.ask("batch", "a", "a long prompt of batches " * 20, 300)  # noqa: E731
    works = (
        *[batch] * 6,
        lambda: watched.ask("urgent", "a", "row", 20),
        lambda: watched.ask("urgent", "a", "the same words " * 60, 20),
        lambda: watched.ask("urgent", "outside"),
        lambda: watched.ask("urgent", "lone"),
        lambda: watched.ask("small", "lone"),
        lambda: watched.has_vllm and watched.ask("urgent", "real", "row", 30),
        kill_one,
        hang_one,
    )
    lone = next(iter(watched.engines("lone")))
    missing: list[str] = []

    def all_have_data() -> bool:
        found = empty_panels(watched.prometheus)
        missing[:] = [line for line in found if watched.has_vllm or "_predicted_" not in line]
        return not missing

    with watched.always(*works):
        watched.admin("models/a/scale", replicas=3)
        time.sleep(8)
        watched.admin("models/a/scale", replicas="auto")
        watched.admin("kill-engine", replica=lone)  # its requests fall back to the external model meanwhile
        try:
            wait_until("all panels have data", all_have_data, 240)
        except AssertionError:
            print("\n".join(missing))
    assert missing == []
    assert lab.replicas()


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def gateway_pids(watched: Watched) -> tuple[int, list[int]]:
    """Return the parent of the gateway's processes, and its children."""
    parent = int(watched.lab.status()["gateways"][0]["pid"])
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return parent, [int(child) for child in children]


def test_alerts_of_gateways(watched: Watched) -> None:
    parent, workers = gateway_pids(watched)
    ask = lambda: watched.ask("batch", "a")  # noqa: E731
    with watched.always(ask):
        watched.fires_and_ends(stopped(parent), "LongboatGatewayDown")
        watched.fires_and_ends(stopped(workers[0]), "LongboatGatewayProcessMissing")
        watched.fires_and_ends(lagging(watched, workers[0]), "LongboatGatewayLags")
        watched.fires_and_ends(full_disk(watched), "LongboatLogLinesDropped")
        watched.fires_and_ends(without_redis(watched), "LongboatLimitsWithoutRedis")


@contextmanager
def lagging(watched: Watched, pid: int) -> Iterator[None]:
    def pulse() -> None:
        with stopped(pid):
            time.sleep(0.8)
        time.sleep(0.2)

    with watched.always(pulse):
        yield


@contextmanager
def full_disk(watched: Watched) -> Iterator[None]:
    """Put a device that is full in the place of the access log."""
    log = next(watched.lab.folder.rglob("access.log"))
    kept = log.with_suffix(".kept")
    log.rename(kept)
    log.symlink_to("/dev/full")
    try:
        yield
    finally:
        log.unlink()
        kept.rename(log)


@contextmanager
def without_redis(watched: Watched) -> Iterator[None]:
    watched.redis.kill()
    try:
        yield
    finally:
        watched.redis.start()


def test_alerts_of_replicas(watched: Watched) -> None:
    ask = lambda: watched.ask("urgent", "lone", max_tokens=100)  # noqa: E731
    with watched.always(ask, ask):
        watched.fires_and_ends(dying(watched, "lone"), "LongboatModelHasNoReplica", "LongboatStreamsLost")
    watched.fires_and_ends(too_many(watched), "LongboatReplicasUnplaced", "LongboatReplicasMissing")
    watched.fires_and_ends(flapping(watched), "LongboatScalingFlaps")


@contextmanager
def dying(watched: Watched, model: str) -> Iterator[None]:
    def kill() -> None:
        watched.admin("kill-engine", replica=next(iter(watched.engines(model))))
        time.sleep(2)

    with watched.always(kill):
        yield


@contextmanager
def too_many(watched: Watched) -> Iterator[None]:
    watched.admin("models/lone/scale", replicas=100)
    try:
        yield
    finally:
        watched.admin("models/lone/scale", replicas="auto")


@contextmanager
def flapping(watched: Watched) -> Iterator[None]:
    def flap() -> None:
        for number in (2, 1):
            watched.admin("models/a/scale", replicas=number)
            time.sleep(1)

    with watched.always(flap):
        yield
    watched.admin("models/a/scale", replicas="auto")


def test_alerts_of_requests(watched: Watched) -> None:
    whole(watched, "a", 2)
    late = lambda: watched.ask("batch", "a", max_tokens=150)  # noqa: E731
    watched.fires_and_ends(watched.always(*[late] * 80), "LongboatQueueIsLong", "LongboatRefusals")
    whole(watched, "lone", 1)
    ask = lambda: watched.ask("batch", "lone")  # noqa: E731
    with watched.always(ask):
        watched.fires_and_ends(faulty(watched, "lone", kind="error", times=100_000), "LongboatErrors")
        watched.fires_and_ends(faulty(watched, "lone", kind="break", times=100_000), "LongboatReplicaSuspect")


def test_alerts_of_wrong_caches_and_deadly_requests(watched: Watched) -> None:
    whole(watched, "a", 2)
    watched.fires_and_ends(lying_caches(watched), "LongboatPrefixPredictionWrong")
    whole(watched, "a", 2)
    watched.fires_and_ends(deadly(watched), "LongboatPoisonRequests")
    whole(watched, "a", 2)


def whole(watched: Watched, model: str, number: int) -> None:
    wait_until(f"{model} is whole", lambda: len(watched.lab.replicas(model)) == number == len(watched.engines(model)))


@contextmanager
def faulty(watched: Watched, model: str, **fault: object) -> Iterator[None]:
    engines = watched.engines(model).values()
    for url in engines:
        watched.plant(url, **fault)
    try:
        yield
    finally:
        for url in engines:
            watched.plant(url, kind="none")


@contextmanager
def lying_caches(watched: Watched) -> Iterator[None]:
    """Before each request, empty the cache of the engine that has its prompt, and lose the news of it."""
    engines, prompt = watched.engines("a"), "words that come again " * 60
    last = [watched.replica_that_answers("urgent", "a", prompt)]

    def ask() -> None:
        engine = engines[last[0]]
        watched.plant(engine, kind="lose_events", times=1)
        watched.plant(engine, kind="evict")
        last[0] = watched.replica_that_answers("urgent", "a", prompt) or last[0]

    with watched.always(ask):
        yield


@contextmanager
def deadly(watched: Watched) -> Iterator[None]:
    """Send a request that kills each engine that begins it."""
    watched.ask("urgent", "a", "a tea of nightshade")
    yield


def test_every_alert_has_a_fault() -> None:
    planted = set(re.findall(r'"(Longboat\w+)"', Path(__file__).read_text()))
    assert planted == {alert.name for alert in ALERTS}
