"""What is common to all commands: the version, and how errors look."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_process import Done
from longboat import __version__

Longboat = Callable[..., Done]


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_version_is_an_option_and_a_command(longboat: Longboat, words: list[str]) -> None:
    assert longboat(*words) == Done(0, f"{__version__}\n", "")


def test_no_cluster_is_an_error_with_a_way_out(longboat: Longboat) -> None:
    done = longboat("status")
    assert done.returncode == 3
    assert done.stderr.startswith("error: this machine belongs to no cluster\n  → ")


def test_a_run_folder_that_cannot_be_is_an_error_with_a_way_out(
    longboat: Longboat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LONGBOAT_RUN", str(tmp_path / "file" / "run"))
    done = longboat("up", "builtin:tiny")
    assert done.returncode == 3
    assert "cannot be the run folder" in done.stderr
    assert "LONGBOAT_RUN" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(("status", "--json", "--nope"), "No such option: --nope", id="an option"),
        pytest.param(("scale", "--json"), "Missing argument", id="an argument"),
        pytest.param(("usage", "--days", "0", "--json"), "Invalid value for '--days'", id="a value"),
        pytest.param(("statsu", "--json"), "No such command 'statsu'", id="a command"),
        pytest.param(("keys", "lst", "--json"), "No such command 'lst'", id="a command of a group"),
    ],
)
def test_wrong_words_are_one_document_too(longboat: Longboat, words: tuple[str, ...], told: str) -> None:
    done = longboat(*words)
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert told in error["message"] and told in done.stderr
    assert error["exit_code"] == 2
    assert error["hint"].endswith("--help shows what it takes")


def test_an_unexpected_error_is_one_line_and_a_hint(longboat: Longboat, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_in_down(monkeypatch, ZeroDivisionError("division\nby zero"))
    done = longboat("down")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: unexpected ZeroDivisionError: division by zero",
        "  → run it again with LONGBOAT_DEBUG=1 for the traceback",
    ]


def test_an_error_is_told_once_where_nothing_can_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        program = "from longboat.cli.app import main; main()"
        command = [sys.executable, "-c", program, "check", "no-such-file.yaml", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["schema", "version"], ids=["while it prints", "at its end"])
def test_a_full_disk_behind_stdout_is_told_in_plain_words(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-c", "from longboat.cli.app import main; main()", command]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: the output of this command cannot be written: No space left on device",
        "  → free some room on the disk that it goes to, or choose another disk",
    ]


def test_an_unexpected_error_is_raised_for_who_debugs(longboat: Longboat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBOAT_DEBUG", "1")
    fail_in_down(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        longboat("down")


def test_a_missing_package_says_how_to_get_it(longboat: Longboat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "longboat.cli.fleet.down", None)  # its import fails from now on
    done = longboat("down")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "pip install 'longboat[cluster]'" in done.stderr


def test_without_ray_nothing_is_started(tmp_path: Path) -> None:
    """Beside the real one: a Python that finds no Ray."""
    program = (
        "import importlib.util as u, sys; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'ray' else find(name, *rest)\n"
        "sys.argv = ['longboat', 'node', 'start', '--local']\n"
        "from longboat.cli.app import main; main()"
    )
    env = {"LONGBOAT_RUN": str(tmp_path), "LONGBOAT_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "Ray is not installed" in done.stderr
    assert "longboat[cluster]" in done.stderr
    assert not (tmp_path / "node.json").exists()


def fail_in_down(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("longboat.cli.fleet.down.run_down", fail)
