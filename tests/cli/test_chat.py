"""``longboat chat``, and the example that does the same: a gateway dies, and nothing of the answer is lost."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from free_ports import free_port
from longboat.cli.chat.command import stream_chat
from longboat.cli.chat.lasting_answer import LastingAnswer, ServerEvent, events_in
from longboat.core.errors import ClusterError
from longboat.core.policy import Policy
from longboat.core.states import Endpoint, EndpointTable, ResumeLevel
from longboat.gateway.admin.control_client import GatewayControl, gateway_command, gateway_stdin
from longboat.gateway.config import GatewayConfig

DEADLINE_S = 30.0
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "come_back.py"
CHAT = "from longboat.cli.app import main; main()"
QUESTION = "Who rows the boat? 🚣"
ASK = [{"role": "user", "content": QUESTION}]
NUM_TOKENS = 60
KEY = "engine-secret"


class Gateway:
    """A gateway process on one port, that can be killed and started again."""

    def __init__(self, folder: Path, engine_url: str, resume: ResumeLevel) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._config = GatewayConfig(
            port=self.port,
            control_socket=str(folder / f"{self.port}.sock"),
            control_token="t",
            orphan_grace_s=None,
            policy=Policy(salt="pepper"),
        )
        self._endpoint = Endpoint(
            model="tiny", replica="r0", generation=1, url=engine_url, api_key=KEY, resume=resume, revision="one"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it serves."""
        command = gateway_command()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(gateway_stdin(self._config))
        self._process.stdin.close()
        assert b"listening" in self._process.stdout.readline()
        control = GatewayControl(self._config.control_socket, self._config.control_token)
        table = EndpointTable(version=1, models=("tiny",), endpoints=(self._endpoint,))
        assert asyncio.run(control.put_table("e", table))

    def kill(self) -> None:
        """By SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@pytest.fixture(scope="module")
def engine_url() -> Iterator[str]:
    url = f"http://127.0.0.1:{free_port()}"
    argv = ["-m", "longboat_fake", "--model", "tiny", "--port", url.rpartition(":")[2], "--itl-ms", "20"]
    env = {**os.environ, "LONGBOAT_ENGINE_API_KEY": KEY}
    process = subprocess.Popen([sys.executable, *argv], env=env, stdout=subprocess.DEVNULL)
    until(lambda: is_there(f"{url}/health"), "the engine serves")
    yield url
    process.kill()
    process.wait()


@pytest.fixture
def gateways(tmp_path: Path, engine_url: str) -> Iterator[Callable[..., list[Gateway]]]:
    made: list[Gateway] = []

    def make(number: int, resume: ResumeLevel = ResumeLevel.CARRIED) -> list[Gateway]:
        made.extend(Gateway(tmp_path, engine_url, resume) for _ in range(number))
        for gateway in made:
            gateway.start()
        return made

    yield make
    for gateway in made:
        gateway.kill()


def is_there(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def until(fact: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not fact():
        assert time.monotonic() < end_s, f"never: {what}"
        time.sleep(0.05)


def test_the_next_gateway_gives_the_rest(gateways: Callable[..., list[Gateway]]) -> None:
    made = gateways(2)
    bases = [gateway.url for gateway in made]
    whole = "".join(stream_chat(bases, "tiny", ASK, NUM_TOKENS))
    said = ""
    for number, piece in enumerate(stream_chat(bases, "tiny", ASK, NUM_TOKENS)):
        said += piece
        if number == 10:
            made[0].kill()
    assert said == whole


def test_a_gateway_that_is_started_again_gives_the_rest_each_time(gateways: Callable[..., list[Gateway]]) -> None:
    made = gateways(1)
    whole = "".join(stream_chat([made[0].url], "tiny", ASK, NUM_TOKENS))
    said = ""
    for number, piece in enumerate(stream_chat([made[0].url], "tiny", ASK, NUM_TOKENS)):
        said += piece
        if number in (3, 20, 21):
            made[0].kill()
            made[0].start()
    assert said == whole


@pytest.mark.parametrize("words", [(str(EXAMPLE), QUESTION), ("-c", CHAT, "chat", "tiny", "--prompt", QUESTION)])
def test_what_is_printed_is_the_same_though_the_gateway_dies(
    words: tuple[str, ...], gateways: Callable[..., list[Gateway]]
) -> None:
    made = gateways(2)
    urls = [gateway.url for gateway in made]
    if "chat" in words:
        urls = [word for url in urls for word in ("--url", url)]
    command = [sys.executable, *words, *urls]
    whole = subprocess.run(command, capture_output=True, timeout=2 * DEADLINE_S, check=True).stdout
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.read(40)
    assert process.poll() is None
    made[0].kill()
    said += process.stdout.read()
    process.stdout.close()
    assert (process.wait(DEADLINE_S), said) == (0, whole)
    assert len(whole) > 60


def test_answer_without_a_journal_is_honestly_broken(gateways: Callable[..., list[Gateway]]) -> None:
    made = gateways(2, ResumeLevel.NONE)
    pieces = stream_chat([gateway.url for gateway in made], "tiny", ASK, NUM_TOKENS)
    assert next(pieces) is not None
    made[0].kill()
    with pytest.raises(ClusterError, match="in the middle of the answer"):
        list(pieces)


def test_gateway_that_is_not_there_is_passed_over_until_none_is_left(gateways: Callable[..., list[Gateway]]) -> None:
    made = gateways(2)
    bases = [gateway.url for gateway in made]
    made[0].kill()
    assert "".join(stream_chat(bases, "tiny", ASK, 5))
    made[1].kill()
    with pytest.raises(ClusterError, match=f"{bases[0]} or {bases[1]}"):
        list(stream_chat(bases, "tiny", ASK, 5))


def chat(gateway: Gateway, *words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHAT, "chat", *words, "--url", gateway.url]
    return subprocess.run(command, input=said, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)


def test_model_that_is_not_there_is_a_mistake_of_the_user(gateways: Callable[..., list[Gateway]]) -> None:
    (gateway,) = gateways(1)
    done = chat(gateway, "huge", "--prompt", "hi")
    assert done.returncode == 2
    assert "huge" in done.stderr
    assert "models there: tiny" in done.stderr


def test_questions_from_a_pipe_get_nothing_but_answers(gateways: Callable[..., list[Gateway]]) -> None:
    (gateway,) = gateways(1)
    one = chat(gateway, "--prompt", "hi", "--max-tokens", "5").stdout
    done = chat(gateway, "--max-tokens", "5", said="hi\n\nhi again\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(one)
    assert len(done.stdout.splitlines()) == 2
    assert ">" not in done.stdout


class Script(httpx.SyncByteStream):
    """Pieces of an answer, and then the connection's end."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        raise httpx.ReadError("reset")


