"""Backups hold what nothing makes again, and are put back whole or not at all."""

from __future__ import annotations

import io
import json
import resource
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from longboat.cli.backup.archive import FORMAT, Manifest, files_of, put_back, read_archive, write_archive
from longboat.cli.backup.running import RunningFleet, running_of
from longboat.cluster.counts.by_hand import Hold, values_with_hold
from longboat.cluster.fleet.adapters import values_with_adapters, with_adapter, without_adapter
from longboat.cluster.fleet.serve_config import controller_document
from longboat.core.errors import ClusterError, UserInputError
from longboat.spec.files.load import load_fleet
from longboat.spec.types.adapters import AdapterSpec

USAGE = "gateway/f-old-12345678/usage.sqlite"


def manifest() -> Manifest:
    return Manifest(format=FORMAT, longboat="0.1.0", made="2026-01-01T00:00:00+00:00", owner="old-12345678")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with what is saved, and with what is not."""
    home = tmp_path / "home"
    for name in ("keys/f.json", "catalog/own.toml", "measured.csv", "cluster_token", "engines/e/x.json", "models/m/x"):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (home / "keys" / ".f.json.lock").touch()
    (home / USAGE).parent.mkdir(parents=True)
    return home


def restored(home: Path, files: dict[str, bytes], now: str = "T1") -> dict[str, str]:
    done = put_back(home, manifest(), files, owner="new-87654321", now=now)
    return {one.path.relative_to(home).as_posix(): one.fate for one in done}


def test_a_database_is_whole_while_it_is_written_to(home: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(home / USAGE, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE usage (n INTEGER)")
        connection.execute("INSERT INTO usage VALUES (7)")
        (home / f"{USAGE}.before-20260101T000000Z").touch()
        files = files_of(home)
        with pytest.raises(ClusterError, match="writes to"):
            put_back(home, manifest(), files, owner="old-12345678", now="T1")
    assert sorted(files) == ["catalog/own.toml", "cluster_token", USAGE, "keys/f.json", "measured.csv"]
    write_archive(tmp_path / "a.tar.gz", manifest(), files)
    assert (tmp_path / "a.tar.gz").stat().st_mode & 0o777 == 0o600
    _, found = read_archive(tmp_path / "a.tar.gz")
    restored(tmp_path / "there", found)
    with closing(sqlite3.connect(tmp_path / "there" / "gateway" / "f-new-87654321" / "usage.sqlite")) as connection:
        assert connection.execute("SELECT n FROM usage").fetchall() == [(7,)]


def test_usage_of_two_machines_is_not_mixed(home: Path) -> None:
    own = "gateway/f-new-87654321/usage.sqlite"
    for files in ({USAGE: b"old", own: b"new"}, {own: b"new", USAGE: b"old"}):
        assert restored(home, files).keys() == {USAGE, own}
        assert {name: (home / name).read_bytes() for name in files} == files


def test_what_differs_is_kept_and_what_is_equal_is_left(home: Path) -> None:
    files = files_of(home)
    (home / "measured.csv").write_text("newer")
    (home / "cluster_token").unlink()
    fates = restored(home, files)
    assert (fates["measured.csv"], fates["cluster_token"], fates["keys/f.json"]) == ("replaced", "new", "same")
    assert (home / "measured.csv.before-T1").read_text() == "newer"
    assert (home / "cluster_token").stat().st_mode & 0o777 == 0o600
    assert set(restored(home, files, "T2").values()) == {"same"}


def test_disk_without_room_leaves_the_file_that_stood_there(home: Path) -> None:
    files = {"measured.csv": b"x" * 100_000}
    (home / "measured.csv").write_text("older")
    there = sorted(path.name for path in home.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(UserInputError, match="cannot be written"):
            restored(home, files)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (home / "measured.csv").read_text() == "older"
    assert sorted(path.name for path in home.iterdir()) == there


def test_nothing_is_written_where_a_backup_has_no_business(home: Path) -> None:
    hostile = {"engines/e/x.json": b"!", "keys/../engines/y": b"!", "nodes/n/node.json": b"!", "keys/a/b.json": b"!"}
    assert restored(home, hostile) == {}
    assert (home / "engines" / "e" / "x.json").read_text() == "engines/e/x.json"


def member(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> tuple[tarfile.TarInfo, bytes]:
    entry = tarfile.TarInfo(name)
    entry.size, entry.type, entry.linkname = len(content), kind, "/etc/passwd"
    return entry, content


MANIFEST = json.dumps({"format": FORMAT, "longboat": "1", "made": "", "owner": "h-r", "files": {"a": "00"}})


def with_command(command: str) -> bytes:
    return MANIFEST.replace('"files"', f'"commands": ["{command}"], "files"').encode()


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([member("a", b"x")], "has no manifest"),
        ([member("manifest.json", MANIFEST.encode())], "damaged: a"),
        ([member("manifest.json", MANIFEST.encode()), member("a", b"x")], "damaged: a"),
        ([member("../a", b"x")], "is not part of a backup"),
        ([member("/a", b"x")], "is not part of a backup"),
        ([member("keys/f.json", b"", tarfile.SYMTYPE)], "is not part of a backup"),
        ([member("manifest.json", MANIFEST.replace(f'"format": {FORMAT}', '"format": 99').encode())], "format 99"),
        ([member("manifest.json", MANIFEST.replace('"files"', '"fleet": "../x", "files"').encode())], "fleet named"),
        ([member("manifest.json", with_command("rm x"))], "a command that"),
        ([member("manifest.json", with_command("longboat pause a;b${IFS}c|sh"))], "a command that"),
        ([member("manifest.json", with_command("longboat x").replace(b'"format": 1', b'"format": 99'))], "format 99"),
    ],
    ids=["bare", "missing", "changed", "upwards", "absolute", "link", "newer", "fleet", "commands", "shell", "future"],
)
def test_archives_that_are_no_backup_are_refused(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], why: str
) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for entry, content in members:
            archive.addfile(entry, io.BytesIO(content) if entry.isreg() else None)
    with pytest.raises(UserInputError, match=why):
        read_archive(path)


def test_a_damaged_database_is_kept_as_it_is(home: Path) -> None:
    (home / USAGE).write_bytes(b"SQLite format 3\0" + b"no database" * 500)
    files = files_of(home)
    assert files[USAGE] == (home / USAGE).read_bytes()
    assert restored(home, files)["gateway/f-new-87654321/usage.sqlite"] == "new"


def test_a_file_that_is_cut_short_is_refused(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    write_archive(path, manifest(), files_of(home))
    whole = path.read_bytes()
    for damaged in (whole[:100], whole[:40] + bytes(40) + whole[80:], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(UserInputError, match="cannot be read"):
            read_archive(path)
    with pytest.raises(UserInputError, match="cannot be written"):
        write_archive(tmp_path / "missing" / "a.tar.gz", manifest(), {})


ASKED = """# as its author wrote it
name: boat
models:
  - name: chat
    source: builtin:tiny
    replicas: {min: 1, max: 4, target_ongoing_requests: 2}
    adapters: {slots: 2, entries: [{name: old, source: /adapters/old}, {name: kept, source: /adapters/kept}]}
  - {name: small, source: builtin:tiny}
