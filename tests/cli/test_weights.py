"""``longboat weights``: what it prints, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_process import Done, runner
from longboat.weights.pieces.manifest import FileEntry, make_manifest
from longboat.weights.store.store import Store

Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LONGBOAT_WEIGHTS_TOKEN", raising=False)
    return runner(monkeypatch, capsys)


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "nfs" / "qwen"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights" * 1000)
    return f"file://{folder}"


def test_weights_are_pulled_listed_checked_and_evicted(run: Run, source: str) -> None:
    pulled = json.loads(run("weights", "pull", source, "--json").stdout)
    assert (Path(pulled["path"]) / "config.json").read_text() == "{}"
    (stored,) = json.loads(run("weights", "list", "--json").stdout)
    assert (stored["source"], stored["is_whole"], stored["in_use"]) == (source, True, False)
    assert "every piece is right" in run("weights", "verify").stdout
    assert run("weights", "evict", source).returncode == 0
    assert json.loads(run("weights", "list", "--json").stdout) == []


def test_slash_at_the_end_of_an_address_names_the_same_weights(run: Run, source: str) -> None:
    for address in (source, f"{source}/"):
        assert run("weights", "pull", address).returncode == 0
    (stored,) = json.loads(run("weights", "list", "--json").stdout)
    assert stored["source"] == source
    assert run("weights", "evict", f"{source}//").returncode == 0
    assert json.loads(run("weights", "list", "--json").stdout) == []


def test_weights_that_are_not_whole_are_not_called_right(run: Run, tmp_path: Path) -> None:
    files = (FileEntry(path="model.safetensors", size=7000, version="1"),)
    manifest = make_manifest("s3://bucket/cut", files)
    Store(tmp_path / "home").begin(manifest, None)
    done = run("weights", "verify")
    assert done.returncode == 0
    assert "every piece is right" not in done.stdout
    assert "not whole: 0B of 6.84KiB is here" in done.stdout


def test_wrong_bytes_on_the_disk_are_named(run: Run, source: str) -> None:
    path = Path(json.loads(run("weights", "pull", source, "--json").stdout)["path"]) / "model.safetensors"
    path.chmod(0o644)
    path.write_bytes(b"Weights" * 1000)
    done = run("weights", "verify")
    assert done.returncode == 5
    assert "wrong bytes in model.safetensors" in done.stdout


def test_a_fleet_file_names_what_to_pull(run: Run, source: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"models: [{{source: '{source}'}}, builtin:tiny]\nweights: {{disk: 1GiB}}")
    assert run("weights", "pull", str(file)).returncode == 0
    done = run("weights", "pull", str(file), "--disk", "1KB")
    assert done.returncode == 0, "what is here needs no room"
    assert run("weights", "evict", source).returncode == 0
    done = run("weights", "pull", str(file), "--disk", "1KB")
    assert done.returncode == 3
    assert "budget" in done.stderr


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("pull", "builtin:tiny"), "names no weights that nodes fetch"),
        (("pull", "s3://bucket/m", "--swarm", "h:1"), "--address"),
        (("pull", "s3://bucket/m", "--swarm", "h:1", "--address", "127.0.0.1"), "at least 16 characters"),
        (("pull", "s3://key@b/m"), "holds a key"),
        (("pull", "s3://bucket/m", "--endpoint", "minio:9000"), "weights.endpoint"),
        (("pull", "file:///nowhere/m"), "/nowhere/m does not exist on this machine"),
        (("evict", "s3://bucket/m"), "no weights 's3://bucket/m'"),
        (("verify", "x"), "no weights 'x'"),
    ],
)
def test_what_cannot_work_is_refused(run: Run, words: tuple[str, ...], what: str) -> None:
    done = run("weights", *words)
    assert done.returncode == 2
    assert what in done.stderr
    assert "→" in done.stderr
