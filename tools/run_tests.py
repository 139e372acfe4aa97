"""Runs the checks and tests that this machine allows: ``make test``, or ``tools/run_tests.py GROUP…`` for some.

One line says what cannot run here, and why. What needs nothing comes first; beside it, engine environments are
installed, and what a request runs through is compiled, which tests wait for. Then come tests of engines and of
clusters: their files are divided among processes. The last line adds all groups up, as pytest does for one.

Tests start dozens of processes, and a machine that stalls fails some of them. When everything else has ended, files
with a failure run once more, one after another, as long as time is left; so does a whole group, where pytest itself
broke off. Tests that fail in one of the two runs and pass in the other are named as unsteady, and the run passes if no
test failed in both. The last lines say why each of them failed and how each group went: of a long output, often only
these are kept.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from longboat.core.errors import LongboatError, UserInputError
from longboat.engines.environments.engine_lock import recipe_of
from longboat.engines.environments.environment import default_platform, find_environment
from longboat.folders import home_folder

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from file_order import files_marked  # noqa: E402
from netlab.lab import why_unavailable  # noqa: E402

BIN = Path(sys.executable).parent
CODE = ("src", "tests", "tools", "benchmarks")

CHECKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lint": (
        ("ruff", "check", "--quiet", *CODE),
        ("ruff", "format", "--quiet", "--check", *CODE),
        ("lint-imports",),
        ("python", "tools/check_rooms.py"),
        ("python", "tools/check_prose.py"),
    ),
    "types": (("mypy",),),
    "compile": (("python", "hatch_build.py"),),
}
TESTS = {
    "quick": "not engine and not ray and not net and not slow and not hosts and not browser and not watch",
    "engine": "engine and not ray and not net and not slow and not hosts and not browser and not watch",
    "ray": "ray and not net and not slow and not hosts and not browser and not watch",
    "net": "net and not slow and not hosts and not browser and not watch",
    "slow": "slow and not hosts and not browser and not watch",
}
TEST_DEADLINE_S = {"quick": 120, "engine": 300, "ray": 600, "net": 600, "slow": 900}
"""Most that one test of a group takes, on a busy machine; a test's own mark ``timeout`` wins."""
NEEDS_ENGINES = ("engine", "slow", "net", "ray")
"""Groups that run as one: its files take from seconds to minutes, and are given to whichever process is free."""
SIDE_BY_SIDE = ("--dist=loadfile", "--no-loadscope-reorder")
"""Words for pytest-xdist: processes divide the files. A file stays in one process, since its tests may share an engine.
Files run in the order that tests/file_order.py gives them: xdist would leave those with the fewest tests for the end,
and they take the longest."""
NUM_PROCESSES = 4
"""On two cores. Tests wait for most of their time: three left a quarter of both cores idle in quick, and an eighth of
them while engines and clusters ran. On a machine that is too slow for four, tests wait for each other
(tests/conftest.py). Quick beside engines takes as long as these, and plans of the console, which have the lowest
priority, starve."""
NEEDS_NOTHING = (*CHECKS, "quick")
ROWS_BEFORE = ((("lint",), ("types",)), (("compile",), ("quick",)))
"""Rows of what needs nothing; see ROWS."""
ROWS = ((NEEDS_ENGINES,),)
"""Rows of what needs something. Rows run side by side, what stands in a row in turn. Each cluster has a network
of its own, or takes ports that are free."""
MOST_AGAIN = 24
"""Most files of a group that run a second time; more failures than this are neither chance nor a stalled machine."""
AGAIN_UNTIL_S = 75 * 60.0
"""Seconds after its start until which a run begins files a second time."""
MOST_OF_REASON = 600
"""Characters of a failure's reason that are shown at the end: its last ones."""
MOST_SLOW = 12
"""Slow files that are named for a group."""
BUDGET_S = 40 * 60.0
"""Most that all groups should take together on two cores, with the environments not yet made."""
OTHER_ENGINES = {"sglang": "LONGBOAT_TEST_SGLANG_PYTHON", "llama.cpp": "LONGBOAT_TEST_LLAMA_CPP_PYTHON"}
"""Engines beside vLLM that are installed for tests → the variable that names their interpreter. Tests of one that
cannot be had here are skipped."""
TESTS_FAILED = 1
"""pytest's exit status when all tests ran, and some failed."""
BROKE_OFF = 3
"""pytest's exit status after an error of its own, or of one of its processes: tests are left that did not run."""
NO_TESTS = 5
"""pytest's exit status when a group selects nothing."""
PRINTING = threading.Lock()


