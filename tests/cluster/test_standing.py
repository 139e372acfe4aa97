"""What a machine says of itself after parts of its node, each alone and in pairs, were killed."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from longboat.cluster.host import ray_node, resume
from longboat.cluster.host.choices import NodeRequest
from longboat.cluster.host.record import ClusterRecord, forget_record, load_record, save_record
from longboat.cluster.host.resume import request_of, resume_node
from longboat.cluster.host.standing import Facts, standing
from longboat.core.errors import ClusterError, UserInputError
from longboat.processes import boot_id

HEAD = ClusterRecord(
    role="head",
    address="10.0.0.1",
    interface="eth0",
    gcs_address="10.0.0.1:6380",
    run="/r",
    temp_dir="/r/ray",
    token_file="/t",
    storage="/s/10.0.0.1_6380",
    phase="up",
)
WORKER = replace(HEAD, role="worker", address="10.0.0.2", storage="")
LOCAL = replace(HEAD, address="127.0.0.1", gcs_address="127.0.0.1:6379", started_by_up=True)
PARTS = ("runner", "starter", "raylet", "gcs", "machine")
KILLS = [frozenset(parts) for count in (1, 2) for parts in itertools.combinations(PARTS, count)]


def facts_after(killed: frozenset[str]) -> Facts:
    """What is seen right after the kills: Ray's processes end with their starter, and none outlives the machine."""
    machine = "machine" in killed
    return Facts(
        runner=not machine and "runner" not in killed,
        ray=not machine and not killed & {"starter", "raylet", "gcs"},
        same_boot=not machine,
    )


@pytest.mark.parametrize("record", [HEAD, WORKER, LOCAL], ids=["head", "worker", "local"])
@pytest.mark.parametrize("killed", KILLS, ids=lambda killed: "+".join(sorted(killed)))
def test_machine_knows_what_it_was_and_how_it_comes_back(record: ClusterRecord, killed: frozenset[str]) -> None:
    facts = facts_after(killed)
    here = standing(record, facts)
    known = "longboat up started" if record.started_by_up else record.gcs_address
    assert known in here.what
    assert here.runs is facts.ray
    if not facts.runner:
        assert "longboat node start" in here.hint
    elif not facts.ray:
        assert "by itself" in here.hint
    assert ("restarted" in here.what) is ("machine" in killed)
    assert "up FILE" not in here.hint, "that would make a second cluster"


def test_whole_node_has_nothing_to_say() -> None:
    assert standing(WORKER, Facts(runner=True, ray=True, same_boot=True)).trouble == ""


def test_worker_waits_for_its_head_and_says_so() -> None:
    here = standing(replace(WORKER, phase="rejoining"), Facts(runner=True, ray=False, same_boot=True))
    assert not here.runs
    assert "when its head can be reached" in here.hint


@pytest.mark.parametrize("phase", ["starting", "rejoining"])
def test_node_whose_ray_has_begun_but_is_not_up_says_so_at_once(phase: str) -> None:
    here = standing(replace(LOCAL, phase=phase), Facts(runner=True, ray=True, same_boot=True))
    assert not here.runs, "a command that connects now waits for many seconds"
    assert "start" in here.trouble


def test_node_that_was_stopped_says_so_and_is_resumed_on_demand() -> None:
    here = standing(replace(HEAD, phase="stopped"), Facts(runner=False, ray=False, same_boot=True))
    assert "longboat node stop ended it" in here.what
    assert "brings it back" in here.hint


def test_head_is_resumed_at_its_address_with_its_state() -> None:
    asked = NodeRequest(labels={"zone": "a"}, num_cpus=2.0)
    request = request_of(replace(HEAD, request={**asked_values(asked), "from_a_later_version": 1}))
    assert (request.address, request.port, request.storage) == ("10.0.0.1", 6380, "/s")
    assert (request.labels, request.num_cpus, request.token_file, request.join) == ({"zone": "a"}, 2.0, "/t", "")
    local = request_of(LOCAL)
    assert (local.is_local, local.address, local.port, local.started_by_up) == (True, "", 6379, True)


def test_worker_is_resumed_in_its_cluster() -> None:
    request = request_of(replace(WORKER, request=asked_values(NodeRequest(join="head.example", num_gpus=1.0))))
    assert (request.join, request.num_gpus, request.storage) == ("10.0.0.1:6380", 1.0, "")


def asked_values(request: NodeRequest) -> dict[str, object]:
    return {"labels": dict(request.labels), "num_cpus": request.num_cpus, "num_gpus": request.num_gpus}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    return tmp_path / "run"


def test_record_outlives_an_emptied_run_folder_until_it_is_forgotten(run: Path) -> None:
    record = replace(WORKER, run=str(run))
    save_record(record)
    (run / "node.json").unlink()
    assert load_record(run) == record
    forget_record(run)
    assert load_record(run) is None
    assert not list((run.parent / "home" / "nodes").iterdir())


SLOW, BROKEN = "import time; time.sleep(600)", "raise SystemExit('Error: no start')"


