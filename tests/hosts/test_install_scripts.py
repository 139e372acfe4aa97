"""The scripts that install on a host: one at a time, also beside one that a cut run has left."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longboat.hosts.plan.layout import Layout
from longboat.hosts.plan.steps import Kind
from longboat.hosts.remote.actions import ACTIONS
from longboat.hosts.remote.ssh import script_of


def ended(name: str, software: Path, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    """Run an installation whose programs only note that they were called. path: where other programs are found"""
    for program in ("uv", "longboat"):
        tool = software / "bin" / program
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(f"#!/bin/sh\necho {program} >> {software}/calls\nexit 1\n")
        tool.chmod(0o755)
    given = {"SOFTWARE": str(software), "RELEASE": "r", "ENGINE": "vllm", "WAIT_S": "0", "INDEX_URL": ""}
    given |= {"IS_BUNDLE": "0", "PYTHON": "3.11", "REQUIREMENT": "longboat"}
    text = script_of("install_lock", name, variables=given)
    return subprocess.run(
        ["/bin/sh", "-s"], input=text, env={"PATH": path}, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("name", ["release", "engine"])
def test_an_installation_waits_for_all_processes_that_a_cut_run_left(name: str, tmp_path: Path) -> None:
    holding = f"exec 9> {tmp_path}/install.lock; flock 9; sleep 300 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", holding], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        program = int(shell.stdout.readline())
        both = ended(name, tmp_path)
        shell.kill()
        shell.wait(30)
        one = ended(name, tmp_path)
        os.kill(program, signal.SIGKILL)
        shell.stdout.read()  # until the program is gone
    assert both.returncode == one.returncode == 1
    assert "an installation still runs on this host" in one.stderr
    assert sorted(both.stderr.split("kill ")[1].split()) == sorted([str(shell.pid), str(program)])
    assert one.stderr.split("kill ")[1].split() == [str(program)]
    assert not (tmp_path / "calls").exists()
    ended(name, tmp_path)
    assert (tmp_path / "calls").read_text().split() == [{"release": "uv", "engine": "longboat"}[name]]


def test_a_host_without_flock_is_told_what_to_install(tmp_path: Path) -> None:
    done = ended("engine", tmp_path, path="")
    assert done.returncode == 1 and done.stderr == "this host has no flock; install its package util-linux\n"
    assert not (tmp_path / "calls").exists()


def test_a_lock_that_cannot_be_taken_is_no_other_installation(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "flock").write_text("#!/bin/sh\necho flock: 9: No locks available >&2\nexit 71\n")
    (tools / "flock").chmod(0o755)
    done = ended("engine", tmp_path, path=str(tools))
    assert done.returncode == 1 and done.stderr == "flock: 9: No locks available\n"


def test_a_release_that_the_cut_run_has_installed_is_kept(tmp_path: Path) -> None:
    mark = tmp_path / "releases" / "r" / ".complete"
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert ended("release", tmp_path).returncode == 0
    assert mark.exists() and not (tmp_path / "calls").exists()


async def test_a_fleet_has_hours_for_its_first_start_and_the_command_ends_before_ssh_does() -> None:
    asked: list[tuple[str, float]] = []

    async def put(*_: object) -> None:
        pass

    async def run(command: str, *, limit_s: float) -> None:
        asked.append((command, limit_s))

    layout = Layout(software="/s", data="/d", run="/s/run", unit_file="/u", is_system=True)
    ssh = SimpleNamespace(put=put, run=run, require=lambda *_: None)
    host: Any = SimpleNamespace(plan=SimpleNamespace(layout=layout), ssh=ssh, fleet="models: []")
    step: Any = None
    await ACTIONS[Kind.FLEET](host, step)
    ((command, limit_s),) = asked
    timeout_s = int(command.partition("--timeout ")[2].split()[0])
    assert 3 * 3600 <= timeout_s < limit_s


def test_the_record_replaces_no_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    given = {"SOFTWARE": str(tmp_path), "DATA": f"{tmp_path}/d", "RUN": f"{tmp_path}/r", "MANIFEST": "{}"}
    done = subprocess.run(["sh", "-s"], input=script_of("folders", variables=given), text=True, timeout=30, check=False)
    assert done.returncode != 0
    assert not list((tmp_path / "manifest.json").iterdir())


@pytest.mark.parametrize(("status", "is_removed"), [(0, True), (3, False), (127, True)])
def test_software_stays_while_processes_of_the_node_do_not_end(status: int, is_removed: bool, tmp_path: Path) -> None:
    software = tmp_path / "software"
    for folder in ("bin", "current/bin"):
        (software / folder).mkdir(parents=True)
        (software / folder / "longboat").write_text(f"#!/bin/sh\necho 'did not end' >&2\nexit {status}\n")
        (software / folder / "longboat").chmod(0o755)
    (software / "manifest.json").write_text("{}")
    text = script_of("remove", variables={"SOFTWARE": str(software), "FOLDERS": "", "LINGERS": "0"})
    done = subprocess.run(["/bin/sh", "-s"], input=text, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode == 0) is is_removed is not software.exists()
    assert "did not end" in done.stderr
