"""What a node finds before anything is started: model folders, the gateway's address, a gateway that runs already."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from engines.test_environment import make_environment
from longboat.cluster.preflight.checks import (
    EngineFinding,
    NodeFindings,
    PathFinding,
    PreflightRequest,
    inspect_node,
)
from longboat.cluster.protocol.model import EngineSettings


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lb-") as folder:
        monkeypatch.setenv("LONGBOAT_RUN", folder)
        (Path(folder) / "gateway").mkdir()
        yield Path(folder)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def look(*paths: Path, gateway: tuple[str, int] | None = None) -> NodeFindings:
    return inspect_node(PreflightRequest(paths=tuple(map(str, paths)), engines={}, gateway=gateway))


def found_at(path: Path) -> PathFinding:
    return look(path).paths[str(path)]


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert found_at(tmp_path) == PathFinding(exists=True, config='{"model_type": "llama"}')


def test_no_folder_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not found_at(tmp_path / "nothing").exists
    assert not found_at(tmp_path / "file").exists


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "no config.json"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
    ],
)
def test_a_folder_whose_config_cannot_be_read_says_why(tmp_path: Path, config: bytes | None, words: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_bytes(config)
    finding = found_at(tmp_path)
    assert finding.exists
    assert words in finding.detail


def test_a_port_that_is_taken_is_a_problem(run: Path, taken: int) -> None:
    assert f"port {taken} is in use" in look(gateway=("127.0.0.1", taken)).port_problem


def test_a_running_gateway_of_ours_is_no_problem(run: Path, taken: int) -> None:
    path = run / "gateway" / "control.sock"
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(path))
        control.listen()
        remember(run, path, taken)
        assert look(gateway=("127.0.0.1", taken)).port_problem == ""


def test_a_leftover_of_a_gateway_is_not_believed(run: Path, taken: int) -> None:
    path = run / "gateway" / "control.sock"
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(str(path))  # nobody listens; the file stays
    remember(run, path, taken)
    assert path.exists()
    assert look(gateway=("127.0.0.1", taken)).port_problem


@pytest.mark.parametrize(
    ("host", "words"), [("no-such-host.invalid", "cannot resolve the host"), ("192.0.2.1", "is not an address of")]
)
def test_a_host_that_cannot_be_listened_on_is_told_in_words(run: Path, host: str, words: str) -> None:
    found = look(gateway=(host, 8000))
    assert words in found.host_problem
    assert "Unknown error" not in found.host_problem
    assert found.port_problem == ""


def remember(run: Path, control: Path, port: int) -> None:
    (run / "gateway" / "gateway.json").write_text(json.dumps({"port": port, "socket": str(control)}))


def with_tls(certificate: Path, key: Path) -> str:
    request = PreflightRequest(paths=(), engines={}, gateway=None, tls=(str(certificate), str(key)))
    return inspect_node(request).tls_problem


def test_a_certificate_is_tried_with_its_key(tmp_path: Path) -> None:
    made = [trustme.CA().issue_cert("localhost") for _ in range(2)]
    for index, pair in enumerate(made):
        pair.cert_chain_pems[0].write_to_path(str(tmp_path / f"c{index}"))
        pair.private_key_pem.write_to_path(str(tmp_path / f"k{index}"))
    assert with_tls(tmp_path / "c0", tmp_path / "k0") == ""
    assert "not a certificate and its unencrypted key" in with_tls(tmp_path / "c0", tmp_path / "k1")
    assert f"{tmp_path / 'k2'} cannot be read" in with_tls(tmp_path / "c0", tmp_path / "k2")


def test_the_url_of_redis_is_looked_for(tmp_path: Path) -> None:
    def problem(file: Path | None, variable: str | None = None) -> str:
        named = (str(file) if file else None, variable)
        return inspect_node(PreflightRequest(paths=(), engines={}, gateway=None, redis_url=named)).redis_problem

    (tmp_path / "url").write_text("redis://:hunter2@h/0")
    assert problem(tmp_path / "url") == ""
    assert "cannot be read" in problem(tmp_path / "none")
    assert "NO_SUCH_URL is not set" in problem(None, "NO_SUCH_URL")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_environment_without_the_package_of_a_load_format_is_told_before_anything_starts(
    tmp_path: Path, kind: str
) -> None:
    folder = make_environment(tmp_path / "own", f"{kind}-1.0", "torch-2.13.0", marked=False)

    def found(*args: str) -> EngineFinding:
        engine = EngineSettings(kind=kind, environment=str(folder), args=args)
        return inspect_node(PreflightRequest(paths=(), engines={"m": engine}, gateway=None)).engines["m"]

    assert found("--load-format=auto").problem == ""
    lacking = found("--load-format", "runai_streamer")
    assert "--load-format=runai_streamer needs the package runai-model-streamer" in lacking.problem
    assert f"{folder}/bin/python install runai-model-streamer" in lacking.hint
    (folder / "lib/python3.11/site-packages/runai_model_streamer-0.17.0.dist-info").mkdir()
    assert found("--load-format", "runai_streamer").problem == ""
