"""Tests of random models on disk: the same bytes from the same seed, complete or absent, written once."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import struct
from pathlib import Path

import pytest

from longboat.builtin import describe, ensure, random_folder
from longboat.core.errors import ClusterError

SMALL = "builtin:random-1m"


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def _header(folder: Path) -> tuple[dict[str, dict[str, list[int]]], int]:
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header: dict[str, dict[str, list[int]]] = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__")
    return header, len(raw) - 8 - length


def test_random_weights_are_the_same_everywhere(tmp_path: Path) -> None:
    first = ensure(SMALL, tmp_path / "a")
    assert _digest(first) == _digest(ensure(SMALL, tmp_path / "b"))
    assert _digest(first) == "ed68515174f431913c9f54a8e499def82ffff0301b66bfb393d7b98816956834"


def test_random_weights_differ_by_seed(tmp_path: Path) -> None:
    assert _digest(ensure(SMALL, tmp_path)) != _digest(ensure(f"{SMALL}-seed7", tmp_path))


def test_random_weights_file_has_the_described_bytes(tmp_path: Path) -> None:
    header, data_bytes = _header(ensure(SMALL, tmp_path))
    assert data_bytes == describe(SMALL).weight_bytes
    ends = [entry["data_offsets"] for entry in header.values()]
    assert ends[0][0] == 0
    assert ends[-1][1] == data_bytes
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))


def test_random_weights_have_the_usual_spread(tmp_path: Path) -> None:
    folder = ensure(SMALL, tmp_path)
    raw = (folder / "model.safetensors").read_bytes()[-200_000:-400]
    values = [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]
    small = [value for value in values if abs(value) < 0.5]
    deviation = (sum(value * value for value in small) / len(small)) ** 0.5
    assert deviation == pytest.approx(0.02, rel=0.02)
    assert sum(small) / len(small) == pytest.approx(0, abs=0.001)


def test_random_folder_holds_what_an_engine_needs(tmp_path: Path) -> None:
    folder = ensure(SMALL, tmp_path)
    assert folder == tmp_path / "models" / "random-1m"
    assert {file.name for file in folder.iterdir()} == {
        "model.safetensors",
        "config.json",
        *random_folder.TOKENIZER_FILES,
    }
    assert json.loads((folder / "config.json").read_text()) == describe(SMALL).config


def test_existing_folder_is_left_as_it_is(tmp_path: Path) -> None:
    folder = ensure(SMALL, tmp_path)
    before = (folder / "model.safetensors").stat()
    assert ensure(SMALL, tmp_path) == folder
    after = (folder / "model.safetensors").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_unfinished_folder_of_a_dead_writer_is_replaced(tmp_path: Path) -> None:
    unfinished = tmp_path / "models" / ".random-1m.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "model.safetensors").write_bytes(b"half")
    folder = ensure(SMALL, tmp_path)
    assert describe(SMALL).weight_bytes < (folder / "model.safetensors").stat().st_size
    assert not unfinished.exists()


def test_failed_write_leaves_no_folder(tmp_path: Path) -> None:
    model = describe(SMALL)
    assert model.shape
    with pytest.raises(FileNotFoundError):
        random_folder.ensure_random(tmp_path, "x", model.shape, model.config, 0, tokenizer_from=tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == [".x.lock"]


def test_all_of_a_model_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[Path, bool] = {}
    monkeypatch.setattr(random_folder, "sync", lambda path: synced.update({path: path.exists()}))
    folder = ensure(SMALL, tmp_path)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    assert synced == dict.fromkeys([unfinished, *(unfinished / path.name for path in folder.iterdir())], True)


def test_several_writers_make_one_model(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        folders = pool.starmap_async(ensure, [(SMALL, tmp_path)] * 3).get(timeout=60)
    assert set(folders) == {tmp_path / "models" / "random-1m"}
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [".random-1m.lock", "random-1m"]


def test_model_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError) as caught:
        random_folder._check_room(tmp_path, 1 << 60)
    assert "LONGBOAT_HOME" in caught.value.hint


def test_lock_that_is_never_released_is_an_error(tmp_path: Path) -> None:
    with (
        random_folder._locked(tmp_path / "lock", 1.0),
        pytest.raises(ClusterError),
        random_folder._locked(tmp_path / "lock", 0.1),
    ):
        pass
