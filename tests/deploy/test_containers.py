"""The images' files: what they copy exists, versions are those of the locks, and nothing runs as root."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from longboat import __version__
from longboat.processes import born_ticks

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "containers"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
COMPOSE = sorted(FOLDER.glob("compose*.yaml"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Words of a Dockerfile, with continued lines joined."""
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def is_kept(name: str) -> bool:
    """Whether .dockerignore lets a path into the build."""
    kept = True
    for line in (ROOT / ".dockerignore").read_text().split():
        pattern, keeps = line.removeprefix("!"), line.startswith("!")
        if fnmatch(name, pattern) or name == pattern or name.startswith(f"{pattern}/") or pattern == "**":
            kept = keeps
    return kept


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_what_is_copied_exists_and_is_not_ignored(path: Path) -> None:
    copies = [rest.split() for word, rest in instructions(path) if word == "COPY" and "--from" not in rest]
    sources = [word for words in copies for word in words[:-1] if not word.startswith("--")]
    assert "src" in sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_kept(source), source


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_image_is_pinned_small_and_without_root(path: Path) -> None:
    found = instructions(path)
    assert [rest for word, rest in found if word == "USER"][-1] == "10001:10001"
    assert any(word == "HEALTHCHECK" for word, _ in found)
    bases = [rest for word, rest in found if word == "ARG" and rest.startswith("BASE=")]
    assert bases
    assert all(re.search(r":\d+\.\d+-slim$", base) for base in bases)
    stages = {rest.split(" AS ")[1] for word, rest in found if word == "FROM" and " AS " in rest}
    assert {rest.split()[0] for word, rest in found if word == "FROM"} <= {"${BASE}", *stages}
    for word, rest in found:
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists" in rest
        assert word != "ADD"
        assert not re.search(r"(TOKEN|SECRET|PASSWORD|KEY)=", rest), rest
    last = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    assert not any("gcc " in rest for word, rest in found[last:] if word == "RUN")
    assert f"longboat:{__version__}" in path.read_text()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_packages_come_from_the_locks(path: Path) -> None:
    runs = " ".join(rest for word, rest in instructions(path) if word == "RUN")
    assert "--require-hashes -r requirements/bootstrap.txt" in runs
    assert "--constraints requirements/dev.txt" in runs
    locked = (ROOT / "requirements" / "dev.txt").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(r"\.\[([\w,]+)\]", runs)
    assert extras == ["cluster,redis"]
    (ray,) = re.findall(r'"ray\[serve\]==([\d.]+)"', project)
    assert re.search(rf"^ray(\[\w+\])?=={re.escape(ray)}\b", locked, re.MULTILINE)


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.stem)
def test_compose_files_name_what_the_image_has(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    image = (FOLDER / "cuda.Dockerfile").read_text()
    for service in content["services"].values():
        assert service["cap_drop"] == ["ALL"]
        assert service["network_mode"] == "host"
        assert f"longboat:{__version__}-cuda" in service["image"]
        for volume in service["volumes"]:
            name, place = volume.split(":")[:2]
            assert name.startswith("./") or name in content["volumes"]
            assert name.startswith("./") or place in image, f"{place} must belong to the image's user"
        for name in service["environment"]:
            assert name == "HF_TOKEN" or name in (FOLDER / "serve.sh").read_text()


def health(run: Path) -> int:
    words = [sys.executable, "-S", str(FOLDER / "health.py")]
    return subprocess.run(
        words, env={"LONGBOAT_RUN": str(run)}, capture_output=True, timeout=30, check=False
    ).returncode


def test_health_check_knows_a_node_that_is_up(tmp_path: Path) -> None:
    assert health(tmp_path) == 1
    record = tmp_path / "node.json"
    runner = {"runner_pid": os.getpid(), "runner_born": born_ticks(os.getpid())}
    record.write_text(json.dumps({**runner, "phase": "up"}))
    assert health(tmp_path) == 0
    record.write_text(json.dumps({**runner, "phase": "failed"}))
    assert health(tmp_path) == 1
    record.write_text(json.dumps({**runner, "runner_born": 1, "phase": "up"}))  # the container was started again
    assert health(tmp_path) == 1
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    record.write_text(json.dumps({**runner, "runner_pid": done.pid, "phase": "up"}))
    assert health(tmp_path) == 1


def test_scripts_are_shell() -> None:
    subprocess.run(["sh", "-n", str(FOLDER / "serve.sh")], check=True, timeout=30)


@pytest.fixture
def stubs(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Makes programs that stand for those which serve.sh calls; returns the variables that it finds them with."""

    def make(**programs: str) -> dict[str, str]:
        for name, text in programs.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o700)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(tmp_path / "log"), "HOME": str(tmp_path)}

    return make


def test_container_outlives_a_runner_that_is_replaced(stubs: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    looks = 'echo look >> "$LOG"; n=$(wc -l < "$LOG"); [ "$n" -le 2 ] || [ "$n" -eq 16 ]'
    env = stubs(longboat="", sleep="", python3=looks)
    done = subprocess.run(["sh", str(FOLDER / "serve.sh")], env=env, timeout=60, check=False)
    assert done.returncode == 1
    assert len((tmp_path / "log").read_text().splitlines()) == 16 + 15, "a sound look begins the count again"


def test_container_is_stopped_while_its_fleet_comes_up(stubs: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    env = stubs(longboat='echo "$1 $2"; [ "$1" != up ] || read -r line < "$HOME/never"')
    env["LONGBOAT_FLEET_FILE"] = "fleet.yaml"
    with subprocess.Popen(["sh", str(FOLDER / "serve.sh")], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["node start\n", "up fleet.yaml\n"]
        process.terminate()
        assert process.stdout.readline() == "node stop\n"
        assert process.wait(60) == 143
        (tmp_path / "never").open("w").close()  # ends the stub


@pytest.mark.parametrize(("status", "looks"), [("0", 15), ("1", 0)], ids=["a fleet runs", "no fleet runs"])
def test_container_with_a_mistake_in_its_file_serves_on_where_a_fleet_runs(
    stubs: Callable[..., dict[str, str]], tmp_path: Path, status: str, looks: int
) -> None:
    answers = f'case "$1" in up) echo "$*" > "$HOME/up"; exit 2;; status) exit {status};; esac'
    env = stubs(longboat=answers, sleep="", python3='echo look >> "$LOG"; exit 1')
    env["LONGBOAT_FLEET_FILE"] = "fleet.yaml"
    done = subprocess.run(["sh", str(FOLDER / "serve.sh")], env=env, timeout=60, check=False)
    assert done.returncode == 1
    assert "--timeout 86400" in (tmp_path / "up").read_text(), "weights of a first start take longer than half an hour"
    log = tmp_path / "log"
    assert (len(log.read_text().splitlines()) if log.exists() else 0) == looks


def test_token_that_cannot_be_read_is_said_with_its_remedy(
    stubs: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    env = stubs(longboat="") | {"LONGBOAT_TOKEN_FILE": str(tmp_path / "cluster_token")}
    words = ["sh", str(FOLDER / "serve.sh")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"→ on the host: chown {os.getuid()} cluster_token" in done.stderr
