"""Commands that get the address of something that is no gateway of Longboat."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.cli_process import Done

Longboat = Callable[..., Done]
COMMANDS = (
    ("usage",),
    ("routes",),
    ("why",),
    ("why", "req-1"),
    ("console",),
    ("chat", "-p", "hi"),
    ("chat", "m", "-p", "hi"),
)


class Other(http.server.BaseHTTPRequestHandler):
    """A server that says the same to everything."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(
    scope="module",
    params=[(404, b"<h1>not here</h1>"), (200, b"<html>hello</html>"), (200, b"[]"), (200, b"{}")],
    ids=["404", "page", "list", "object"],
)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    status, body = request.param
    handler = type("Handler", (Other,), {"status": status, "body": body})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_another_server_is_an_error_of_the_address(longboat: Longboat, address: str, words: tuple[str, ...]) -> None:
    done = longboat(*words, "--url", address)
    assert done.returncode == 3, done.stdout
    assert address in done.stderr and "unexpected" not in done.stderr
    assert "--url" in done.stderr.partition("→")[2]


def test_a_record_that_cannot_begin_leaves_no_file(longboat: Longboat, address: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    assert longboat("simulate", "--record", str(path), "--url", address, "--seconds", "1").returncode == 3
    assert not path.exists()


@pytest.mark.parametrize(
    "url", ["", "gateway:8000", "ftp://gateway", "http://", "http://[::1", "http://a b", "http://a:99999999"]
)
@pytest.mark.parametrize("command", ["usage", "console", "chat"])
def test_what_is_no_address_is_named(longboat: Longboat, command: str, url: str) -> None:
    done = longboat(command, "--url", url)
    assert done.returncode == 2
    assert f"--url {url!r} is not an address" in done.stderr


def test_authorities_that_cannot_be_read_are_named(
    longboat: Longboat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    done = longboat("usage", "--url", "https://127.0.0.1:9")
    assert done.returncode == 2
    assert f"SSL_CERT_FILE: {tmp_path / 'none.pem'} cannot be read" in done.stderr


@pytest.mark.parametrize(
    "words", [("up", "--dry-run", ""), ("check", ""), ("check", "-f", ""), ("weights", "pull", "")]
)
def test_an_empty_name_is_no_model_and_no_folder(longboat: Longboat, words: tuple[str, ...]) -> None:
    done = longboat(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the name of a file is empty\n")


@pytest.mark.parametrize("command", [("up", "--dry-run"), ("check",)], ids=" ".join)
def test_a_name_that_no_file_can_have_is_a_mistake(longboat: Longboat, command: tuple[str, ...]) -> None:
    done = longboat(*command, "x" * 5000)
    assert done.returncode == 2
    assert "is a relative path" in done.stderr


def test_a_model_without_a_source_is_named(longboat: Longboat) -> None:
    done = longboat("start", "")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the model's source is empty\n")


@pytest.mark.parametrize(("option", "value"), [("--url", "http://127.0.0.1:9"), ("--seconds", "3")])
def test_options_of_a_record_are_refused_without_one(longboat: Longboat, option: str, value: str) -> None:
    done = longboat("simulate", option, value)
    assert done.returncode == 2
    assert f"{option} belongs to --record" in done.stderr


@pytest.mark.parametrize("words", [("add", "m", "folder"), ("remove", "a")])
def test_adapters_wait_no_negative_time(longboat: Longboat, words: tuple[str, ...]) -> None:
    assert longboat("adapters", *words, "--timeout", "-1").returncode == 2
