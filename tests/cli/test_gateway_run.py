"""``longboat gateway run``: what it refuses, and a real gateway before engines that someone else started."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.cli_process import Done
from cli.test_import_budget import HEAVY, cost_of
from longboat.cli.gateway import standalone
from longboat.cli.gateway.run import GatewayChild
from longboat.gateway.limits.keys import new_key
from longboat.spec.files.keys_file import KeyBook, load_keys, save_keys

DEADLINE_S = 30.0
ENGINE = "--upstream=tiny=http://127.0.0.1:1"
# The command where neither Ray nor torch nor vLLM is installed.
WITHOUT_RAY = """
import sys
for name in ("ray", "torch", "vllm", "numpy"):
    sys.modules[name] = None
from longboat.cli.app import main
main()
"""

# A file with the word "unforeseen" meets a mistake of the command's own code.
FAILS_LATER = """
import longboat.cli.gateway.standalone as standalone
parse = standalone.parse_alone
standalone.parse_alone = lambda text, origin: 1 / 0 if "unforeseen" in text else parse(text, origin)
"""

LONG_LINES = """
import json, sys
sys.stdin.read()
sys.stderr.write("a" * 3_000_000 + "\\nshort\\nlast")
sys.stderr.flush()
print(json.dumps({"port": 7}), flush=True)
"""


async def test_a_long_line_of_the_gateway_is_shown_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("longboat.cli.gateway.run.gateway_command", lambda: [sys.executable, "-c", LONG_LINES])
    child = await GatewayChild.start(b"{}")
    try:
        assert await asyncio.wait_for(child.listening_port(), DEADLINE_S) == 7
        assert await asyncio.wait_for(child.ended(), DEADLINE_S) == 0
    finally:
        child.kill()
    shown = capsys.readouterr().err
    assert shown.count("a") >= 3_000_000 and shown.endswith("short\nlast\n")


class Engine(http.server.ThreadingHTTPServer):
    """Answers every POST with its name; ``hold`` keeps answers back until it is set."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, name: str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.name = name
        self.is_well = True
        self.hold = threading.Event()
        self.hold.set()
        self.asked = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self) -> None:
        self.hold.set()
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def do_GET(self) -> None:
        self._answer(200 if self.server.is_well else 503, b"")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.set()
        self.server.hold.wait(DEADLINE_S)
        self._answer(200, json.dumps({"by": self.server.name}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


class Run:
    """The command as a process; its words are gathered as they come."""

    def __init__(self, words: tuple[str, ...], env: dict[str, str], program: str = WITHOUT_RAY) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "gateway", "run", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **env},
            start_new_session=True,
        )
        self.said = ""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line

    def says(self, text: str) -> None:
        eventually(lambda: text in self.said, f"{text!r} in {self.said!r}")

    @property
    def port(self) -> int:
        self.says("/v1  for")
        return int(self.said.partition("/v1")[0].rpartition(":")[2])

    def ask(self, model: str = "tiny", key: str = "") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]})
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        document = json.loads(answer.read())
        connection.close()
        return answer.status, document

    def by(self, model: str = "tiny") -> str:
        """Name of the engine that answered; the error's code where none did."""
        _, document = self.ask(model)
        return str(document.get("by") or document["error"]["code"])

    def gateways(self) -> list[int]:
        """Processes of the gateway: those with our process as their forebear."""
        return _descendants(self.process.pid)

    def ended(self) -> int:
        return self.process.wait(DEADLINE_S)


def _descendants(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(word) for word in path.read_text().split()] if path.exists() else []
    return [*found, *(deeper for child in found for deeper in _descendants(child))]