@pytest.mark.parametrize(("start", "detail"), [(SLOW, ""), (BROKEN, "Error: no start")], ids=["slow", "broken"])
def test_node_that_lost_its_runner_and_ray_is_being_started_again_and_not_up_or_given_up(
    run: Path, start: str, detail: str
) -> None:
    temp_dir = str(run / "ray")
    lost = replace(LOCAL, run=str(run), temp_dir=temp_dir, argv=(sys.executable, "-c", start), session=1 << 30)
    save_record(lost.with_runner(0))
    words = [sys.executable, "-m", "longboat.cluster.host.runner", str(run), "--adopt"]
    runner = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + 30.0
        while (record := load_record(run)) is None or (record.phase, record.detail) != ("rejoining", detail):
            assert time.monotonic() < end_s, record
            time.sleep(0.05)
        assert runner.poll() is None
    finally:
        os.killpg(runner.pid, signal.SIGKILL)
        runner.wait()


def test_full_disk_ends_no_node_and_its_record_is_written_when_there_is_room(run: Path, tmp_path: Path) -> None:
    """The limit on the size of files stands for the disk: whoever writes a byte to a file gets an OSError."""
    (tmp_path / "raylet").symlink_to("/bin/sleep")
    start = f"echo noise; echo 'Ray runtime started.'; {tmp_path}/raylet 600 & touch {tmp_path}/begun; wait"
    record = replace(LOCAL, run=str(run), temp_dir=str(run / "ray"), argv=("/bin/sh", "-c", start), phase="starting")
    save_record(record)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    words = ["prlimit", "--fsize=0:", sys.executable, "-m", "longboat.cluster.host.runner", str(run)]
    with (run / "node.log").open("ab") as output:
        runner = subprocess.Popen(words, start_new_session=True, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    end_s = time.monotonic() + 60.0

    def wait_until(is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert runner.poll() is None and time.monotonic() < end_s, load_record(run)
            time.sleep(0.01)

    try:
        wait_until((tmp_path / "begun").exists)
        for _ in range(4):  # each try makes a draft in the folder, also when Ray is up
            wait_until(partial(lambda tried: run.stat().st_mtime_ns != tried, run.stat().st_mtime_ns))
        assert load_record(run) == record, "nothing could be written yet"
        resource.prlimit(runner.pid, resource.RLIMIT_FSIZE, (most, most))
        wait_until(lambda: (found := load_record(run)) is not None and found.phase == "up" and found.is_kept)
        assert sorted(path.name for path in run.iterdir()) == ["node.json", "node.log", "runner.lock"]
    finally:
        os.killpg(runner.pid, signal.SIGKILL)
        runner.wait()


def test_machine_that_was_no_node_has_nothing_to_resume(run: Path) -> None:
    with pytest.raises(UserInputError, match="has not been a node") as caught:
        resume_node(run)
    assert "--join ADDRESS" in caught.value.hint


def test_worker_whose_head_stays_away_keeps_its_record(run: Path) -> None:
    save_record(replace(WORKER, run=str(run), gcs_address="127.0.0.1:9"))
    with pytest.raises(ClusterError, match=r"head at 127\.0\.0\.1:9 does not answer"):
        resume_node(run, head_s=0.0)
    assert load_record(run) is not None


def test_the_process_of_another_boot_keeps_no_node(run: Path) -> None:
    kept = replace(LOCAL, run=str(run), boot=boot_id()).with_runner(os.getpid())
    assert kept.is_kept
    assert not replace(kept, boot="another").is_kept


def test_a_record_is_on_the_disk_before_it_takes_the_place_of_another(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[tuple[str, str]] = []

    def synced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        before.append(
            (json.loads(path.read_text())["phase"], json.loads((path.parent / "node.json").read_text())["phase"])
        )

    save_record(replace(HEAD, run=str(run), phase="starting"))
    monkeypatch.setattr(os, "fsync", synced)
    save_record(replace(HEAD, run=str(run), phase="up"))
    assert before == [("up", "starting")] * 2


@pytest.mark.parametrize("ends", [True, False])
def test_a_node_that_is_being_stopped_is_resumed_once_it_has_ended(
    run: Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    monkeypatch.setattr(resume, "END_S", 30.0 if ends else 0.1)
    runner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        worker = replace(WORKER, run=str(run), gcs_address="127.0.0.1:1", phase="stopping")
        save_record(worker.with_runner(runner.pid))
        told = "to which this machine belongs" if ends else f"the process {runner.pid} that keeps it has not ended"
        with pytest.raises(ClusterError, match=told):
            resume_node(run, lambda _: runner.kill() if ends else None, head_s=0.0)
    finally:
        runner.kill()
        runner.wait()


def test_a_start_whose_runner_ended_is_not_waited_for_to_the_end(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_node, "ADOPTED_S", 0.1)
    save_record(replace(HEAD, run=str(run), phase="starting"))
    with pytest.raises(ClusterError, match="ended while it was started"):
        ray_node.wait_until_kept(run, lambda _: None)


def test_processes_that_do_not_end_in_time_are_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_node, "_REAP_DEADLINE_S", 0.0)
    with pytest.raises(ClusterError, match="did not end in 0 s") as refused:
        ray_node._reap({"LONGBOAT_RUN": "/no/such"})
    assert refused.value.hint
