"""A machine becomes a node, stays one, and stops being one."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from free_ports import free_port
from longboat.cluster.host import choices as node_choices
from longboat.cluster.host import ray_start
from longboat.cluster.host.ray_command import NODE_MARK, RayOptions, parse_labels, ray_argv, ray_env
from longboat.cluster.host.ray_node import (
    NodeRequest,
    start_again,
    start_local,
    start_node,
    stop_node,
    wait_until_kept,
)
from longboat.cluster.host.ray_processes import processes_of_ray
from longboat.cluster.host.ray_start import NextStart
from longboat.cluster.host.record import ClusterRecord, connect_env, load_record, local_cluster, save_record
from longboat.cluster.host.resume import keep_or_start, request_of, resume_node
from longboat.cluster.host.runner import backoff_s, is_final, last_words
from longboat.cluster.ray import session
from longboat.core.errors import ClusterError, LongboatError, UserInputError
from longboat.folders import node_folder
from netlab.lab import Host
from netlab.plugin import MakeLab


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home folder of the test's own."""
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def run() -> Iterator[Path]:
    """A run folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="lb", dir="/tmp") as folder:
        yield Path(folder)


def _options(**changes: object) -> RayOptions:
    ports = {"metrics": 1, "dashboard_agent": 2, "dashboard": 3}
    options = RayOptions(
        role="head",
        address="10.0.0.1",
        gcs_address="10.0.0.1:6379",
        run="/r",
        temp_dir="/r/ray",
        token_file="/t",
        storage="/r/gcs",
        ports=ports,
    )
    return replace(options, **changes)  # type: ignore[arg-type]


def _record(run: Path, **changes: object) -> ClusterRecord:
    record = ClusterRecord(
        role="worker",
        address="10.0.0.2",
        interface="eth0",
        gcs_address="10.0.0.1:6379",
        run=str(run),
        temp_dir=f"{run}/ray",
        token_file="/t",
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def test_head_command_has_a_port_and_a_dashboard_and_a_worker_command_has_not() -> None:
    head, worker = ray_argv(_options()), ray_argv(_options(role="worker"))
    assert head[head.index("--port") + 1] == "6379"
    assert head[head.index("--dashboard-host") + 1] == "10.0.0.1"
    assert worker[worker.index("--address") + 1] == "10.0.0.1:6379"
    assert not {"--head", "--port", "--include-dashboard"} & set(worker)
    assert all(argv[argv.index("--include-log-monitor") + 1] == "false" for argv in (head, worker))


def test_labels_and_resources_are_passed_on() -> None:
    argv = ray_argv(_options(labels={"gpu": "h100", "zone": "a"}, num_cpus=2.0, num_gpus=0.0))
    assert argv[argv.index("--labels") + 1] == "gpu=h100,zone=a"
    assert (argv[argv.index("--num-cpus") + 1], argv[argv.index("--num-gpus") + 1]) == ("2", "0")


def test_environment_turns_the_token_on_and_only_the_head_watches_nodes() -> None:
    head, worker = ray_env(_options()), ray_env(_options(role="worker"))
    for env in (head, worker):
        assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN_PATH"], env[NODE_MARK]) == ("token", "/t", "/r")
        assert env["RAY_gcs_rpc_server_reconnect_timeout_s"] == "3600"
    assert head["RAY_health_check_failure_threshold"] == "3" and head["RAY_gcs_storage"] == "rocksdb"
    assert not [name for name in worker if "health" in name or "storage" in name]


def test_nodes_and_commands_with_another_patch_of_python_join_and_those_with_another_ray_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray
    from ray._private.utils import check_version_info

    def refuse(**_: object) -> None:
        raise ConnectionError("refused")

    major, minor, patch = platform.python_version_tuple()
    other_patch = {"ray_version": ray.__version__, "python_version": f"{major}.{minor}.{int(patch) + 1}"}
    node = ray_env(_options(role="worker"))
    with monkeypatch.context() as own:
        own.setattr(os, "environ", {**node})
        check_version_info(other_patch, "a node")
        with pytest.raises(RuntimeError, match="Version mismatch"):
            check_version_info({**other_patch, "ray_version": "1.0"}, "a node")
        own.setattr(os, "environ", {})
        own.setattr(session, "_require_listener", lambda _: False)
        own.setattr(ray, "init", refuse)
        with pytest.raises(ClusterError, match="no cluster answers"):
            session.Session({"RAY_ADDRESS": "127.0.0.1:1"})
        check_version_info(other_patch, "a command")


def test_only_a_local_cluster_lives_on_the_loopback() -> None:
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" in ray_env(_options(is_local=True, address="127.0.0.1"))
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in ray_env(_options())


def test_labels_are_read_and_wrong_ones_refused() -> None:
    assert parse_labels(["gpu=h100", "example.org/zone=a", "empty="]) == {
        "gpu": "h100",
        "example.org/zone": "a",
        "empty": "",
    }
    for wrong in ("gpu", "=x", "a b=c", "a=b,c=d", "a=b=c"):
        with pytest.raises(UserInputError, match="is not a label"):
            parse_labels([wrong])


def test_record_survives_writing_and_reading(run: Path) -> None:
    assert load_record(run) is None and local_cluster(run) is None
    record = _record(run).with_runner(os.getpid())
    save_record(record)
    assert local_cluster(run) == record
    assert connect_env(record)["RAY_ADDRESS"] == "10.0.0.1:6379"


def test_record_of_an_ended_runner_is_no_cluster(run: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    record = _record(run).with_runner(ended.pid)
    ended.wait()
    save_record(record)
    assert load_record(run) is not None and local_cluster(run) is None
    save_record(replace(_record(run).with_runner(os.getpid()), runner_born=1))
    assert local_cluster(run) is None, "another process has the pid now"


def test_record_with_unknown_fields_is_read(run: Path) -> None:
    save_record(_record(run))
    path = run / "node.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert load_record(run) == _record(run)


def test_token_is_made_once_for_our_eyes_only(run: Path) -> None:
    path = run / "deep" / "token"
    node_choices._ensure_token(path, may_make=True)
    first = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600 and len(first) >= 64
    node_choices._ensure_token(path, may_make=True)
    assert path.read_text() == first


def test_token_is_on_the_disk_before_it_is_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = run / "token", []

    def sync(draft: Path) -> None:
        assert not path.exists()
        synced.append(draft.read_text())

    monkeypatch.setattr(node_choices, "sync", sync)
    node_choices._ensure_token(path, may_make=True)
    assert synced == [path.read_text()]
    assert list(run.iterdir()) == [path]


def test_missing_or_readable_token_is_refused(run: Path) -> None:
    with pytest.raises(UserInputError, match="token is not here"):
        node_choices._ensure_token(run / "none", may_make=False)
    (run / "empty").touch(mode=0o600)
    with pytest.raises(UserInputError, match="is empty"):
        node_choices._ensure_token(run / "empty", may_make=True)
    (run / "open").write_text("x")
    (run / "open").chmod(0o644)
    with pytest.raises(UserInputError, match="others can read"):
        node_choices._ensure_token(run / "open", may_make=True)


def test_token_is_sought_where_ray_has_it_before_ours(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(run))
    env = {"LONGBOAT_HOME": str(run / "ours")}
    assert node_choices.token_path(env=env) == run / "ours" / "cluster_token"
    (run / ".ray").mkdir()
    (run / ".ray" / "auth_token").write_text("x")
    assert node_choices.token_path(env=env) == run / ".ray" / "auth_token"
    assert node_choices.token_path(env={**env, "RAY_AUTH_TOKEN_PATH": "/elsewhere"}) == Path("/elsewhere")
    assert node_choices.token_path("/said", env=env) == Path("/said")


def test_long_run_folder_gets_a_short_folder_for_sockets(run: Path) -> None:
    long = run / ("x" * 80)
    assert node_choices._temp_dir(run) == str(run / "ray")
    short = node_choices._temp_dir(long)
    try:
        assert len(short) <= node_choices._MAX_TEMP_DIR
        assert short == node_choices._temp_dir(long)
        shutil.rmtree(short)
        (run / "other").mkdir()
        Path(short).symlink_to(run / "other")
        with pytest.raises(ClusterError, match="is a link"):
            node_choices._temp_dir(long)
    finally:
        Path(short).unlink() if Path(short).is_symlink() else shutil.rmtree(short)


def test_head_on_a_port_of_rays_workers_is_refused(run: Path) -> None:
    with (
        node_choices.PortClaims() as claims,
        pytest.raises(UserInputError, match=r"port 16379: .* 10002 to 19999") as caught,
    ):
        node_choices.decide(NodeRequest(address="127.0.0.2", port=16379), run, claims)
    assert "(6379)" in caught.value.hint


def test_head_at_the_loopback_address_is_local_and_may_have_any_port(run: Path) -> None:
    port = next(port for port in range(12_000, 19_000) if node_choices._is_free("127.0.0.1", port))
    with node_choices.PortClaims() as claims:
        options = node_choices.decide(NodeRequest(address="127.0.0.1", port=port), run, claims)
    assert (options.gcs_address, options.is_local) == (f"127.0.0.1:{port}", True)


def test_storage_is_found_again_from_another_working_directory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.mkdir(exist_ok=True)
    monkeypatch.chdir(run)
    with node_choices.PortClaims() as claims:
        options = node_choices.decide(NodeRequest(address="127.0.0.1", storage="store"), run, claims)
    assert Path(options.storage).parent == run / "store"


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_storage_that_is_a_file_is_refused(run: Path, name: str) -> None:
    run.mkdir(exist_ok=True)
    (run / "file").touch()
    request = NodeRequest(address="127.0.0.1", storage=str(run / name))
    with node_choices.PortClaims() as claims, pytest.raises(UserInputError, match="file is not a folder"):
        node_choices.decide(request, run, claims)


def test_taken_port_is_refused_before_anything_starts(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        request = NodeRequest(is_local=True, port=taken.getsockname()[1])
        with pytest.raises(UserInputError, match="cannot listen"):
            start_node(request, run)
    assert load_record(run) is None


def _racing(monkeypatch: pytest.MonkeyPatch, taken: list[socket.socket], *, races: int) -> None:
    """Ray does not start where another process takes the port first; that happens ``races`` times."""

    def spawn(record: ClusterRecord) -> subprocess.Popen[bytes]:
        host, _, port = record.gcs_address.rpartition(":")
        lost = len(taken) < races
        if lost:
            taken.append(socket.create_server((host, int(port))))
            Path(record.storage).mkdir(parents=True)
        save_record(replace(record, phase="failed", detail="Failed to start GCS") if lost else record)
        if not lost:
            save_record(replace(record, phase="up"))
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr("longboat.cluster.host.ray_node._spawn_runner", spawn)


@pytest.fixture
def taken() -> Iterator[list[socket.socket]]:
    """Ports that others took."""
    found: list[socket.socket] = []
    yield found
    for server in found:
        server.close()


def test_port_that_another_process_took_meanwhile_is_left_for_another(
    run: Path, monkeypatch: pytest.MonkeyPatch, taken: list[socket.socket]
) -> None:
    _racing(monkeypatch, taken, races=1)
    said: list[str] = []
    record = start_local(run, said.append)
    (port,) = [server.getsockname()[1] for server in taken]
    assert record.gcs_address != f"127.0.0.1:{port}"
    assert f"another process took port {port}: trying again with others" in said
    assert not list((node_folder(run) / "gcs").glob("*"))


def test_starts_at_the_same_time_choose_different_ports(run: Path) -> None:
    """Ray binds them seconds later."""
    request = NodeRequest(is_local=True)
    with node_choices.PortClaims() as first, node_choices.PortClaims() as second:
        one = node_choices.decide(request, run, first)
        other = node_choices.decide(request, run, second)
    assert not {one.gcs_address, *one.ports.values()} & {other.gcs_address, *other.ports.values()}


def test_port_of_a_start_that_is_over_can_be_chosen_again() -> None:
    port = free_port()
    with node_choices.PortClaims() as first, node_choices.PortClaims() as second:
        assert first.near("127.0.0.1", port) == port
        assert second.near("127.0.0.1", port) != port
    with node_choices.PortClaims() as third:
        assert third.near("127.0.0.1", port) == port


def test_port_that_is_asked_for_and_taken_meanwhile_is_refused_by_its_number(
    run: Path, monkeypatch: pytest.MonkeyPatch, taken: list[socket.socket]
) -> None:
    _racing(monkeypatch, taken, races=1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UserInputError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use") as caught:
        start_node(NodeRequest(is_local=True, port=port), run)
    assert "another --port" in caught.value.hint


def test_ports_that_are_always_taken_are_told_in_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch, taken: list[socket.socket]
) -> None:
    _racing(monkeypatch, taken, races=9)
    with pytest.raises(ClusterError, match=r"Failed to start GCS \(another process listens on 127\.0\.0\.1:") as caught:
        start_local(run)
    assert "ss -ltnp" in caught.value.hint
    assert len(taken) == 3
    assert load_record(run) is None


@pytest.mark.parametrize(
    ("detail", "tries"),
    [("RuntimeError: Version mismatch", 1), ("no port for dashboard: [Errno 98] Address already in use", 3)],
    ids=["another reason", "a port that was taken for a moment"],
)
def test_failure_with_free_ports_is_tried_again_only_where_a_port_was_taken(
    run: Path, monkeypatch: pytest.MonkeyPatch, detail: str, tries: int
) -> None:
    starts: list[str] = []

    def spawn(record: ClusterRecord) -> subprocess.Popen[bytes]:
        starts.append(record.gcs_address)
        save_record(replace(record, phase="failed", detail=detail))
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr("longboat.cluster.host.ray_node._spawn_runner", spawn)
    with pytest.raises(ClusterError, match=re.escape(detail)):
        start_local(run)
    assert len(starts) == tries


@pytest.mark.parametrize(
    ("option", "wanted"),
    [("--join", NodeRequest(join="[fd00::5]:6379")), ("--address", NodeRequest(address="fd00::5"))],
)
def test_ipv6_address_of_a_node_is_refused_as_such(option: str, wanted: NodeRequest, run: Path) -> None:
    with pytest.raises(UserInputError, match=f"{option}: .*fd00::5.* is an IPv6 address"):
        start_node(wanted, run)


def test_cluster_that_does_not_answer_is_refused(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ClusterError, match="no cluster answers"):
        start_node(NodeRequest(join=f"127.0.0.1:{port}"), run)
    for join in ("host:http", "host:0", "host:65536", "host:\N{SUPERSCRIPT TWO}", f"host:{'9' * 5000}"):
        with pytest.raises(UserInputError, match="is not an address"):
            start_node(NodeRequest(join=join), run)


@pytest.mark.parametrize("phase", ["up", "stopping"])
def test_service_that_is_started_again_ends_what_another_node_left(run: Path, phase: str) -> None:
    free = f"127.0.0.1:{free_port()}"
    left = subprocess.Popen(["sleep", "60"], env={**os.environ, NODE_MARK: str(run)})
    try:
        save_record(_record(run, phase=phase).with_runner(left.pid))
        with pytest.raises(ClusterError, match="no cluster answers"):
            keep_or_start(NodeRequest(join=free), run)
        assert left.wait(timeout=30) is not None
    finally:
        left.kill()


def test_service_ends_what_a_node_without_a_record_left(run: Path) -> None:
    """A full disk may have taken the record: the service would be refused for as long as a process is left."""
    left = subprocess.Popen(["sleep", "60"], env={**os.environ, NODE_MARK: str(run)})
    try:
        with pytest.raises(ClusterError, match="no cluster answers"):
            keep_or_start(NodeRequest(join=f"127.0.0.1:{free_port()}"), run)
        assert left.wait(timeout=30) is not None
    finally:
        left.kill()


def test_node_that_is_resumed_is_still_the_one_that_was_asked_for(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the service that is started again ends it, with all answers that it streams."""
    asked = NodeRequest(is_local=True, num_cpus=2.0)
    _racing(monkeypatch, [], races=0)
    first = start_node(asked, run)
    assert resume_node(run).request == first.request == asdict(asked)