def eventually(fact: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < end_s, f"never came true: {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(name: str, port: int = 0) -> Engine:
        made.append(Engine(name, port))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def run() -> Iterator[Callable[..., Run]]:
    """Starts the command in a folder with a short path: workers have Unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="lb-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield from _runs(Path(folder))


def _runs(folder: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []
    env = {"LONGBOAT_RUN": str(folder / "run"), "LONGBOAT_HOME": str(folder / "home"), "PYTHONUNBUFFERED": "1"}

    def start(*words: str, program: str = WITHOUT_RAY, **more: str) -> Run:
        made.append(Run(("--port=0", *words), {**env, **more}, program))
        return made[-1]

    yield start
    for one in made:
        pids = [one.process.pid, *one.gateways()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself
                os.kill(pid, signal.SIGKILL)
        one.process.wait(DEADLINE_S)


def write(path: Path, content: Any) -> Path:
    part = path.with_suffix(".part")
    part.write_text(content if isinstance(content, str) else json.dumps(content))
    part.rename(path)
    return path


@pytest.mark.parametrize(
    ("words", "place", "hint"),
    [
        ((), "upstreams: there is no upstream", "--upstream MODEL=http://HOST:PORT"),
        (("--upstream", "tiny"), "--upstream tiny: this is not MODEL=URL", "MODEL=URL"),
        (("--upstream", "http://h:1"), "--upstream http://h:1: this is not MODEL=URL", "MODEL=URL"),
        (("--upstream", "m=h:1"), "--upstream m=h:1: 'h:1' is not http://HOST:PORT", "write http://h:1"),
        (("--upstream", "m=http://h"), "--upstream m=http://h: ", "http://h:8000"),
        (("--upstream", "m=https://h:1"), "--upstream m=https://h:1: ", "TLS proxy"),
        (("--upstream", "m=http://u:p@h:1"), "the address holds a password", "api_key_env"),
        (("--upstream", "m=http://h:99999"), "--upstream m=http://h:99999: ", "http://"),
        (
            (ENGINE, ENGINE),
            "--upstream tiny=http://127.0.0.1:1: http://127.0.0.1:1 is already upstreams[0]",
            "keep one",
        ),
        ((ENGINE, "--host=0.0.0.0"), "--host: 0.0.0.0 is open to other machines", "--keys FILE"),
        ((ENGINE, "--host=no host"), "--host: 'no host' is neither", "127.0.0.1"),
        ((ENGINE, "--processes=0"), "--processes: 0 is less than", "write 1"),
        ((ENGINE, "--auth=yes"), "--auth: 'yes' is not one of", "keys"),
        (
            (ENGINE, "--keys=/nowhere/keys.json"),
            "--keys: there is no key file /nowhere/keys.json",
            "longboat keys create",
        ),
        ((ENGINE, "--keys=/k", "--auth=none"), "--keys: a key file is given", "leave one"),
        ((ENGINE, "--config=/nowhere.yaml"), "--config: /nowhere.yaml cannot be read: No such file", "YAML"),
        ((ENGINE, "--api-key-env=UNSET_VARIABLE"), "UNSET_VARIABLE is not set", "export UNSET_VARIABLE="),
        (("--api-key-env=X",), "--api-key-env: it belongs to --upstream, which is not given", "api_key_env"),
    ],
)
def test_run_refuses_with_place_and_hint(
    words: tuple[str, ...], place: str, hint: str, longboat: Callable[..., Done]
) -> None:
    done = longboat("gateway", "run", *words)
    assert done.returncode == 2
    assert place in done.stderr
    assert hint in done.stderr.partition("→")[2]
    assert done.stderr.count("→") == 1, "each mistake is listed once"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("models: [builtin:tiny]", "models[0]: a gateway by itself starts no models"),
        ("upstream: []", "upstream: there is no field 'upstream' here"),
        ("- a", "the file is a list"),
        ("a: [", "not YAML, line 2"),
        ("upstreams: [{model: m}]", "upstreams[0].url: url is missing"),
        ("upstreams: [{model: m, url: 'http://h'}]", "upstreams[0].url: 'http://h' is not"),
        ("upstreams: [{model: m, url: 'http://h:1', capacity: 0}]", "upstreams[0].capacity: 0 is less"),
        ("upstreams: [{model: m, url: 'http://h:1'}]\ngateway: {aliases: [{name: a, model: x}]}", "gateway.aliases[0]"),
        ("upstreams: [{model: m, url: 'http://h:1'}]\ngateway: {host: 0.0.0.0}", "gateway.host: 0.0.0.0 is open"),
        ("upstreams: [{model: m, url: 'http://h:1'}]\nhealth: {every_s: 0}", "health.every_s: 0 is less"),
        (
            "upstreams: [{model: m, url: 'http://h:1', replica: a}, {model: m, url: 'http://h:2', replica: a}]",
            "upstreams[1].replica: 'a' is already the name of upstreams[0]",
        ),
    ],
)
def test_file_is_refused_with_its_place(
    content: str, place: str, longboat: Callable[..., Done], tmp_path: Path
) -> None:
    path = write(tmp_path / "gateway.yaml", content)
    done = longboat("gateway", "run", "--config", str(path))
    assert done.returncode == 2
    assert f"error: {path}: " in done.stderr
    assert place in done.stderr


def test_every_mistake_of_file_and_command_is_told_at_once(longboat: Callable[..., Done], tmp_path: Path) -> None:
    content = """
upstream: []
upstreams: [{model: m, url: 'http://h:1', capacity: 0}]
gateway: {port: 0, rules: [{to: gone}]}
"""
    path = write(tmp_path / "gateway.yaml", content)
    done = longboat("gateway", "run", "--config", str(path), "--upstream", "nonsense")
    assert done.returncode == 2
    assert "5 problems" in done.stderr
    for place in ("--upstream nonsense", "upstream", "upstreams[0].capacity", "gateway.port", "gateway.rules[0].to"):
        assert f"  {place}: " in done.stderr


def test_unknown_field_of_an_upstream_names_the_nearest(longboat: Callable[..., Done], tmp_path: Path) -> None:
    path = write(tmp_path / "g.yaml", "upstreams: [{model: m, url: 'http://h:1', capazity: 3, x: 1}]")
    done = longboat("gateway", "run", "--config", str(path))
    assert "upstreams[0].capazity: there is no field" in done.stderr
    assert "write capacity" in done.stderr
    assert "known here: model, url" in done.stderr


def test_run_loads_nothing_heavy() -> None:
    loaded = set(cost_of("import longboat.cli.gateway.run, longboat.gateway.__main__")["loaded"])
    assert "longboat" in loaded
    assert not loaded & HEAVY


def test_run_spreads_over_replicas_and_ends_on_interrupt(
    engine: Callable[..., Engine], run: Callable[..., Run]
) -> None:
    one, two = engine("one"), engine("two")
    gateway = run(f"--upstream=tiny={one.url}/v1", f"--upstream=tiny={two.url}", f"--upstream=other={two.url}")
    assert {gateway.by() for _ in range(10)} == {"one", "two"}
    assert gateway.by("other") == "two"
    gateway.says(f"tiny   r1       ready  {two.url}")
    gateway.says("for every user of this machine: no keys are required")
    pids = gateway.gateways()
    gateway.process.send_signal(signal.SIGINT)
    assert gateway.ended() == 0
    assert pids and all(is_gone(pid) for pid in pids)
    assert "Traceback" not in gateway.said


def test_run_says_which_engine_goes_and_comes(
    engine: Callable[..., Engine], run: Callable[..., Run], tmp_path: Path
) -> None:
    one, two = engine("one"), engine("two")
    path = write(tmp_path / "g.yaml", {"health": {"every_s": 0.1}})
    gateway = run(f"--config={path}", f"--upstream=tiny={one.url}", f"--upstream=tiny={two.url}")
    assert gateway.port
    one.is_well = False
    gateway.says(f"tiny r0 is down: {one.url} (status 503)")
    eventually(lambda: {gateway.by() for _ in range(6)} == {"two"}, "all requests go to the other")
    one.is_well = True
    gateway.says(f"tiny r0 is ready: {one.url}")
    eventually(lambda: gateway.by() == "one", "it is used again")


def test_run_before_any_engine_is_there(engine: Callable[..., Engine], run: Callable[..., Run], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = write(tmp_path / "g.yaml", {"health": {"every_s": 0.1}})
    gateway = run(f"--config={path}", f"--upstream=tiny=http://127.0.0.1:{port}")
    gateway.says("connection refused")
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(gateway.by()), daemon=True)
    asking.start()
    engine("late", port)
    gateway.says("tiny r0 is ready")
    asking.join(DEADLINE_S)
    assert answers == ["late"], "who asked too early has waited"


def test_changed_file_is_taken_and_a_broken_one_is_not(
    engine: Callable[..., Engine], run: Callable[..., Run], tmp_path: Path
) -> None:
    one, two = engine("one"), engine("two")
    upstreams = [{"model": "tiny", "url": one.url}]
    path = write(tmp_path / "g.yaml", {"upstreams": upstreams})
    gateway = run(f"--config={path}")
    assert gateway.by() == "one"
    write(path, "upstreams: [{")
    gateway.says("what was read before stays in use")
    assert gateway.by() == "one"
    write(path, {"upstreams": [*upstreams, {"model": "more", "url": two.url}], "gateway": {"processes": 2}})
    gateway.says("gateway.processes: changed; start the gateway again for it")
    eventually(lambda: gateway.by("more") == "two", "the new model is served")
    assert gateway.by() == "one"
    write(path, {"upstreams": [{"model": "more", "url": two.url}], "gateway": {"processes": 2}})
    eventually(lambda: gateway.ask()[0] == 404, "the old model is gone")


def test_external_models_need_no_engine(engine: Callable[..., Engine], run: Callable[..., Run], tmp_path: Path) -> None:
    one = engine("one")
    outside = {"kind": "external", "urls": [f"{one.url}/v1"], "limits": {"requests_per_day": 2}}
    file = write(tmp_path / "gateway.yaml", {"models": [{"name": "cloud", "engine": outside}]})
    gateway = run("--config", str(file))
    assert [gateway.ask("cloud")[0] for _ in range(3)] == [200, 200, 429]
    assert "external" in gateway.said
    limits = {"requests_per_day": 3}
    write(file, {"models": [{"name": "cloud", "engine": {**outside, "limits": limits}}]})
    eventually(lambda: gateway.ask("cloud")[0] == 200, "the new limit")
    assert gateway.ask("cloud")[0] == 429


def test_changed_aliases_are_taken(engine: Callable[..., Engine], run: Callable[..., Run], tmp_path: Path) -> None:
    upstreams = [{"model": "tiny", "url": engine("one").url}]
    path = write(tmp_path / "g.yaml", {"upstreams": upstreams})
    gateway = run(f"--config={path}")
    assert gateway.ask("gpt")[0] == 404
    write(path, {"upstreams": upstreams, "gateway": {"aliases": [{"name": "gpt", "model": "tiny"}]}})
    eventually(lambda: gateway.by("gpt") == "one", "the alias is served")


def test_no_mistake_in_a_file_ends_the_gateway(
    engine: Callable[..., Engine], run: Callable[..., Run], tmp_path: Path
) -> None:
    """Also one that a check does not foresee: the gateway complains, and serves on by the old file."""
    upstreams = [{"model": "tiny", "url": engine("one").url}]
    path = write(tmp_path / "g.yaml", {"upstreams": upstreams})
    gateway = run(f"--config={path}", program=FAILS_LATER + WITHOUT_RAY)
    assert gateway.by() == "one"
    write(path, {"upstreams": upstreams, "gateway": {"tenants": [{"name": "b", "tags": None}]}})
    gateway.says("gateway.tenants[0].tags")
    write(path, "unforeseen: yes")
    gateway.says("error: unexpected ZeroDivisionError: ")
    assert gateway.by() == "one"
    write(path, {"upstreams": upstreams, "gateway": {"aliases": [{"name": "gpt", "model": "tiny"}]}})
    eventually(lambda: gateway.by("gpt") == "one", "the alias is served")


def test_keys_are_asked_for_and_read_again(
    engine: Callable[..., Engine], run: Callable[..., Run], tmp_path: Path
) -> None:
    first, first_record = new_key("default", now_s=time.time())
    second, second_record = new_key("default", now_s=time.time())
    keys = tmp_path / "keys.json"
    save_keys(keys, KeyBook(salt="s", keys=(first_record,)))
    gateway = run(f"--upstream=tiny={engine('one').url}", f"--keys={keys}", "--processes=2")
    gateway.says("for 1 key\n")
    assert gateway.ask()[0] == 401
    assert gateway.ask(key=first)[0] == 200
    assert gateway.ask(key=second)[0] == 401
    save_keys(keys, KeyBook(salt="s", keys=(second_record,)))
    eventually(lambda: gateway.ask(key=second)[0] == 200, "the new key opens")
    eventually(lambda: gateway.ask(key=first)[0] == 401, "the revoked key does not")
    keys.unlink()
    gateway.says("what was read before stays in use")
    assert gateway.ask(key=second)[0] == 200


def test_a_key_is_revoked_although_the_settings_have_a_mistake(
    engine: Callable[..., Engine], run: Callable[..., Run], tmp_path: Path
) -> None:
    first, first_record = new_key("web", now_s=time.time())
    second, second_record = new_key("web", now_s=time.time())
    _, lost_record = new_key("wbe", now_s=time.time())
    settings = {"upstreams": [{"model": "tiny", "url": engine("one").url}], "gateway": {"tenants": [{"name": "web"}]}}
    keys, path = tmp_path / "keys.json", write(tmp_path / "g.yaml", settings)
    save_keys(keys, KeyBook(salt="s", keys=(first_record, second_record, lost_record)))
    gateway = run(f"--config={path}", f"--keys={keys}")
    gateway.says("for 2 keys\n")
    gateway.says(f"key {lost_record.key_id} opens nothing: there is no tenant wbe (there is web)")
    assert gateway.ask(key=first)[0] == 200
    write(path, {"upstreams": settings["upstreams"], "gateway": {"tenant": []}})
    gateway.says("what was read before stays in use\n")
    save_keys(keys, KeyBook(salt="s", keys=(second_record,)))
    gateway.says("what was read before stays in use; the keys are those that")
    eventually(lambda: gateway.ask(key=first)[0] == 401, "the revoked key opens nothing")
    assert gateway.ask(key=second)[0] == 200


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, record = new_key("default", now_s=time.time())
    keys = tmp_path / "keys.json"
    save_keys(keys, KeyBook(salt="s", keys=(record,)))

    def read_and_revoke(path: Path) -> KeyBook | None:
        book = load_keys(path)
        save_keys(path, KeyBook(salt="s"))
        return book

    monkeypatch.setattr(standalone, "load_keys", read_and_revoke)
    wanted = standalone.read_wanted(
        standalone.AloneOptions(upstreams=("tiny=http://127.0.0.1:1",), keys=keys), salt="s"
    )
    assert wanted.policy.keys == (record,)
    assert wanted.files != {keys: standalone.stamp_of(keys)}, "the next look sees that the file is another one"


def test_a_changed_secret_of_an_admin_is_taken(
    engine: Callable[..., Engine], run: Callable[..., Run], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first-secret-of-the-admin")
    admin = {"name": "ops", "role": "operator", "secret_file": str(secret)}
    upstreams = [{"model": "tiny", "url": engine("one").url}]
    gateway = run(f"--config={write(tmp_path / 'g.yaml', {'upstreams': upstreams, 'gateway': {'admin': [admin]}})}")

    def status(key: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request("POST", "/admin/v1/undrain", headers={"authorization": f"Bearer {key}"})
            return connection.getresponse().status

    assert (status("first-secret-of-the-admin"), status("second-secret-of-the-admin")) == (200, 401)
    secret.write_text("second-secret-of-the-admin")
    eventually(lambda: status("second-secret-of-the-admin") == 200, "the new secret opens")
    assert status("first-secret-of-the-admin") == 401


def test_engines_key_comes_from_the_environment(engine: Callable[..., Engine], run: Callable[..., Run]) -> None:
    gateway = run(f"--upstream=tiny={engine('one').url}", "--api-key-env=ENGINE_KEY", ENGINE_KEY="engine-secret")
    assert gateway.by() == "one"
    assert "engine-secret" not in gateway.said


def test_port_in_use_is_exit_code_2(run: Callable[..., Run]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        gateway = run(ENGINE, f"--port={port}")
        assert gateway.ended() == 2
    gateway.says(f"error: cannot listen on 127.0.0.1:{port}: Address already in use")
    gateway.says("→ choose another port")


@pytest.mark.parametrize("processes", [1, 2])
def test_gateway_ends_when_the_command_is_killed(processes: int, run: Callable[..., Run]) -> None:
    gateway = run(ENGINE, f"--processes={processes}")
    assert gateway.port
    pids = gateway.gateways()
    assert len(pids) == (1 if processes == 1 else 1 + processes)
    gateway.process.kill()
    gateway.ended()
    eventually(lambda: all(is_gone(pid) for pid in pids), "the gateway ended")


def test_command_ends_when_the_gateway_is_killed(run: Callable[..., Run]) -> None:
    gateway = run(ENGINE)
    assert gateway.port
    os.kill(gateway.gateways()[0], signal.SIGKILL)
    assert gateway.ended() == 4
    gateway.says("error: the gateway ended")


def test_interrupt_waits_for_running_requests_and_a_second_one_does_not(
    engine: Callable[..., Engine], run: Callable[..., Run]
) -> None:
    slow = engine("slow")
    slow.hold.clear()
    gateway = run(f"--upstream=tiny={slow.url}")
    answers: list[str] = []
    assert gateway.port
    asking = threading.Thread(target=lambda: answers.append(gateway.by()), daemon=True)
    asking.start()
    assert slow.asked.wait(DEADLINE_S)
    gateway.process.send_signal(signal.SIGINT)
    gateway.says("ending after 1 running requests")
    slow.hold.set()
    asking.join(DEADLINE_S)
    assert (answers, gateway.ended()) == (["slow"], 0)

    slow.hold.clear()
    slow.asked.clear()
    second = run(f"--upstream=tiny={slow.url}")
    assert second.port
    threading.Thread(target=_asks_in_vain, args=(second,), daemon=True).start()
    assert slow.asked.wait(DEADLINE_S)
    for _ in range(2):
        second.process.send_signal(signal.SIGINT)
        second.says("ending after 1 running requests")
    assert second.ended() == 0


def _asks_in_vain(gateway: Run) -> None:
    with contextlib.suppress(OSError):
        gateway.ask()
