"""Every command of pages for users can be typed as it stands, and a test runs it, or a table says why none does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
from page_commands import CommandsOfTests, PageCommand, commands_of, parsed, use_of
from test_docs import all_commands
from typer._click.exceptions import UsageError

from longboat.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("start", "guides", "concepts", "examples")
PAGES = (ROOT / "README.md", *(page for name in FOLDERS for page in sorted((ROOT / "docs" / name).glob("*.md"))))
COMMANDS = [command for page in PAGES for command in commands_of(page.name, page.read_text())]
TYPED = [command for command in COMMANDS if command.whole and command.program == "longboat"]

# A command, with the options that no test gives it → the test that shows the same by other means, or why none does.
BY_HAND = {
    "bundle --engine": "it fetches gigabytes; tests/hosts/test_booted_hosts.py bundles Longboat alone",
    "demo --engine": "tests/fleet/test_demo_fleet.py::test_the_demo_ends_with_a_streamed_answer_and_stays_up",
    "engines install --platform": "tests/engines/test_installer.py::test_impossible_request_is_refused",
    "logs --follow": "it runs until it is interrupted",
    "logs --rank": "tests/cli/test_logs.py::test_a_rank_that_is_not_there_is_told_with_those_that_are",
    "logs --replica": "tests/cli/test_logs.py::test_a_replica_that_ended_is_shown_by_its_name",
    "node start --block --storage": "tests/hosts/test_booted_hosts.py::test_split_model_answers_on_both_hosts",
    "node stop --keep-state": "tests/cli/test_up_and_down.py::test_only_a_cluster_that_this_up_made_is_its_to_end",
    "routes --watch": "it runs until it is interrupted",
    "status --watch": "it runs until it is interrupted; one refresh is what `status` prints",
    "up --force": "tests/cli/test_up_document.py::test_what_is_started_against_the_plan_is_told_with_what_is_short",
    "weights pull --token-file": "tests/fleet/test_weights_hosts.py fetches from other nodes, with the cluster's token",
    "weights share --address --token-file": "tests/weights/test_swarm.py runs the same tracker",
}
TARGETS = {
    "demo": "tests/fleet/test_demo_fleet.py::test_the_demo_ends_with_a_streamed_answer_and_stays_up",
    "test": "continuous integration runs it",
    "test-hosts": "it runs tests itself, where root and systemd-nspawn are at hand",
    "lock": "it asks package indexes for newer versions",
    "what-fits": "tests/docs/test_what_fits.py",
    "check-deploy": "tests/deploy",
    "check-image": "it runs tests itself, where root, buildah and podman are at hand",
    "check-alerts": "it needs Prometheus' promtool",
    "check-boards": "it needs npm",
    "check-watch": "it needs Prometheus, and twelve minutes",
}


@pytest.fixture(scope="module")
def root() -> Any:
    return typer.main.get_command(app)


@pytest.fixture(scope="module")
def tested(root: Any) -> CommandsOfTests:
    found = CommandsOfTests(all_commands(root))
    for file in (ROOT / "tests").rglob("*.py"):
        if file.parent.name != "docs":
            found.read(file.read_text())
    return found


@pytest.mark.parametrize("command", TYPED, ids=str)
def test_commands_of_pages_can_be_typed(command: PageCommand, root: Any) -> None:
    assert parsed(root, command.words).path in all_commands(root)


def test_wrong_commands_are_found(root: Any) -> None:
    block = "$ longboat sink it && longboat up a.yaml --fast  # now\nlongboat node start --join\n"
    text = f"```\n{block}```\nand `longboat up`\n"
    typed = [command for command in commands_of("page", text) if command.whole]
    assert [command.words[0] for command in typed] == ["sink", "up", "node"]
    for command in typed:
        with pytest.raises(UsageError):
            parsed(root, command.words)


def test_each_command_of_pages_is_run_by_a_test_or_says_why_not(root: Any, tested: CommandsOfTests) -> None:
    found: dict[str, set[str]] = {}
    for use in filter(None, (use_of(all_commands(root), command) for command in COMMANDS)):
        more = use.options - tested.options.get(use.path, set())
        if more or use.path not in tested.options:
            found.setdefault(use.path, set()).update(more)
    told: dict[str, set[str]] = {}
    for line in BY_HAND:
        path, *options = re.split(r" (?=--)", line)
        told.setdefault(path, set()).update(options)
    assert found == told


def test_make_targets_of_pages_are_run_or_say_why_not() -> None:
    named = {word for command in COMMANDS if command.program == "make" for word in command.words if "=" not in word}
    assert {target for target in named if not target.startswith("bench-")} == set(TARGETS)


def test_tests_that_the_tables_name_exist() -> None:
    told = " ".join([*BY_HAND.values(), *TARGETS.values()])
    for file, test in re.findall(r"\b(tests/[\w/]+(?:\.py)?)(?:::(\w+))?", told):
        assert (ROOT / file).exists(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), test
