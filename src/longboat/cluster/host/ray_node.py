"""Starts and stops this machine's node of a Ray cluster: address, ports, token, and the runner that keeps it."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from longboat import __version__
from longboat.cluster.host.choices import NodeRequest, PortClaims, decide, taken_ports, token_path
from longboat.cluster.host.nic import interface_of
from longboat.cluster.host.ray_command import NODE_MARK, RayOptions, ray_argv, ray_env
from longboat.cluster.host.ray_processes import end_processes_of_ray
from longboat.cluster.host.record import (
    ClusterRecord,
    connect_env,
    forget_record,
    load_record,
    local_cluster,
    save_record,
)
from longboat.core.errors import ClusterError, LongboatError
from longboat.engines.launch.keeper_command import keeper_argv
from longboat.file_lock import FileLock
from longboat.folders import run_folder, temporary_folder
from longboat.processes import all_pids, boot_id, environment_of

__all__ = (
    "ClusterRecord",
    "NodeRequest",
    "connect_env",
    "is_anything_left",
    "local_cluster",
    "start_again",
    "start_local",
    "start_node",
    "stop_node",
    "token_path",
    "wait_until_kept",
)

_START_DEADLINE_S = 300.0
_STOP_DEADLINE_S = 30.0
_REAP_DEADLINE_S = 30.0
_IN_USE = "address already in use"
_PORT_TRIES = 3
_LOOK_EVERY_S = 1.0
ADOPTED_S = 60.0
"""Another runner adopts a node in seconds, where its Ray is left."""


def start_node(
    request: NodeRequest, run: Path | None = None, on_progress: Callable[[str], None] = lambda _text: None
) -> ClusterRecord:
    """Start Ray here and return when the node is up; a runner process keeps it from then on.

    Ports are found free before Ray takes them: where another process was quicker, others are tried.

    on_progress: told what is being waited for, now and then
    Raises UserInputError (nothing was started) and ClusterError (with the last words of Ray).
    """
    run = run or run_folder()
    with _one_start(run, on_progress, within_s=0.0):
        _refuse_second(run)
        return _start_on_free_ports(request, run, on_progress)


def start_again(record: ClusterRecord, request: NodeRequest, on_progress: Callable[[str], None]) -> ClusterRecord:
    """Start the node of ``record`` as it was. Its gateway, where it still runs, is kept; engines that run are ended.

    Where another command has started it meanwhile, that start is waited for.
    Raises UserInputError and ClusterError; the record stays then, so that it can be tried again.
    """
    run = Path(record.run)
    with _one_start(run, on_progress, within_s=_START_DEADLINE_S):
        if (now := local_cluster(run)) is not None and not now.is_ended:
            return wait_until_kept(run, on_progress)
        try:
            return _start_on_free_ports(request, run, on_progress, record.request)
        except LongboatError as error:
            save_record(replace(record, phase="stopped", detail=f"the last start failed: {error}"))
            raise


@contextlib.contextmanager
def _one_start(run: Path, on_progress: Callable[[str], None], within_s: float) -> Iterator[None]:
    """Hold the right to start this node: two starts at a time would end each other's processes.

    Raises ClusterError where another command keeps it for longer than ``within_s``.
    """
    begin_s = time.monotonic()
    while (lock := FileLock.awaited(run / "start.lock", min(within_s, _LOOK_EVERY_S))) is None:
        waited_s = time.monotonic() - begin_s
        if waited_s >= within_s:
            hint = f"run it again once that start is over; its output is in {_log(run)}"
            raise ClusterError("another command is starting a node on this machine", hint=hint)
        on_progress(f"another command is starting this node: {waited_s:.0f} s")
    with lock:
        yield


def _start_on_free_ports(
    request: NodeRequest, run: Path, on_progress: Callable[[str], None], asked: Mapping[str, Any] | None = None
) -> ClusterRecord:
    """asked: what a person asked for, where ``request`` is made from that; None: ``request``"""
    with PortClaims() as claims:  # of all tries: a port that was taken in the first one is not chosen again
        return _start_on_ports(claims, request, run, on_progress, asked or asdict(request))


def _start_on_ports(
    claims: PortClaims,
    request: NodeRequest,
    run: Path,
    on_progress: Callable[[str], None],
    asked: Mapping[str, Any],
) -> ClusterRecord:
    left = _PORT_TRIES
    while True:
        options = decide(request, run, claims)
        is_new = not Path(options.storage).exists()
        try:
            return _start(options, run, request, on_progress, asked)
        except ClusterError as error:
            taken = taken_ports(options)
            if not taken and _IN_USE not in error.message.lower():
                raise
            left -= 1
            if not left:
                where = f"{options.address}:{taken[0]}" if taken else "one of its ports"
                told = f"{error.message} (another process listens on {where})"
                raise ClusterError(told, hint="run it again when that one is up; ss -ltnp shows who it is") from error
        if options.role == "head" and is_new:
            shutil.rmtree(options.storage, ignore_errors=True)
        which = f"port {', '.join(map(str, taken))}" if taken else "a port for a moment"
        on_progress(f"another process took {which}: trying again with others")


def _start(
    options: RayOptions,
    run: Path,
    request: NodeRequest,
    on_progress: Callable[[str], None],
    asked: Mapping[str, Any],
) -> ClusterRecord:
    """Start Ray. Raises ClusterError, and leaves nothing, where it does not come up."""
    before = load_record(run)
    record = ClusterRecord(
        role=options.role,
        address=options.address,
        interface=interface_of(options.address),
        gcs_address=options.gcs_address,
        run=str(run),
        temp_dir=options.temp_dir,
        token_file=options.token_file,
        storage=options.storage,
        dashboard=f"{options.address}:{options.ports['dashboard']}" if options.role == "head" else "",
        started_by_up=request.started_by_up,
        request=asked,
        argv=tuple(ray_argv(options)),
        env=ray_env(options),
        session=before.session if before is not None else 0,
        boot=boot_id(),
        versions=_versions(),
    )
    runner = _spawn_runner(record)
    return _wait_until_up(run, runner, on_progress)


def _versions() -> dict[str, str]:
    with contextlib.suppress(PackageNotFoundError):
        return {"longboat": __version__, "ray": version("ray"), "python": platform.python_version()}
    return {"longboat": __version__, "python": platform.python_version()}


def start_local(run: Path | None = None, on_progress: Callable[[str], None] = lambda _text: None) -> ClusterRecord:
    """Start a cluster of this machine only, as ``longboat up`` does where there is none; ``longboat down`` ends it."""
    return start_node(NodeRequest(is_local=True, started_by_up=True), run, on_progress)


def stop_node(run: Path | None = None, *, keep_state: bool = False) -> bool:
    """End the runner, Ray, and everything that was started on behalf of this node. False: there was nothing to end.

    keep_state: the node's record, and a head's durable state, stay: ``longboat node start`` resumes the node
    Raises ClusterError when something cannot be ended, or what the node was cannot be kept.
    """
    run = run or run_folder()
    record = load_record(run)
    was_kept = record is not None and record.is_kept
    gently = keep_state or (record is not None and record.role == "worker")
    killed = _end_all(run, gently=gently, forgets=not keep_state)
    if record is not None and keep_state:
        _keep(replace(record, phase="stopped", detail="", runner_pid=0))
    elif record is not None:
        if record.storage:
            shutil.rmtree(record.storage, ignore_errors=True)
        forget_record(run)
    return was_kept or bool(killed)


def _keep(record: ClusterRecord) -> None:
    try:
        save_record(record)
    except OSError as error:
        raise ClusterError(
            f"the node was stopped, but what it was cannot be written to {record.run}: {error.strerror}",
            hint="free the disk; longboat node start with the node's own options makes it a node again",
        ) from error


def _end_all(run: Path, *, gently: bool = True, forgets: bool = True) -> list[int]:
    """Leave no process of this node; pids of those that did not end when they were asked to.

    gently: Ray gets the time to write what it knows, and a worker's to leave its cluster
    forgets: the record goes; else it says from now on that the node is being stopped
    """
    record = load_record(run)
    if record is not None:
        _prevent_adoption(record)
        if record.is_kept:
            _end_runner(record, signal.SIGTERM if gently else signal.SIGKILL)
    killed = end_processes_of_ray(record.temp_dir, record.session) if record is not None else []
    killed += _reap({NODE_MARK: str(run)})
    if forgets:
        forget_record(run)
    return killed


def _prevent_adoption(record: ClusterRecord) -> None:
    """Mark the node as one that is being stopped. On a full disk its record goes, which has the same effect."""
    try:
        save_record(replace(record, phase="stopping"))
    except OSError:
        forget_record(Path(record.run))


def _refuse_second(run: Path) -> None:
    if record := local_cluster(run):
        raise ClusterError(
            f"this machine is already a node of the cluster at {record.gcs_address}", hint="longboat node stop ends it"
        )
    if pids := _marked(str(run)):
        hint = "longboat node start resumes that node; longboat node stop ends it"
        raise ClusterError(f"an earlier node left processes here: {', '.join(map(str, pids[:8]))}", hint=hint)


def is_anything_left(run: Path) -> bool:
    """Return whether a process of the node with this run folder runs, be it kept or not."""
    return local_cluster(run) is not None or bool(_marked(str(run)))


def _spawn_runner(record: ClusterRecord) -> subprocess.Popen[bytes]:
    log = _log(Path(record.run))
    log.parent.mkdir(parents=True, exist_ok=True)
    save_record(record)
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with log.open("ab") as output:
        runner = subprocess.Popen(
            [sys.executable, "-m", "longboat.cluster.host.runner", record.run],
            env={**env, **temporary_folder(Path(record.run)), NODE_MARK: record.run},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    assert runner.stdin is not None
    with runner.stdin:  # the runner begins after it: on a slow disk, this record would take the place of a later one
        save_record(record.with_runner(runner.pid))
    return runner


def wait_until_kept(run: Path, on_progress: Callable[[str], None]) -> ClusterRecord:
    """Wait until a runner that another process started has the node up. Raises ClusterError where it does not."""
    begin_s = kept_s = time.monotonic()
    is_late = False
    while not is_late:
        waited_s = time.monotonic() - begin_s
        is_late = waited_s > _START_DEADLINE_S  # a look follows: this process itself may have been stopped
        record = load_record(run)
        if record is None or record.phase == "failed":
            raise ClusterError(f"the node did not come up: {record.detail if record else ''}", hint=f"see {_log(run)}")
        if record.is_kept:
            if record.phase == "up":
                return record
            kept_s = time.monotonic()
        elif time.monotonic() - kept_s > ADOPTED_S:
            hint = f"longboat node start brings it back; see {_log(run)}"
            raise ClusterError("the process that keeps the node ended while it was started", hint=hint)
        on_progress(f"the node is being started: {waited_s:.0f} s")
        time.sleep(0.1)
    raise ClusterError(f"the node was not up within {_START_DEADLINE_S:.0f} s", hint=f"its output is in {_log(run)}")


def _wait_until_up(run: Path, runner: subprocess.Popen[bytes], on_progress: Callable[[str], None]) -> ClusterRecord:
    begin_s = time.monotonic()
    is_late = False
    while not is_late:
        waited_s = time.monotonic() - begin_s
        is_late = waited_s > _START_DEADLINE_S  # a look follows: this process itself may have been stopped
        record = load_record(run)
        if record is not None and record.phase == "up":
            return record
        if runner.poll() is not None:
            raise _failure(run, record.detail if record else "")
        on_progress(f"starting Ray: {waited_s:.0f} s")
        time.sleep(0.1)
    _end_all(run)
    raise ClusterError(f"Ray was not up within {_START_DEADLINE_S:.0f} s", hint=f"its output is in {_log(run)}")


def _failure(run: Path, detail: str) -> ClusterError:
    record = load_record(run)
    _end_all(run)
    if record is not None and "AuthToken" in detail:
        return ClusterError(
            f"the cluster at {record.gcs_address} does not accept the token in {record.token_file}",
            hint="copy the token file that longboat node start --head named there, and give it with --token-file",
        )
    return ClusterError(f"Ray did not start: {detail or 'it printed nothing'}", hint=f"its output is in {_log(run)}")


def _log(run: Path) -> Path:
    return run / "logs" / "node.log"


def _end_runner(record: ClusterRecord, how: signal.Signals) -> None:
    end_s = time.monotonic() + _STOP_DEADLINE_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.runner_pid, how)
        while record.is_kept and time.monotonic() < end_s:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(record.runner_pid, os.WNOHANG)
            time.sleep(0.05)
        if record.is_kept:
            os.kill(record.runner_pid, signal.SIGKILL)


def _reap(marks: Mapping[str, str]) -> list[int]:
    """SIGKILL what carries ``marks``, but for ourselves; the pids."""
    argv = keeper_argv("--reap", *(f"{name}={value}" for name, value in marks.items()))
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_REAP_DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        what = f"some processes of this node did not end in {_REAP_DEADLINE_S:.0f} s"
        raise ClusterError(what, hint="run it again; ps shows them") from error
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise ClusterError(f"some processes of this node could not be ended: {last}", hint="look for it with ps")
    return [int(word) for word in done.stdout.split()]


def _marked(run: str) -> list[int]:
    """Processes of this node."""
    return [pid for pid in all_pids() if pid != os.getpid() and environment_of(pid).get(NODE_MARK) == run]
