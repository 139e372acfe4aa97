"""Sources without a bucket: the hub by its commit, and where keys are looked for."""

from __future__ import annotations

import base64
import json
import os
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from longboat.core.errors import TransferError, UserInputError
from longboat.weights.fetch.node_weights import NodeWeights, WeightsOptions
from longboat.weights.sources.credentials import aws_environment, aws_profile, hub_headers, netrc_headers
from longboat.weights.sources.open_store import StorageOptions
from longboat.weights.sources.storage import Storage, version_of
from longboat.weights.sources.storage_errors import MissingObjectError, RefusedError
from weights.range_server import RangeServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISION = json.dumps({"sha": COMMIT}).encode()


def hub(storage: RangeServer, **env: str) -> Storage:
    address = {"HF_ENDPOINT": storage.source}
    return Storage("hf:o/n@v1", StorageOptions(stall_s=2.0, retries=0), env={**address, **env}, home=Path("/nowhere"))


def test_a_model_in_parts_is_refused_where_parts_are_missing(tmp_path: Path) -> None:
    source = f"file://{tmp_path}/q-00001-of-00003.gguf"
    for part in (1, 3):
        (tmp_path / f"q-0000{part}-of-00003.gguf").write_bytes(b"x")
    with pytest.raises(TransferError, match=r"lacks q-00002-of-00003\.gguf"):
        Storage(source, StorageOptions(), env={}).manifest()
    (tmp_path / "q-00002-of-00003.gguf").write_bytes(b"x")
    assert len(Storage(source, StorageOptions(), env={}).manifest().files) == 3


def test_a_named_file_is_found_whatever_is_beside_it(tmp_path: Path) -> None:
    """A listing would walk through all that is below the folder, and fail at what cannot be read there."""
    (tmp_path / "model.gguf").write_bytes(b"weights")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "SHA256SUMS").write_text(f"{'ab' * 32}  model.gguf\n")
    (entry,) = Storage(f"file://{tmp_path}/model.gguf", StorageOptions(), env={}).manifest().files
    assert (entry.path, entry.size, entry.sha256) == ("model.gguf", 7, "ab" * 32)
    with pytest.raises(MissingObjectError, match=r"there is no other\.gguf of file://"):
        Storage(f"file://{tmp_path}/other.gguf", StorageOptions(), env={}).manifest()


def test_a_hub_is_read_at_the_commit_of_the_revision(storage: RangeServer) -> None:
    lfs = {"oid": "ab" * 32}
    tree = [
        {"type": "directory", "path": "x", "oid": "1", "size": 0},
        {"type": "file", "path": "config.json", "oid": "2", "size": 2},
        {"type": "file", "path": "model.safetensors", "oid": "3", "size": 20 << 20, "lfs": lfs},
    ]
    storage.files |= {
        "api/models/o/n/revision/v1": json.dumps({"sha": COMMIT}).encode(),
        f"api/models/o/n/tree/{COMMIT}?recursive=true": json.dumps(tree).encode(),
        f"o/n/resolve/{COMMIT}/config.json": b"[]",
    }
    reader = hub(storage)
    config, model = reader.manifest().files
    assert (model.sha256, model.size) == (lfs["oid"], 20 << 20)
    assert reader.read(config, 0, 2) == b"[]"


def test_a_hub_that_refuses_or_knows_no_revision_says_what_to_set(storage: RangeServer) -> None:
    with pytest.raises(MissingObjectError, match="hf:o/n@v1"):
        hub(storage).manifest()
    storage.files["api/models/o/n/revision/v1"] = b""
    storage.before = lambda name: 401
    with pytest.raises(RefusedError) as caught:
        hub(storage).manifest()
    assert "HF_TOKEN" in caught.value.hint


