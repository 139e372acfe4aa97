"""Files that are no plain files, and places that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.cli_process import Done
from longboat.cli.file.target import read_target
from longboat.cli.fleet.unchanged import said_if_unchanged
from longboat.cli.plan.outputs.fleet_text import write_fleet
from longboat.core.errors import UserInputError
from longboat.spec.files.load import load_fleet

Longboat = Callable[..., Done]


def test_a_fleet_file_comes_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("name: of-a-pipe\nmodels: [builtin:tiny]\n",), daemon=True)
    writer.start()
    assert not said_if_unchanged(str(pipe)), "it leaves the pipe to the whole command"
    assert read_target(str(pipe)).whole().name == "of-a-pipe"
    writer.join(20)


def test_a_closed_stdin_is_a_mistake_of_the_command() -> None:
    program = "import sys; sys.stdin = None; from longboat.cli.app import main; main()"
    command = [sys.executable, "-c", program, "check", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "stdin is closed" in done.stderr and "name a fleet file" in done.stderr


def test_dashboards_below_a_file_are_refused(longboat: Longboat, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = longboat("dashboards", str(tmp_path / "file" / "x"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_a_fleet_file_for_no_folder_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "none" / "fleet.yaml"
    with pytest.raises(UserInputError) as refused:
        write_fleet(path, "models: [builtin:tiny]\n")
    assert refused.value.message == f"{path} cannot be written: No such file or directory"


@pytest.mark.parametrize("url", ["http://a:abc", "http://a:99999", "http://a:0", "http://[a"])
def test_an_address_with_no_port_is_refused(url: str) -> None:
    with pytest.raises(UserInputError, match="is not http://HOST:PORT"):
        load_fleet(f"{{models: [builtin:tiny], gateway: {{tracing: {{endpoint: '{url}'}}}}}}", "f")