def asked(*answers: httpx.Response) -> tuple[list[str], list[httpx.Request]]:
    """What a client reads of these answers, one after the other, and what it asked."""
    requests: list[httpx.Request] = []
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return left.pop(0)

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        return list(LastingAnswer(client, ["http://a", "http://b"], "/v1/chat/completions", b"{}")), requests


def test_token_may_come_in_a_comment() -> None:
    early = Script(b": waiting\n\n: x-longboat-resume: tok.en\n\nid: 1\ndata: one\n\nid: 2\ndata: half")
    late = Script(b"id: 2\ndata: two\n\ndata: [DONE]\n\n")
    said, requests = asked(httpx.Response(200, stream=early), httpx.Response(503), httpx.Response(200, stream=late))
    assert said == ["one", "two"]
    assert [r.headers.get("x-longboat-resume") for r in requests] == [None, "tok.en", "tok.en"]
    assert [r.headers.get("last-event-id") for r in requests] == [None, "1", "1"]
    assert [r.url.host for r in requests] == ["a", "b", "a"]


def test_answer_of_which_nothing_came_is_asked_for_anew() -> None:
    head = httpx.Response(200, headers={"x-longboat-resume": "old"}, stream=Script())
    whole = httpx.Response(200, headers={"x-longboat-resume": "new"}, stream=Script(b"data: one\n\ndata: [DONE]\n\n"))
    said, requests = asked(head, whole)
    assert said == ["one"]
    assert "x-longboat-resume" not in requests[1].headers


def test_gateway_that_stops_is_passed_over() -> None:
    stopping = httpx.Response(503, json={"error": {"code": "gateway_stopping"}})
    said, _ = asked(stopping, httpx.Response(200, stream=Script(b"data: one\n\ndata: [DONE]\n\n")))
    assert said == ["one"]


@given(st.lists(st.integers(0, 80)))
def test_events_are_the_same_however_their_bytes_are_cut(cuts: list[int]) -> None:
    data = json.dumps({"text": "a\u2028b\x85c 🚣"}, ensure_ascii=False)
    stream = f": hi\n\nid: 1\ndata: {data}\n\r\n: x\r\ndata: two\r\n\r\ndata: cut off".encode()
    marks = [0, *sorted(cuts), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(marks)]
    expected = [ServerEvent(comment="hi"), ServerEvent("1", data), ServerEvent(comment="x"), ServerEvent(data="two")]
    assert list(events_in(iter(pieces))) == expected