@pytest.mark.parametrize(
    ("revision", "tree"),
    [
        (b"<html>sign in</html>", b"[]"),
        (b'"\xff"', b"[]"),
        (b"[]", b"[]"),
        (b'{"sha": 1}', b"[]"),
        (REVISION, b"<html>sign in</html>"),
        (REVISION, b'{"error": "busy"}'),
        (REVISION, b'[{"type": "file", "path": "config.json"}]'),
        (REVISION, b'["config.json"]'),
    ],
)
def test_an_answer_that_is_not_a_listing_is_an_error_and_the_weights_that_are_there_are_used(
    storage: RangeServer, tmp_path: Path, revision: bytes, tree: bytes
) -> None:
    file = {"type": "file", "path": "config.json", "oid": "2", "size": 2}
    listing = json.dumps([file, {"type": "directory", "path": "deep", "oid": None}]).encode()
    where = ("api/models/o/n/revision/v1", f"api/models/o/n/tree/{COMMIT}?recursive=true")
    storage.files |= dict(zip(where, (REVISION, listing), strict=True))
    storage.files[f"o/n/resolve/{COMMIT}/config.json"] = b"{}"
    settings = WeightsOptions(storage=StorageOptions(stall_s=2.0, retries=0))
    node = NodeWeights(tmp_path, settings, env={"HF_ENDPOINT": storage.source})
    node.hold("hf:o/n@v1").release()
    storage.files |= dict(zip(where, (revision, tree), strict=True))
    with pytest.raises(TransferError, match="hub's answer for hf:o/n@v1 is not a listing"):
        hub(storage).manifest()
    held = node.hold("hf:o/n@v1")
    assert (held.path / "config.json").read_bytes() == b"{}"
    held.release()


def listed(storage: RangeServer, sizes: dict[str, int]) -> list[str]:
    """Let an S3 server list objects, and return the files of the manifest."""
    entry = "<Contents><Key>{}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>{}</Size></Contents>"
    entries = "".join(entry.format(key, size) for key, size in sizes.items())
    document = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    storage.files["/b?list-type=2&prefix=models%2Fq%2F"] = document.encode()
    options = StorageOptions(endpoint=storage.source.removesuffix("/model"), stall_s=2.0, retries=0)
    env = {"AWS_ACCESS_KEY_ID": "K", "AWS_SECRET_ACCESS_KEY": "S"}
    found = Storage("s3://b/models/q", options, env=env, home=Path("/nowhere")).manifest()
    return [file.path for file in found.files]


def test_empty_objects_that_mark_folders_are_left_out(storage: RangeServer) -> None:
    files = {"models/q/a/b/x.json": 10, "models/q/config.json": 10, "models/q/empty": 0}
    marked = {"models/q/": 0, "models/q/a/": 0, "models/q/a/b/": 0, **files}
    assert listed(storage, marked) == ["a/b/x.json", "config.json", "empty"]
    with pytest.raises(TransferError, match="holds 'a' and files below it"):
        listed(storage, {"models/q/a": 1, **files})
    with pytest.raises(TransferError, match="holds no files"):
        listed(storage, {"models/q/": 0})