"""


def values_of_fleet() -> dict[str, Any]:
    """What the controller knows after ``up``: the file, and the revisions of adapters."""
    fleet = load_fleet(ASKED, "fleet.yaml")
    values = controller_document(fleet, ASKED, planned={"asked": ASKED})
    looked_at = with_adapter(fleet, "chat", AdapterSpec(name="kept", source="/adapters/kept", revision="a" * 16))
    return values_with_adapters(values, looked_at)


def test_a_file_that_no_command_changed_is_saved_as_it_was_written() -> None:
    assert running_of(values_of_fleet()) == RunningFleet(name="boat", text=ASKED)
    assert running_of({}) == RunningFleet()


def test_a_file_of_another_version_is_saved_as_it_was_written() -> None:
    values = values_of_fleet()
    text = ASKED + "sails: 3\n"
    running = running_of({**values, "planned": {"asked": text}})
    assert (running.name, running.text) == ("boat", text)
    assert "sails" in running.lacks


def test_adapters_of_commands_are_in_the_file_of_a_backup() -> None:
    values = values_of_fleet()
    added = AdapterSpec(name="added", source="/adapters/added", revision="b" * 16)
    changed = without_adapter(with_adapter(load_fleet(values["text"], ""), "chat", added), "old")
    saved = load_fleet(running_of(values_with_adapters(values, changed)).text, "boat.yaml")
    assert [(model.name, entry.name, entry.revision) for model, entry in saved.adapters()] == [
        ("chat", "kept", None),
        ("chat", "added", None),
    ]
    assert saved.models[0].replicas == load_fleet(ASKED, "").models[0].replicas


def test_numbers_of_replicas_of_commands_are_in_a_backup(tmp_path: Path) -> None:
    values = values_with_hold(values_of_fleet(), "chat", Hold(asked=3, paused=True, by="me@here", since_s=1.0))
    running = running_of(values_with_hold(values, "small", Hold(paused=True)))
    assert running.text == ASKED
    path = tmp_path / "a.tar.gz"
    saved = Manifest(format=FORMAT, longboat="0.1.0", made="", owner="h-r", fleet="boat", commands=running.commands)
    write_archive(path, saved, {})
    assert read_archive(path)[0].commands == (
        "longboat scale chat 3",
        "longboat pause chat",
        "longboat pause small",
    )