@dataclass(slots=True)
class Outcome:
    """How one group went."""

    group: str
    passed: bool
    seconds: float
    code: int = 0
    """pytest's exit status."""
    num_passed: int = 0
    skips: Counter[str] = field(default_factory=Counter)
    """Why tests were skipped, and how many for each reason."""
    failures: list[str] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why tests failed, as far as pytest's report says it."""
    busy_s: float = 0.0
    """Seconds that this machine's processors worked meanwhile, added up."""
    file_seconds: Counter[str] = field(default_factory=Counter)
    """Seconds that the tests of each file took."""
    unsteady: list[str] = field(default_factory=list)
    """Tests that failed in one of two runs of their file, and passed in the other."""

    @property
    def num_skipped(self) -> int:
        return self.skips.total()


def main(groups: list[str]) -> int:
    """Run the groups (none: all) and say what happened; the exit status."""
    os.chdir(ROOT)
    known = (*CHECKS, *TESTS)
    if unknown := [group for group in groups if group not in known]:
        print(f"no such group: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    wanted = {*groups, *(("compile",) if set(groups) & set(TESTS) else ())}
    chosen = [group for group in known if not groups or group in wanted]
    first = [group for group in chosen if group in NEEDS_NOTHING]
    then = [group for group in chosen if group not in NEEDS_NOTHING]
    started_s = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        set_up = beside.submit(set_up_for, then)
        outcomes = run_rows(rows_of(ROWS_BEFORE, first, {}), {})
        missing, failure, set_up_s = set_up.result()
    if failure:
        outcomes.append(Outcome("set-up", False, set_up_s, failures=[failure]))
        then = []
    outcomes += run_rows(rows_of(ROWS, then, missing), missing)
    outcomes = [tried_again(outcome, missing, until_s=started_s + AGAIN_UNTIL_S) for outcome in outcomes]
    tell(outcomes, missing, time.monotonic() - started_s, set_up_s)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def set_up_for(chosen: list[str]) -> tuple[dict[str, str], str, float]:
    """Install what these groups need: what is missing, the failure (empty: none), and the seconds that it took."""
    began_s = time.monotonic()
    missing, failure = {}, ""
    try:
        missing = what_is_missing(chosen)
    except subprocess.CalledProcessError as error:
        failure = str(error)
    return missing, failure, time.monotonic() - began_s


def what_is_missing(chosen: list[str]) -> dict[str, str]:
    """Mark → why tests with this mark cannot run here. chosen: groups that need something."""
    reasons = {"engine": why_no_engine() if chosen else ""}
    if {"net", "slow"} & set(chosen):
        reasons["net"] = why_unavailable() or ""
    return {mark: why for mark, why in reasons.items() if why}


def why_no_engine() -> str:
    """Install the engine environments; the reason when this machine cannot have vLLM's.

    Raises CalledProcessError when an installation fails for another reason.
    """
    missing = why_not_installed("vllm")
    for version in recipe_of("vllm").older if not missing else ():
        missing = missing or why_not_installed(f"vllm@{version}")
    for kind in OTHER_ENGINES if not missing else ():
        if reason := why_not_installed(kind):
            print(f"tests of {kind} are skipped: {reason}", file=sys.stderr, flush=True)
    return missing


def why_not_installed(kind: str) -> str:
    """Install one engine's environment; the reason when this machine cannot have it.

    Raises CalledProcessError when the installation fails for another reason.
    """
    command = [str(BIN / "longboat"), "engines", "install", kind]
    lines = []
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            print(line, end="", file=sys.stderr, flush=True)
            lines += [line.strip()] if line.strip() else []
    if process.returncode == UserInputError.exit_code:
        return " ".join(["no engine environment:", *lines[-2:]])
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return ""


Groups = tuple[str, ...]
"""Groups that run as one."""


def rows_of(rows: Sequence[Sequence[Groups]], chosen: Sequence[str], missing: Mapping[str, str]) -> list[list[Groups]]:
    """What is chosen of these rows and can run; nothing is empty."""
    wanted = {group for group in chosen if group not in missing}
    left = ([tuple(group for group in groups if group in wanted) for groups in row] for row in rows)
    return [found for row in left if (found := [groups for groups in row if groups])]


def run_rows(rows: Sequence[Sequence[Groups]], missing: Mapping[str, str]) -> list[Outcome]:
    """All groups, the rows side by side."""
    if len(rows) > 1:
        names = (", ".join(map(name_of, row)) for row in rows)
        print(f"\n── side by side; each is reported when it has ended: {' | '.join(names)}", flush=True)
    with ThreadPoolExecutor(max(1, len(rows))) as threads:
        running = [threads.submit(run_row, row, missing, is_alone=len(rows) == 1) for row in rows]
    return [outcome for row in running for outcome in row.result()]


def name_of(groups: Groups) -> str:
    return "+".join(groups)


def run_row(row: Sequence[Groups], missing: Mapping[str, str], *, is_alone: bool = True) -> list[Outcome]:
    """Everything of the row in turn; a failure does not stop the others.

    is_alone: what tests print appears at once, and not when their groups have ended
    """
    with tests_environment(missing) as env:
        return [
            run_checks(groups[0]) if groups[0] in CHECKS else run_tests(groups, missing, env, is_alone=is_alone)
            for groups in row
        ]


@contextmanager
def tests_environment(missing: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Give the variables that tests run with; their run folder goes with the block.

    Compiled modules are kept, also where the caller's variables forbid it: tests start hundreds of processes.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run = tempfile.mkdtemp(prefix="longboat-test-")
    try:
        yield {**inherited, "LONGBOAT_RUN": run, **engine_variables(missing)}
    finally:
        shutil.rmtree(run, ignore_errors=True)


def engine_variables(missing: Mapping[str, str]) -> dict[str, str]:
    """Where tests find the engines' interpreters; nothing where there is none."""
    if "engine" in missing:
        return {}
    wanted = {"vllm": "LONGBOAT_TEST_ENGINE_PYTHON", **OTHER_ENGINES}
    found = {variable: python for kind, variable in wanted.items() if (python := interpreter_of(kind))}
    return {**found, "LONGBOAT_TEST_PLATFORM": default_platform()} if found else {}


def interpreter_of(kind: str) -> str:
    """The Python of an installed engine; empty where there is none."""
    try:
        return find_environment(kind, version=recipe_of(kind).version, path=None, home=home_folder()).python
    except LongboatError:
        return ""


def run_checks(group: str) -> Outcome:
    """The commands of a check, all of them."""
    print(headline(group), flush=True)
    started_s = time.monotonic()
    failures = [" ".join(words) for words in CHECKS[group] if not succeeds(words)]
    return Outcome(group, not failures, time.monotonic() - started_s, failures=failures)


def succeeds(words: tuple[str, ...]) -> bool:
    """Whether a program of our environment ends well; its output passes through."""
    return subprocess.run([BIN / words[0], *words[1:]], check=False).returncode == 0


def run_tests(groups: Groups, missing: Mapping[str, str], env: Mapping[str, str], *, is_alone: bool) -> Outcome:
    """One run of pytest."""
    wanted = " or ".join(f"({TESTS[group]})" for group in groups)
    marks = " and ".join([f"({wanted})", *(f"not {mark}" for mark in missing)])
    deadline_s = max(TEST_DEADLINE_S[group] for group in groups)
    started_s, busy_s = time.monotonic(), processors_busy_s()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "-m", marks, f"--timeout={deadline_s}", f"--junit-xml={report}"]
        words += ["--durations=5", "--durations-min=10", *SIDE_BY_SIDE]
        words += [f"--numprocesses={NUM_PROCESSES}"]
        if groups[0] not in NEEDS_NOTHING:  # a cluster's tests tell one story
            words += ["--randomly-dont-reorganize", *(f"tests/{file}" for file in files_marked(NEEDS_ENGINES))]
        code = (run_shown if is_alone else run_quietly)(name_of(groups), words, env)
        outcome = Outcome(name_of(groups), code in (0, NO_TESTS), time.monotonic() - started_s, code=code)
        outcome.busy_s = processors_busy_s() - busy_s
        if report.exists():
            count(report, outcome)
    if not outcome.passed and not outcome.failures:
        outcome.failures.append(f"pytest ended with status {code}")
    return outcome


def processors_busy_s() -> float:
    """Return the seconds that all processors worked since the machine started; 0 where Linux does not tell."""
    try:
        _, user, nice, system, _, _, irq, softirq, *_ = Path("/proc/stat").read_text().split(maxsplit=8)
    except OSError:
        return 0.0
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def tried_again(outcome: Outcome, missing: Mapping[str, str], *, until_s: float = math.inf) -> Outcome:
    """Run the files that failed again, one after another; the outcome with what came of it.

    A test fails only if it failed in both runs. A test that is skipped the second time still counts as failed.

    until_s: when the last of them may begin, on the monotonic clock
    """
    files = sorted({file_of(failure) for failure in outcome.failures})
    if outcome.code == BROKE_OFF and len(files) <= MOST_AGAIN + 1:  # the error of pytest itself has no file
        return ran_whole_again(outcome, missing)
    if outcome.code != TESTS_FAILED or not 0 < len(files) <= MOST_AGAIN or "" in files:
        return outcome
    marks = " or ".join(f"({TESTS[group]})" for group in outcome.group.split("+"))
    words = ["-q", "-m", marks, f"--timeout={max(TEST_DEADLINE_S.values())}", "--randomly-dont-reorganize"]
    started_s = time.monotonic()
    passed, failed = set[str](), set[str]()
    for file in files:
        if time.monotonic() > until_s:
            break
        with tempfile.TemporaryDirectory() as folder, tests_environment(missing) as env:
            report = Path(folder) / "again.xml"
            code = run_quietly(f"{outcome.group}, once more: {file}", [*words, f"--junit-xml={report}", file], env)
            if code in (0, TESTS_FAILED) and report.exists():
                in_file = names_by_result(report)
                passed, failed = passed | in_file[0], failed | in_file[1]
    judge_both(outcome, passed, failed)
    outcome.seconds += time.monotonic() - started_s
    return outcome


def ran_whole_again(outcome: Outcome, missing: Mapping[str, str]) -> Outcome:
    """Run a group again that pytest broke off; what failed before, and not this time, is unsteady."""
    print(f"{outcome.group}: pytest broke off, so all of it runs once more", flush=True)
    with tests_environment(missing) as env:
        again = run_tests(tuple(outcome.group.split("+")), missing, env, is_alone=True)
    again.unsteady = [name for name in outcome.failures if name not in again.failures]
    again.reasons = outcome.reasons | again.reasons
    again.seconds += outcome.seconds
    again.busy_s += outcome.busy_s
    return again


def judge_both(outcome: Outcome, passed: set[str], failed: set[str]) -> None:
    """Take what passed the second time out of the failures; what failed only then had passed before."""
    outcome.unsteady = [name for name in outcome.failures if name in passed]
    outcome.num_passed += len(outcome.unsteady)
    outcome.unsteady += sorted(failed - set(outcome.failures))
    outcome.failures = [name for name in outcome.failures if name not in passed]
    outcome.passed = not outcome.failures


def names_by_result(report: Path) -> tuple[set[str], set[str]]:
    """Return the tests that passed and those that failed, as failures are named."""
    passed, failed = set(), set()
    for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it just now
        name = f"{case.get('classname')}::{case.get('name')}"
        if reason_of(case) is not None:
            failed.add(name)
        elif case.find("skipped") is None:
            passed.add(name)
    return passed - failed, failed


def file_of(failure: str) -> str:
    """Return the file of a test that failed, from the root; empty where its name has none."""
    parts = failure.partition("::")[0].split(".")
    paths = ("/".join(parts[:end]) + ".py" for end in range(len(parts), 0, -1))
    return next((path for path in paths if (ROOT / path).is_file()), "")


def run_shown(group: str, words: Sequence[str], env: Mapping[str, str]) -> int:
    """pytest's exit status; its output passes through."""
    print(headline(group), flush=True)
    return subprocess.run([BIN / "pytest", *words], check=False, env=dict(env)).returncode


def run_quietly(group: str, words: Sequence[str], env: Mapping[str, str]) -> int:
    """pytest's exit status; its output comes in one piece when it has ended, so that no other group's is in between."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        argv = [BIN / "pytest", *words]
        code = subprocess.run(argv, check=False, env=dict(env), stdout=output, stderr=output).returncode
        output.seek(0)
        with PRINTING:
            print(f"{headline(group)}\n{output.read()}", flush=True)
    return code


def headline(group: str) -> str:
    """What stands over a group's output."""
    return f"\n── {group}"


def count(report: Path, outcome: Outcome) -> None:
    """Add what pytest's report says."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest wrote it just now
        outcome.file_seconds[file_of(f"{case.get('classname')}::")] += round(float(case.get("time", "0")))
        if (found := reason_of(case)) is not None:
            name = f"{case.get('classname')}::{case.get('name')}"
            outcome.failures.append(name)
            outcome.reasons[name] = found
        elif (skipped := case.find("skipped")) is not None:
            outcome.skips[skipped.get("message") or "no reason given"] += 1
        else:
            outcome.num_passed += 1


def reason_of(case: ElementTree.Element) -> str | None:
    """Return the last words of pytest about a test that failed; None where it did not."""
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            text = found.text or "" if case.get("classname") == "pytest" else found.get("message") or ""
            return text.strip()[-MOST_OF_REASON:]
    return None


def tell(outcomes: list[Outcome], missing: Mapping[str, str], seconds: float, set_up_s: float) -> None:
    """Print the slow files, each reason that was skipped, every failure, and the table, the time and the sum."""
    print()
    for item in outcomes:
        if slowest := ", ".join(f"{file} {took}" for file, took in item.file_seconds.most_common(MOST_SLOW) if took):
            print(f"slowest files of {item.group}, in seconds: {slowest}")
    for group, why in missing.items():
        print(f"SKIPPED group {group}: {why}")
    for item in outcomes:
        for why, number in item.skips.items():
            print(f"SKIPPED {number} of {item.group}: {why}")
    for item in outcomes:
        for name in item.unsteady:
            print(f"UNSTEADY {item.group}: {name} failed in one of two runs, and passed in the other")
            print_reason(item.reasons.get(name, ""))
        for failure in item.failures:
            print(f"FAILED {item.group}: {failure}")
            print_reason(item.reasons.get(failure, ""))
    print("group               result  passed skipped failed   seconds  processors busy")
    for item in outcomes:
        result = "ok" if item.passed else "FAILED"
        counts = f"{item.num_passed:6} {item.num_skipped:7} {len(item.failures):6}"
        busy = f"{item.busy_s / item.seconds / (os.cpu_count() or 1):16.0%}" if item.busy_s else ""
        print(f"{item.group:19} {result:7} {counts} {item.seconds:9.1f} {busy}".rstrip())
    print(time_line(seconds, set_up_s))
    parts = {
        "failed": sum(len(item.failures) for item in outcomes),
        "passed": sum(item.num_passed for item in outcomes),
        "skipped": sum(item.num_skipped for item in outcomes),
    }
    words = ", ".join(f"{number} {what}" for what, number in parts.items() if number or what == "passed")
    print(f" {words} in {seconds:.2f}s ".center(80, "="), flush=True)


def print_reason(reason: str) -> None:
    for line in reason.splitlines():
        print(f"    {line}")


def time_line(seconds: float, set_up_s: float) -> str:
    """How much of the budget was spent; groups side by side take less than the sum of their times."""
    over = "" if seconds <= BUDGET_S else ": OVER THE BUDGET"
    return f"time: {seconds / 60:.1f} of {BUDGET_S / 60:.0f} minutes, {set_up_s:.0f} s of them for set-up{over}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
