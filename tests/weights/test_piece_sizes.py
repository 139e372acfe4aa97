"""Manifests, pieces, rates and evictions: pure decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.errors import ClusterError, TransferError, UserInputError
from longboat.weights.pieces.eviction import Room, StoredSize, choose_evictions
from longboat.weights.pieces.manifest import FileEntry, make_manifest, parts_of, pieces_of, read_manifest, wanted_files
from longboat.weights.pieces.rate import Progress, RateMeter
from longboat.weights.sources.location import Location, locate

GIB = 1 << 30


def entry(path: str, size: int = 1) -> FileEntry:
    return FileEntry(path=path, size=size, version="1")


@given(st.lists(st.integers(0, 40_000_000), min_size=1, max_size=8))
def test_pieces_cover_every_byte_once(sizes: list[int]) -> None:
    manifest = make_manifest("s3://b/m", [entry(f"f{number}", size) for number, size in enumerate(sizes)])
    pieces = pieces_of(manifest)
    assert [piece.index for piece in pieces] == list(range(len(pieces)))
    for number, size in enumerate(sizes):
        ends = 0
        for piece in (piece for piece in pieces if piece.path == f"f{number}"):
            assert piece.offset == ends
            ends += piece.length
        assert ends == size


def test_a_large_model_has_few_pieces() -> None:
    manifest = make_manifest("s3://b/m", [entry(f"f{number}", 5 * GIB) for number in range(140)])
    assert len(pieces_of(manifest)) < 50_000


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/./b", "a\\b", "a\0b", "", "x" * 2000])
def test_names_that_leave_the_folder_are_refused(path: str) -> None:
    with pytest.raises(TransferError, match="cannot be a file's name"):
        make_manifest("s3://b/m", [entry(path)])


def test_a_name_cannot_be_a_file_and_a_folder() -> None:
    with pytest.raises(TransferError, match="files below it"):
        make_manifest("s3://b/m", [entry("a"), entry("a/b")])


def test_contents_with_another_version_have_another_key() -> None:
    first = make_manifest("s3://b/m", [entry("a")])
    second = make_manifest("s3://b/m", [FileEntry(path="a", size=1, version="2")])
    assert first.key != second.key
    assert first.key.startswith("s3-b-m-")


def test_a_damaged_manifest_is_refused() -> None:
    with pytest.raises(UserInputError, match="not a manifest"):
        read_manifest(b'{"source": 1}', "manifest.json")


def test_copies_in_other_formats_are_left_out() -> None:
    names = ["model.safetensors", "pytorch_model.bin", ".git/x", "README.md", "config.json", "original/a.safetensors"]
    assert [file.path for file in wanted_files([entry(name) for name in names])] == ["model.safetensors", "config.json"]
    assert [file.path for file in wanted_files([entry("a.gguf")])] == ["a.gguf"]


def test_layers_in_folders_are_no_copies() -> None:
    layers = ["1_Pooling/config.json", "2_Dense/model.safetensors", "3_Dense/pytorch_model.bin"]
    copies = ["onnx/model.onnx_data", "openvino/openvino_model.bin", "metal/model.bin", "gguf/q8.gguf", "x.pth"]
    found = wanted_files([entry(name) for name in ["model.safetensors", *layers, *copies]])
    assert [file.path for file in found] == ["model.safetensors", *layers]


def test_a_file_in_parts_is_fetched_whole() -> None:
    assert parts_of("q4.gguf") == ("q4.gguf",)
    assert parts_of("x/q4-00001-of-00002.gguf") == ("x/q4-00001-of-00002.gguf", "x/q4-00002-of-00002.gguf")


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("s3://b", Location(scheme="s3", container="b", prefix="")),
        ("s3://b/x/y/", Location(scheme="s3", container="b", prefix="x/y")),
        ("https://h:1/x/q4.gguf", Location(scheme="https", container="h:1", prefix="x", name="q4.gguf")),
        ("file:///nfs/m", Location(scheme="file", container="", prefix="nfs/m")),
        ("hf:o/n@v1", Location(scheme="hf", container="o/n", prefix="", revision="v1")),
        ("hf:o/n@v1:a/q.gguf", Location(scheme="hf", container="o/n", prefix="", name="a/q.gguf", revision="v1")),
    ],
)
def test_a_source_has_its_parts(source: str, place: Location) -> None:
    assert locate(source) == place


def stored(key: str, num_bytes: int, used_at_s: float, *, pinned: bool = False) -> StoredSize:
    return StoredSize(key=key, num_bytes=num_bytes, used_at_s=used_at_s, is_pinned=pinned)


def test_the_least_recently_used_goes_first_and_no_more_than_needed() -> None:
    kept = [stored("new", 10, 3), stored("old", 10, 1), stored("pinned", 10, 0, pinned=True), stored("middle", 10, 2)]
    assert choose_evictions(kept, 10, Room(free_bytes=0)) == ("old",)
    assert choose_evictions(kept, 11, Room(free_bytes=0)) == ("old", "middle")
    assert choose_evictions(kept, 10, Room(free_bytes=100, budget_bytes=50)) == ()
    assert choose_evictions(kept, 11, Room(free_bytes=100, budget_bytes=50)) == ("old",)


def test_what_does_not_fit_evicts_nothing_and_says_what_is_missing() -> None:
    with pytest.raises(ClusterError, match="71B are missing") as caught:
        choose_evictions([stored("a", 10, 1), stored("b", 19, 1, pinned=True)], 100, Room(free_bytes=19))
    assert "19B" in str(caught.value)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    meter = RateMeter(0.0)
    for second in range(1, 11):
        meter.add(100 if second <= 5 else 300, float(second))
    assert meter.bytes_per_s(10.0) == pytest.approx(300)
    progress = Progress(source="s", total_bytes=1000, have_bytes=400, bytes_per_s=meter.bytes_per_s(10.0))
    assert progress.left_s == pytest.approx(2.0)
