"""What the command line costs before it does anything: the packages it loads, and its CPU time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = {"ray", "torch", "vllm", "transformers", "numpy"}
HELP_CPU_S = 0.5
TRIES = 5

REPORT = """
import json, sys, time
try:
    {what}
except SystemExit as end:
    assert not end.code, end.code
loaded = sorted({{name.partition(".")[0] for name in sys.modules}})
print()
print(json.dumps({{"loaded": loaded, "cpu_s": time.process_time()}}))
"""


def cost_of(what: str, *words: str) -> dict[str, Any]:
    """Packages loaded and CPU seconds of a fresh interpreter that runs ``what`` (one statement)."""
    command = [sys.executable, "-c", REPORT.format(what=what), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def cost_of_longboat(*words: str) -> dict[str, Any]:
    return cost_of("from longboat.cli.app import main; main()", *words)


def test_import_of_longboat_loads_nothing_heavy() -> None:
    loaded = set(cost_of("import longboat")["loaded"])
    assert "longboat" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("words", ["--help", "--version", "up --help", "status --help", "node start --help"])
def test_help_loads_nothing_heavy(words: str) -> None:
    loaded = set(cost_of_longboat(*words.split())["loaded"])
    assert "longboat" in loaded
    assert not loaded & HEAVY


def test_overview_of_the_commands_loads_none_of_them() -> None:
    assert not set(cost_of_longboat("--help")["loaded"]) & {"pydantic", "httpx", "yaml"}


@pytest.mark.parametrize("line", ["longboat st", "longboat logs ", "longboat usage --da"])
def test_completion_loads_nothing_that_checks_values(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = {"_LONGBOAT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    for name, value in {**typed, "LONGBOAT_RUN": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    what = "sys.argv[0] = 'longboat'; from longboat.cli.app import main; main()"
    assert not set(cost_of(what)["loaded"]) & (HEAVY | {"pydantic", "httpx", "yaml"})


def test_help_answers_in_half_a_second_of_cpu() -> None:
    # The least of some tries: caches of a busy machine may be cold at first.
    assert min(cost_of_longboat("--help")["cpu_s"] for _ in range(TRIES)) < HELP_CPU_S
