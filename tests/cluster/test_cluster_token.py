"""Ray's token: found where Ray keeps it, sent where the cluster asks for it, and missed in plain words."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from longboat.cluster.host import cluster_token as cluster_token_module
from longboat.cluster.host.cluster_token import cluster_token, default_token_file, find_token, gcs_refuses, token_mode
from longboat.core.errors import ClusterError

AT = "10.0.0.1:6379"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a token where Ray keeps it."""
    path = default_token_file(tmp_path)
    path.parent.mkdir()
    path.write_text("rays\n")
    return tmp_path


def asking(token: str, seen: list[str] | None = None) -> object:
    def refuses(address: str, given: str) -> bool:
        assert address == AT
        if seen is not None:
            seen.append(given)
        return given != token

    return refuses


@pytest.mark.parametrize(
    ("env", "token"),
    [
        ({}, "rays"),
        ({"RAY_AUTH_TOKEN_PATH": "{home}/other"}, "other"),
        ({"RAY_AUTH_TOKEN": " own ", "RAY_AUTH_TOKEN_PATH": "{home}/other"}, "own"),
        ({"RAY_AUTH_TOKEN_PATH": "{home}/gone"}, ""),
    ],
)
def test_the_token_is_sought_in_the_order_of_ray(env: Mapping[str, str], token: str, home: Path) -> None:
    (home / "other").write_text("other")
    assert find_token({name: value.format(home=home) for name, value in env.items()}, home) == token


def test_a_dashboard_gets_the_token_only_where_tokens_are_on(home: Path) -> None:
    assert cluster_token({}, home) == ""
    assert cluster_token({"RAY_AUTH_MODE": "disabled"}, home) == ""
    assert cluster_token({"RAY_AUTH_MODE": "token"}, home) == "rays"
    assert cluster_token({"RAY_AUTH_TOKEN": "own"}, home) == "own"


def test_a_cluster_that_asks_for_the_token_of_rays_own_file_gets_it(home: Path) -> None:
    assert token_mode({"RAY_ADDRESS": AT}, home, asking("rays")) == {"RAY_AUTH_MODE": "token"}  # type: ignore[arg-type]


def test_a_cluster_that_asks_for_none_is_sent_none(home: Path) -> None:
    seen: list[str] = []
    assert token_mode({"RAY_ADDRESS": AT}, home, asking("", seen)) == {}  # type: ignore[arg-type]
    assert seen == [""]


@pytest.mark.parametrize(
    ("env", "home_name", "words"),
    [
        ({}, "empty", f"the cluster at {AT} asks for a token, and none was found"),
        ({"RAY_AUTH_TOKEN": "wrong"}, "", "takes another token than the one in RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_TOKEN_PATH": __file__}, "", f"takes another token than the one in {re.escape(__file__)}"),
        ({"RAY_AUTH_MODE": "disabled"}, "", "RAY_AUTH_MODE=disabled sends none"),
    ],
)
def test_a_token_that_is_missing_or_wrong_is_told(env: dict[str, str], home_name: str, words: str, home: Path) -> None:
    with pytest.raises(ClusterError, match=words) as caught:
        token_mode({"RAY_ADDRESS": AT, **env}, home / home_name, asking("rays"))  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_token_file_that_cannot_be_read_is_told(home: Path) -> None:
    default_token_file(home).write_bytes(b"\xff")
    with pytest.raises(ClusterError, match="cannot be read"):
        find_token({}, home)


class Gcs(grpc.GenericRpcHandler):
    """Answers like Ray's GCS with a token."""

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        is_known = dict(call.invocation_metadata).get("authorization") == "Bearer rays"

        def answer(_request: bytes, context: grpc.ServicerContext) -> bytes:
            if not is_known:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


def test_gcs_that_takes_connections_and_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_token_module, "PROBE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"head at {address} takes connections, and did not answer") as caught:
            gcs_refuses(address, "")
    assert "kill -CONT" in str(caught.value.hint)


def test_a_refusal_of_the_gcs_is_understood() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Gcs(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        refused = [gcs_refuses(f"127.0.0.1:{port}", token) for token in ("", "wrong", "rays")]
    finally:
        server.stop(0)
    assert refused == [True, True, False]
    assert not gcs_refuses(f"127.0.0.1:{port}", ""), "a cluster that is gone is for Ray to miss"