def test_aws_keys_come_from_the_environment_or_else_from_a_profile(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[work]\naws_access_key_id = K\naws_secret_access_key = S\n")
    (tmp_path / ".aws" / "config").write_text("[profile work]\nregion = eu-west-1\nendpoint_url = http://minio:9000\n")
    env = {"AWS_PROFILE": "work"}
    found = {"access_key_id": "K", "secret_access_key": "S", "region": "eu-west-1", "endpoint": "http://minio:9000"}
    assert aws_profile(env, tmp_path) == found
    assert aws_profile({**env, "AWS_ACCESS_KEY_ID": "E"}, tmp_path) == {}
    assert aws_environment({"AWS_ACCESS_KEY_ID": "E", "AWS_REGION": "r"}) == {"access_key_id": "E", "region": "r"}
    with pytest.raises(UserInputError, match="no profile 'play'"):
        aws_profile({"AWS_PROFILE": "play"}, tmp_path)


def test_a_profile_file_that_cannot_be_read_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("aws_secret_access_key = SECRET\n")
    with pytest.raises(UserInputError) as caught:
        aws_profile({}, tmp_path)
    assert "SECRET" not in str(caught.value)


def test_other_keys_are_looked_for_where_tools_keep_them(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine store.example login me password p\n")
    (tmp_path / ".netrc").chmod(0o600)
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / ".cache" / "huggingface" / "token").write_text("hf_x\n")
    basic = base64.b64encode(b"me:p").decode()
    assert netrc_headers("store.example", tmp_path) == {"Authorization": f"Basic {basic}"}
    assert netrc_headers("other.example", tmp_path) == {}
    assert hub_headers({}, tmp_path) == {"Authorization": "Bearer hf_x"}
    assert hub_headers({"HF_TOKEN": "t"}, tmp_path) == {"Authorization": "Bearer t"}
    caches = {"XDG_CACHE_HOME": str(tmp_path / "caches")}
    assert hub_headers(caches, tmp_path) == {"Authorization": "Bearer hf_x"}, "of a login without a folder of caches"
    (tmp_path / "caches" / "huggingface").mkdir(parents=True)
    (tmp_path / "caches" / "huggingface" / "token").write_text("hf_y")
    assert hub_headers(caches, tmp_path) == {"Authorization": "Bearer hf_y"}
    assert hub_headers({**caches, "HF_HOME": str(tmp_path)}, tmp_path) == {}


def test_an_etag_is_the_same_in_listings_and_in_answers() -> None:
    modified = {"last_modified": datetime(2026, 1, 1, tzinfo=UTC)}
    assert version_of({"e_tag": "0x8D", **modified}) == version_of({"e_tag": '"0x8D"', **modified}) == '"0x8D"'
    assert version_of({"e_tag": 'W/"1"', **modified}) == 'W/"1"'
    assert version_of({"e_tag": None, **modified}) == "2026-01-01T00:00:00+00:00"


def test_a_folder_is_the_same_source_on_nodes_that_have_their_own_copy(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    storage = Storage(f"file://{model}", StorageOptions(), env={}, home=tmp_path)
    before = storage.manifest()
    shutil.copytree(model, tmp_path / "copy")
    shutil.rmtree(model)
    (tmp_path / "copy").rename(model)
    assert storage.manifest().key == before.key
    assert storage.read(before.files[0], 0, 2) == b"{}"
    os.utime(model / "config.json", (1, 1))
    assert storage.manifest().key != before.key


def test_settings_that_cannot_work_keep_their_hint() -> None:
    storage = Storage("s3://bucket/x", StorageOptions(), env={"AWS_PROFILE": "play"}, home=Path("/nowhere"))
    for ask in (storage.manifest, lambda: storage.read_small("config.json")):
        with pytest.raises(UserInputError, match="no profile 'play'") as caught:
            ask()
        assert "AWS_PROFILE" in caught.value.hint


def test_a_list_of_hashes_may_name_itself(storage: RangeServer) -> None:
    storage.files["SHA256SUMS"] += f"\n{'0' * 64}  SHA256SUMS\n".encode()
    found = Storage(storage.source, StorageOptions(stall_s=2.0, retries=0), env={}).manifest()
    assert [file.path for file in found.files] == ["config.json", "model.safetensors"]


def test_a_folder_whose_upload_is_not_complete_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    storage = Storage(f"file://{folder}", StorageOptions(), env={})
    for name in ("config.json", "m-1.safetensors"):
        (folder / name).write_bytes(b"{}")
    names = ("config.json", "m-1.safetensors", "m-2.safetensors", "README.md", "pytorch_model.bin")
    (folder / "SHA256SUMS").write_text("".join(f"{'ab' * 32}  {name}\n" for name in names))
    with pytest.raises(TransferError, match=r"lacks m-2\.safetensors$") as caught:
        storage.manifest()
    assert "SHA256SUMS" in caught.value.hint
    (folder / "SHA256SUMS").unlink()
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    node = NodeWeights(tmp_path / "home", env={})
    with pytest.raises(TransferError, match=r"lacks m-2\.safetensors$") as caught:
        node.hold(storage.source)
    assert "index.json" in caught.value.hint
    (folder / "m-2.safetensors").write_bytes(b"{}")
    node.hold(storage.source).release()


def test_a_listing_that_names_a_file_twice_is_refused(storage: RangeServer) -> None:
    file = {"type": "file", "path": "config.json", "oid": "2", "size": 2}
    storage.files |= {
        "api/models/o/n/revision/v1": REVISION,
        f"api/models/o/n/tree/{COMMIT}?recursive=true": json.dumps([file, {**file, "size": 3}]).encode(),
    }
    with pytest.raises(TransferError, match=r"names 'config\.json' twice"):
        hub(storage).manifest()


def test_a_file_that_a_repository_does_not_have_is_told_with_those_that_it_has(storage: RangeServer) -> None:
    tree = [{"type": "file", "path": f"{name}.gguf", "oid": "2", "size": 2} for name in ("m-Q4_K_M", "m-Q8_0")]
    storage.files |= {
        "api/models/o/n/revision/v1": REVISION,
        f"api/models/o/n/tree/{COMMIT}?recursive=true": json.dumps(tree).encode(),
    }
    env = {"HF_ENDPOINT": storage.source}
    reader = Storage("hf:o/n@v1:m-Q4_K.gguf", StorageOptions(stall_s=2.0), env=env, home=Path("/nowhere"))
    with pytest.raises(MissingObjectError, match=r"there is no m-Q4_K\.gguf in hf:o/n@v1") as caught:
        reader.manifest()
    assert caught.value.hint == "it has m-Q4_K_M.gguf, m-Q8_0.gguf"


class Pages(BaseHTTPRequestHandler):
    """A hub with pages: the second is behind the address of ``following``."""

    following = "/second"
    tokens: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        is_listing = "revision" not in self.path
        file = {"type": "file", "path": self.path.strip("/").partition("?")[0], "oid": "2", "size": 2}
        body = json.dumps([file]).encode() if is_listing else REVISION
        self.tokens.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        if is_listing and self.path != "/second":
            self.send_header("Link", f'<{self.following}>; rel="next"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def pages() -> Iterator[tuple[str, type[Pages]]]:
    kind = type("OnePages", (Pages,), {"tokens": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", kind
        server.shutdown()


def files_of_pages(address: str) -> list[str]:
    env = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_secret\n"}
    found = Storage("hf:o/n@v1", StorageOptions(stall_s=2.0), env=env, home=Path("/nowhere")).manifest()
    return [file.path.rpartition("/")[2] for file in found.files]


def test_the_hubs_token_goes_to_the_hub_only(pages: tuple[str, type[Pages]]) -> None:
    """A mirror of the hub passes on the addresses of further pages, which are the hub's own."""
    address, kind = pages
    assert files_of_pages(address) == [COMMIT, "second"]
    assert kind.tokens == ["Bearer hf_secret"] * 3
    kind.tokens.clear()
    kind.following = f"{address.replace('127.0.0.1', 'localhost')}/second"
    assert files_of_pages(address) == [COMMIT, "second"]
    assert kind.tokens == ["Bearer hf_secret"] * 2 + [None]


def test_a_listing_without_an_end_is_an_error(pages: tuple[str, type[Pages]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longboat.weights.sources.hub.MAX_PAGES", 3)
    pages[1].following = "/more"
    with pytest.raises(TransferError, match="more than 3 pages"):
        files_of_pages(pages[0])


def test_settings_of_the_hub_that_cannot_work_are_named(storage: RangeServer) -> None:
    with pytest.raises(TransferError, match="InvalidURL") as caught:
        files_of_pages("http://hub:port")
    assert "HF_ENDPOINT" in caught.value.hint
    with pytest.raises(UserInputError, match="token has a character"):
        hub(storage, HF_TOKEN="hf_\u00e9").manifest()