def test_two_starts_at_a_time_make_one_node(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both had read that the node does not run, as where they waited for the same head."""
    before = _record(run, gcs_address=f"127.0.0.1:{free_port()}", token_file=str(run / "token"), role="head")
    before = replace(before, address="127.0.0.1", storage=str(run / "gcs" / "x"), phase="stopped")
    save_record(before)
    spawned: list[ClusterRecord] = []
    waits = threading.Event()

    def spawn(record: ClusterRecord) -> subprocess.Popen[bytes]:
        spawned.append(record)
        assert waits.wait(30)
        save_record(replace(record, phase="up").with_runner(os.getpid()))
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr("longboat.cluster.host.ray_node._spawn_runner", spawn)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(start_again, before, request_of(before), lambda _: None)
        while not spawned:
            time.sleep(0.01)
        with pytest.raises(ClusterError, match="another command is starting a node"):
            start_node(NodeRequest(is_local=True), run)
        second = pool.submit(start_again, before, request_of(before), lambda _: waits.set())
        assert first.result(60) == second.result(60)
    assert len(spawned) == 1


def test_start_that_was_stopped_for_a_while_looks_again_before_it_ends_the_node(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z, or a machine without memory: the node came up meanwhile."""
    monkeypatch.setattr("longboat.cluster.host.ray_node._START_DEADLINE_S", 0.0)
    _racing(monkeypatch, [], races=0)
    assert start_local(run).phase == "up"
    save_record(replace(_record(run), phase="up").with_runner(os.getpid()))
    assert wait_until_kept(run, lambda _: None).phase == "up"


def test_runner_begins_once_the_command_has_written_its_record(run: Path) -> None:
    save_record(_record(run, argv=(sys.executable, "-c", ""), phase="failed"))
    words = [sys.executable, "-m", "longboat.cluster.host.runner", str(run)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as runner:
        with pytest.raises(subprocess.TimeoutExpired):
            runner.wait(1.5)
        assert not (run / "runner.lock").exists()
        assert runner.stdin is not None
        runner.stdin.close()
        assert runner.wait(30) == 1


def test_stop_that_is_cut_off_keeps_what_the_node_was(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_record(_record(run, phase="up"))

    def cut(record: ClusterRecord) -> None:
        assert record.phase == "stopped"
        raise KeyboardInterrupt

    monkeypatch.setattr("longboat.cluster.host.ray_node._keep", cut)
    with pytest.raises(KeyboardInterrupt):
        stop_node(run, keep_state=True)
    left = load_record(run)
    assert left is not None and left.is_ended


def test_stop_without_a_node_says_so(run: Path) -> None:
    assert stop_node(run) is False


@pytest.mark.parametrize("keep_state", [False, True], ids=["for good", "to be resumed"])
def test_node_is_stopped_on_a_full_disk(run: Path, home: Path, *, keep_state: bool) -> None:
    """A limit of nothing for the size of files stands for the full disk: writing fails, and removing works."""
    env = {**os.environ, NODE_MARK: str(run), "LONGBOAT_HOME": str(home)}
    with subprocess.Popen(("sleep", "600"), env=env, start_new_session=True) as runner:
        save_record(_record(run, phase="up").with_runner(runner.pid))
        words = "import resource, sys; from pathlib import Path; from longboat.cluster.host.ray_node import stop_node; "
        words += "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
        words += f"print(stop_node(Path({str(run)!r}), keep_state={keep_state}))"
        env = {name: value for name, value in env.items() if name != NODE_MARK}
        done = subprocess.run(
            (sys.executable, "-c", words), env=env, capture_output=True, text=True, timeout=120, check=False
        )
        assert runner.wait(60) < 0
    if keep_state:
        assert "the node was stopped, but what it was cannot be written" in done.stderr
    else:
        assert (done.stdout, done.stderr) == ("True\n", "")
    assert load_record(run) is None


def test_pauses_grow_to_a_limit() -> None:
    assert [backoff_s(failures) for failures in (0, 1, 2, 3, 9)] == [0.0, 1.0, 2.0, 4.0, 30.0]


_NEXT = "import sys; print('standby' if '--standby' in sys.argv else 'plain', sys.stdin.readline() == chr(10))"


def said(start: NextStart) -> list[str]:
    """What the process prints that is taken."""
    with start.take() as process:
        assert process.stdout is not None
        return process.stdout.read().split()


def test_next_start_is_prepared_while_the_head_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_start, "_LOOK_EVERY_S", 0.0)
    argv = [sys.executable, "-c", _NEXT, ray_start.__name__]
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        start = NextStart(argv, {}, f"127.0.0.1:{head.getsockname()[1]}")
        began_s = time.monotonic()
        assert not start.was_away_since(began_s)
        start.look()
        assert start.was_away_since(began_s)
        assert said(start) == ["standby", "True"]
        head.listen()
        began_s = time.monotonic()
        start.look()
        assert not start.was_away_since(began_s)
        assert said(start) == ["plain", "False"]


def test_next_start_is_given_up_once_the_head_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_start, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(ray_start, "_KEPT_S", -1.0)
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        start = NextStart([sys.executable, "-c", _NEXT, ray_start.__name__], {}, f"127.0.0.1:{head.getsockname()[1]}")
        start.look()
        head.listen()
        start.look()
        assert said(start) == ["plain", "False"]


def test_slow_start_is_tried_again_and_a_wrong_one_is_not() -> None:
    slow = "Exception: The current node timed out during startup. This could happen …"
    assert [is_final(slow, failures) for failures in (1, 2, 3)] == [False, False, True]
    assert is_final("RuntimeError: Version mismatch", 1)


def test_last_words_are_the_error_and_not_what_surrounds_it() -> None:
    lines = [
        "2026-01-01 00:00:00,000\tINFO scripts.py:1 -- \x1b[37mLocal node IP\x1b[39m: 10.0.0.1\n",
        "Traceback (most recent call last):\n",
        "RuntimeError: Version mismatch: the cluster was started with Ray 1\n",
        "\n",
    ]
    assert last_words(lines) == "RuntimeError: Version mismatch: the cluster was started with Ray 1"
    assert last_words(lines[:1]) == "Local node IP: 10.0.0.1"
    assert last_words([]) == ""


# With real Ray


_ALIVE = """
import time, ray
ray.init(log_to_driver=False, logging_level="ERROR")
said = None
while True:
    alive = ",".join(sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]))
    if alive != said:
        print(f"\\nalive: {alive}", flush=True)
    said = alive
    time.sleep(0.2)
"""
_SAID = re.compile(r"^alive: (\S*)\n", re.MULTILINE)
_DRIVER_S = 60.0


class Nodes:
    """The nodes that a cluster has, as one driver sees them: its start costs seconds."""

    def __init__(self, start: Callable[[list[str], int], subprocess.Popen[Any]], output: Path) -> None:
        """start: starts a command that writes to a file"""
        self._output = output
        self._num_read = 0  # states up to the last one that was waited for
        with output.open("w") as file:
            self._driver = start([sys.executable, "-c", _ALIVE], file.fileno())

    def alive(self, expected: str, deadline_s: float) -> str:
        """Wait until these nodes were alive since the state that was waited for last; return the newest otherwise."""
        end_s = time.monotonic() + deadline_s + (0.0 if self._said() else _DRIVER_S)
        while expected not in (said := self._said())[self._num_read :] and time.monotonic() < end_s:
            assert self._driver.poll() is None, self._output.read_text()
            time.sleep(0.2)
        if expected not in said[self._num_read :]:
            return (said or [""])[-1]
        self._num_read = said.index(expected, self._num_read) + 1
        return expected

    def end(self) -> None:
        self._driver.kill()
        self._driver.wait(timeout=_DRIVER_S)

    def _said(self) -> list[str]:
        return _SAID.findall(self._output.read_text())


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_local_cluster_starts_answers_and_stops(run: Path, home: Path) -> None:
    record = start_local(run)
    try:
        assert record.started_by_up and record.role == "head" and local_cluster(run) == record
        env = {**os.environ, **connect_env(record)}
        nodes = Nodes(lambda argv, file: subprocess.Popen(argv, env=env, stdout=file, stderr=file), home / "alive")
        assert nodes.alive("127.0.0.1", 30) == "127.0.0.1"
        nodes.end()
        assert _parts_of_the_dashboard(record) == ["ServeHead"]
        with pytest.raises(LongboatError, match="already"):
            start_local(run)
        assert keep_or_start(NodeRequest(is_local=True), run) == record
    finally:
        assert stop_node(run) is True
    assert load_record(run) is None and not list((home / "nodes").iterdir())
    assert _processes_of(run) == []


def _parts_of_the_dashboard(record: ClusterRecord) -> list[str]:
    titles = [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes_of_ray(record.temp_dir, record.session)]
    return [found[1] for title in titles if (found := re.match(r"ray-dashboard-(\w+)", title))]


def _processes_of(run: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{NODE_MARK}={run}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


_LONGBOAT = [sys.executable, "-c", "from longboat.cli.app import main; main()"]


def _longboat(host: Host, *words: str, timeout: float = 330.0) -> str:
    output: str = host.run([*_LONGBOAT, *words], timeout=timeout).stdout
    return output


def _nodes_at(host: Host, token: Path) -> Nodes:
    env = {"RAY_ADDRESS": "10.77.0.1:6379", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    return Nodes(lambda argv, file: host.popen(argv, env=env, output=file), token.parent / f"alive.{time.time_ns()}")


_SERVE = """
import ray, sys
from ray import serve
ray.init(log_to_driver=False, logging_level="ERROR")

@serve.deployment(num_replicas=2, max_replicas_per_node=1, ray_actor_options={"num_cpus": 0.1})
class Where:
    def __call__(self):
        return ray.util.get_node_ip_address()

serve.start(proxy_location="Disabled")
handle = serve.run(Where.bind(), name="where", route_prefix=None)
print("answered by", ",".join(sorted({handle.remote().result(timeout_s=20) for _ in range(40)})))
serve.shutdown()
"""


@pytest.mark.ray
@pytest.mark.net
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hosts_form_a_cluster_and_a_cut_off_one_comes_back(netlab: MakeLab) -> None:
    lab = netlab(2)
    one, two = lab.hosts
    token = lab.folder / "token"
    told = _longboat(one, "node", "start", "--head", "--num-cpus", "2", "--token-file", str(token))
    assert "--join 10.77.0.1" in told and str(token) in told
    _longboat(two, "node", "start", "--join", one.address, "--num-cpus", "2", "--token-file", str(token))
    both = f"{one.address},{two.address}"
    nodes = _nodes_at(one, token)
    assert nodes.alive(both, 30) == both
    assert not [line for line in one.processes().values() if "ray.util.client" in line], "a server without clients"
    env = {"RAY_ADDRESS": "10.77.0.1:6379", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    assert f"answered by {both}\n" in two.run([sys.executable, "-c", _SERVE], env=env, timeout=150).stdout

    marks = {"LONGBOAT_RUN": two.env["LONGBOAT_RUN"]}
    two.run(["sh", "-c", "setsid sleep 1001 >/dev/null 2>&1 &"], env={**marks, "LONGBOAT_GANG": "m/r"})
    two.run(["sh", "-c", "setsid sleep 1002 >/dev/null 2>&1 &"], env=marks)
    lab.cut(two)
    assert nodes.alive(one.address, 30) == one.address
    time.sleep(20)
    assert "sleep 1001" in two.processes().values()
    lab.restore(two)
    assert nodes.alive(both, 150) == both
    assert "sleep 1001" not in two.processes().values(), "an engine of before the cut lives on"
    assert "sleep 1002" in two.processes().values(), "what is no engine was ended"

    assert "stopped" in _longboat(two, "node", "stop")
    assert set(two.processes().values()) == {"sleep 1002"}
    assert nodes.alive(one.address, 30) == one.address
    nodes.end()
    _longboat(one, "node", "stop")
    assert one.processes() == {}


@pytest.mark.ray
@pytest.mark.net
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lost_raylet_is_replaced_and_a_lost_head_is_taken_up_again(netlab: MakeLab) -> None:
    lab = netlab(2)
    one, two = lab.hosts
    token = lab.folder / "token"
    head = ("node", "start", "--head", "--num-cpus", "2", "--token-file", str(token))
    join = ("node", "start", "--join", one.address, "--num-cpus", "2", "--token-file")
    both = f"{one.address},{two.address}"
    _longboat(one, *head)
    (lab.folder / "wrong").write_text("b" * 64)
    (lab.folder / "wrong").chmod(0o600)
    refused = two.run([*_LONGBOAT, *join, str(lab.folder / "wrong")], timeout=240, check=False)
    assert refused.returncode == 3 and "does not accept the token" in refused.stdout
    assert two.processes() == {}
    _longboat(two, *join, str(token))
    nodes = _nodes_at(one, token)
    assert nodes.alive(both, 30) == both

    two.run(["kill", "-KILL", str(_raylet(two))])
    assert nodes.alive(one.address, 30) == one.address
    assert nodes.alive(both, 150) == both

    raylet = _raylet(two)
    lab.kill_host(one)
    time.sleep(10)
    lab.boot(one)
    _longboat(one, *head)
    nodes.end()  # it died with its host
    nodes = _nodes_at(one, token)
    assert nodes.alive(both, 60) == both
    assert _raylet(two) == raylet, "the worker's node did not live on"

    nodes.end()
    _longboat(one, "node", "stop")
    _longboat(two, "node", "stop")
    assert one.processes() == two.processes() == {}


def _raylet(host: Host) -> int:
    return next(pid for pid, command in host.processes().items() if "/raylet/raylet" in command)
