"""What a fresh checkout relies on: locks with hashes, no address in them, and a front door that says what it does."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted(ROOT.glob("requirements/*.txt"))


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def run_make(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_has_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    packages = re.findall(r"^[a-z0-9].*$", text, flags=re.MULTILINE)
    assert packages
    assert all("==" in package and package.endswith("\\") for package in packages)
    assert "--index" not in text
    assert "--find-links" not in text
    assert "://" not in text


def test_locks_hold_what_the_project_file_asks_for() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements/dev.txt").read_text(), flags=re.MULTILINE))
    block = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    asked = {re.split(r"[\[>=<]", name)[0] for name in re.findall(r'^ *"([^"]+)",$', block, flags=re.MULTILINE)}
    assert asked <= locked
    assert {"ray", "hatchling", "pytest"} <= locked


def test_make_alone_lists_the_targets() -> None:
    done = run_make(ROOT)
    assert done.returncode == 0
    for target in ("demo", "test", "lock"):
        assert f"make {target} " in done.stdout


def test_machine_without_a_new_python_is_told_what_to_do(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "requirements/bootstrap.txt", "requirements/dev.txt", "tools/bootstrap.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    done = run_make(tmp_path, "venv", "PYTHON=")
    assert done.returncode != 0
    assert "Python 3.11 or newer" in done.stderr
    assert "python3-venv" in done.stderr


def test_a_step_of_the_setup_is_named_before_it_begins(capfd: pytest.CaptureFixture[str]) -> None:
    step = tool("bootstrap").step
    step("working (usually a minute)", sys.executable, "-c", "print('the work itself')")
    assert re.fullmatch(
        r"working \(usually a minute\) \.\.\.\nthe work itself\n  done in \d+\.\d s\n", capfd.readouterr().out
    )


def test_finished_environment_is_left_alone(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    names = (
        "pyproject.toml",
        "requirements/bootstrap.txt",
        "requirements/dev.txt",
        "tools/bootstrap.py",
        ".venv/.ready",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv/.ready").write_text(f"{tmp_path}\n")
    assert run_make(tmp_path, "venv", "PYTHON=").returncode == 0
    (tmp_path / ".venv/.ready").write_text("/another/place\n")
    assert run_make(tmp_path, "venv", "PYTHON=").returncode != 0


def groups_of(marks: set[str]) -> list[str]:
    """Groups of ``make test`` that select a test with these marks."""
    expressions: dict[str, str] = tool("run_tests").TESTS
    known = {name: name in marks for name in registered_marks()}
    return [group for group, words in expressions.items() if eval(words, {}, known)]  # noqa: S307 - our own words


def pytest_options() -> dict[str, object]:
    options: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    return options


def registered_marks() -> list[str]:
    lines = pytest_options()["markers"]
    assert isinstance(lines, list)
    return [line.partition(":")[0] for line in lines]


def test_every_combination_of_marks_is_in_one_group() -> None:
    marks = registered_marks()
    for number in range(len(marks) + 1):
        for combination in itertools.combinations(marks, number):
            apart = {"hosts", "browser", "watch"}  # these have commands of their own: make test-hosts and others
            expected = 0 if apart & set(combination) else 1
            assert len(groups_of(set(combination))) == expected, combination


@pytest.mark.parametrize(
    ("marks", "group"),
    [
        ("", "quick"),
        ("engine", "engine"),
        ("ray", "ray"),
        ("engine ray", "ray"),
        ("net", "net"),
        ("engine ray net", "net"),
        ("engine slow", "slow"),
        ("engine ray net slow", "slow"),
    ],
)
def test_group_follows_from_the_marks(marks: str, group: str) -> None:
    assert groups_of(set(marks.split())) == [group]


def test_bare_pytest_runs_the_quick_group() -> None:
    assert f"-m '{tool('run_tests').TESTS['quick']}'" in str(pytest_options()["addopts"])


def test_every_group_has_a_deadline_for_its_tests() -> None:
    run_tests = tool("run_tests")
    assert list(run_tests.TEST_DEADLINE_S) == list(run_tests.TESTS)


def test_summary_tells_the_time_and_what_it_was_spent_on() -> None:
    run_tests = tool("run_tests")
    told = run_tests.time_line(600.0, 60.0)
    assert told == f"time: 10.0 of {run_tests.BUDGET_S / 60:.0f} minutes, 60 s of them for set-up"
    assert "OVER" in run_tests.time_line(run_tests.BUDGET_S + 1, 60.0)


def test_tests_keep_compiled_modules_where_the_caller_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with tool("run_tests").tests_environment({"engine": "none here"}) as env:
        assert "PYTHONDONTWRITEBYTECODE" not in env
        assert env["PATH"] == os.environ["PATH"]


def test_every_group_that_needs_something_is_in_one_row() -> None:
    run_tests = tool("run_tests")
    in_rows = sorted(group for row in run_tests.ROWS for groups in row for group in groups)
    assert in_rows == sorted(set(run_tests.TESTS) - set(run_tests.NEEDS_NOTHING))
    before = sorted(group for row in run_tests.ROWS_BEFORE for groups in row for group in groups)
    assert before == sorted(run_tests.NEEDS_NOTHING)


def test_files_that_begin_first_are_there() -> None:
    found = re.search(r"^LONGEST = \((.*?)^\)", (ROOT / "tests/file_order.py").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    files = re.findall(r'"(.*?)"', found[1])
    assert len(files) > 5
    assert [file for file in files if not (ROOT / "tests" / file).is_file()] == []


def test_set_up_runs_beside_what_needs_nothing_and_comes_before_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tests = tool("run_tests")
    both, order = threading.Barrier(2), []

    def set_up(_chosen: list[str]) -> tuple[dict[str, str], str, float]:
        both.wait(30)  # breaks unless what needs nothing runs now
        order.append("set-up")
        return {}, "", 0.0

    def run(rows: list[list[tuple[str, ...]]], _missing: object) -> list[object]:
        names = [group for row in rows for groups in row for group in groups]
        if "quick" in names:
            both.wait(30)
        order.extend(names)
        return [run_tests.Outcome(name, True, 1.0) for name in names]

    monkeypatch.setattr(run_tests, "set_up_for", set_up)
    monkeypatch.setattr(run_tests, "run_rows", run)
    monkeypatch.setattr(run_tests.os, "chdir", lambda _folder: None)
    assert run_tests.main(["quick", "ray"]) == 0
    assert order.index("set-up") < order.index("ray")


def test_rows_hold_what_is_chosen_and_can_run() -> None:
    run_tests = tool("run_tests")
    rows_of = functools.partial(run_tests.rows_of, run_tests.ROWS)
    assert rows_of(["engine", "ray", "net", "slow"], {}) == [[("engine", "slow", "net", "ray")]]
    assert rows_of(["engine", "ray", "net", "slow"], {"net": "no namespaces"}) == [[("engine", "slow", "ray")]]
    assert rows_of(["ray"], {}) == [[("ray",)]]
    assert rows_of([], {}) == []


def test_rows_run_at_the_same_time_and_each_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tests = tool("run_tests")
    both, order = threading.Barrier(2), []

    def run(groups: tuple[str, ...], *_: object, is_alone: bool) -> object:
        (group,) = groups
        if group in ("a", "c"):
            both.wait(30)  # breaks unless the other row's first group runs now
        order.append(group)
        return run_tests.Outcome(group, not is_alone, 1.0)

    monkeypatch.setattr(run_tests, "run_tests", run)
    outcomes = run_tests.run_rows([[("a",), ("b",)], [("c",)]], {})
    assert [(outcome.group, outcome.passed) for outcome in outcomes] == [("a", True), ("b", True), ("c", True)]
    assert order.index("a") < order.index("b")


def test_output_of_groups_side_by_side_comes_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_tests = tool("run_tests")
    words = ["--version", "--version", "-p", "no:cacheprovider"]
    assert run_tests.run_quietly("ray", words, os.environ) == 0
    assert re.match(r"\n── ray\n(.*\n)*.*pytest", capfd.readouterr().out)


def test_reasons_of_skipped_tests_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_tests = tool("run_tests")
    report = tmp_path / "report.xml"
    case = '<testcase classname="tests.test_setup" name="n" time="21.2">{}</testcase>'
    skipped = case.format('<skipped type="pytest.skip" message="curl is not installed">x</skipped>')
    report.write_text(f"<testsuite>{skipped}{skipped}{case.format('')}</testsuite>")
    outcome = run_tests.Outcome("quick", True, 1.0)
    run_tests.count(report, outcome)
    run_tests.tell([outcome], {}, 1.0, 0.0)
    assert (outcome.num_passed, outcome.num_skipped) == (1, 2)
    lines = capsys.readouterr().out.splitlines()
    assert "SKIPPED 2 of quick: curl is not installed" in lines
    assert "slowest files of quick, in seconds: tests/test_setup.py 63" in lines


def test_files_that_failed_run_again_only_where_they_are_few_and_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tests = tool("run_tests")
    monkeypatch.setattr(run_tests, "run_quietly", lambda *_: pytest.fail("tests run again"))
    here = "tests.test_setup::test_it"
    assert run_tests.file_of(here) == "tests/test_setup.py"
    assert run_tests.file_of("tests.test_setup.TestClass::test_it") == "tests/test_setup.py"
    assert run_tests.file_of("tests.there_is_no_such_file::test_it") == ""
    files = sorted((ROOT / "tests/gateway").glob("test_*.py"))[: run_tests.MOST_AGAIN]
    many = [here, *(f"tests.gateway.{file.stem}::test_it" for file in files)]
    for group, failures in (("slow+net+ray", many), ("engine", ["gone::test_it"]), ("lint", ["ruff check"])):
        outcome = run_tests.Outcome(group, False, 1.0, code=1, failures=failures)
        same = run_tests.tried_again(outcome, {})
        assert (same.passed, same.failures, same.unsteady) == (False, failures, [])
    late = run_tests.Outcome("ray", False, 1.0, code=run_tests.TESTS_FAILED, failures=[here])
    assert run_tests.tried_again(late, {}, until_s=time.monotonic() - 1.0).failures == [here]
    cut_short = run_tests.Outcome("ray", False, 1.0, code=2, failures=[here])
    assert not run_tests.tried_again(cut_short, {}).passed


def test_group_that_pytest_broke_off_runs_again_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_tests = tool("run_tests")
    it, own = "tests.test_setup::test_it", "pytest::internal"
    cases = '<testcase classname="tests.test_setup" name="test_it">{}</testcase>'
    crash = cases.format("<failure message=\"worker 'gw0' crashed while running it\"/>")
    error = '<testcase classname="pytest" name="internal"><error>a\nMemoryError</error></testcase>'
    codes = [run_tests.BROKE_OFF, 0]

    def run(headline: str, words: list[str], env: object) -> int:
        report = next(Path(word.partition("=")[2]) for word in words if word.startswith("--junit-xml="))
        inside = crash + error if len(codes) == 2 else cases.format("")
        report.write_text(f"<testsuites><testsuite>{inside}</testsuite></testsuites>")
        return codes.pop(0)

    monkeypatch.setattr(run_tests, "run_shown", run)
    (broken,) = run_tests.run_row([("quick",)], {})
    assert broken.failures == [it, own]
    again = run_tests.tried_again(broken, {})
    assert (again.passed, again.num_passed, again.unsteady) == (True, 1, [it, own])
    run_tests.tell([again], {}, 1.0, 0.0)
    told = capsys.readouterr().out
    assert "    worker 'gw0' crashed while running it\n" in told
    assert "    MemoryError\n" in told


@pytest.mark.parametrize("outcome", ["", "<failure/>", "<skipped/>"])
def test_file_that_failed_counts_as_passed_only_if_it_passes_by_itself(
    outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_tests = tool("run_tests")

    def run(headline: str, words: list[str], env: object) -> int:
        report = next(Path(word.partition("=")[2]) for word in words if word.startswith("--junit-xml="))
        case = f'<testcase classname="tests.test_setup" name="test_it">{outcome}</testcase>'
        report.write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
        assert words[-1] == "tests/test_setup.py"
        return int("failure" in outcome)

    monkeypatch.setattr(run_tests, "run_quietly", run)
    failed = run_tests.Outcome("quick", False, 1.0, code=1, failures=["tests.test_setup::test_it"])
    again = run_tests.tried_again(failed, {"engine": "not asked for"})
    assert again.passed == (not outcome)
    assert bool(again.unsteady) == (not outcome)


def test_a_test_fails_only_if_it_failed_in_both_runs(tmp_path: Path) -> None:
    run_tests = tool("run_tests")
    report = tmp_path / "again.xml"
    cases = '<testcase classname="a" name="{}">{}</testcase>'
    parts = {"good": "", "skipped": "<skipped/>", "bad": "<failure/>", "other": "<error/>"}
    inside = "".join(cases.format(name, part) for name, part in parts.items())
    report.write_text(f"<testsuites><testsuite>{inside}</testsuite></testsuites>")
    passed, failed = run_tests.names_by_result(report)
    assert (passed, failed) == ({"a::good"}, {"a::bad", "a::other"})

    outcome = run_tests.Outcome("ray", False, 1.0, code=1, failures=["a::good", "a::bad", "a::skipped"])
    run_tests.judge_both(outcome, passed, failed)
    assert (outcome.passed, outcome.failures) == (False, ["a::bad", "a::skipped"])
    assert outcome.unsteady == ["a::good", "a::other"]

    only_other = run_tests.Outcome("ray", False, 1.0, code=1, failures=["a::good"])
    run_tests.judge_both(only_other, passed, failed)
    assert only_other.passed
