"""Tests of the plugin beside vLLMs for which it was not written: it stays off, says so, and spares GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOGGER = """
class _Logger:
    def info(self, text, *args): print(text % args)
def init_logger(name): return _Logger()
"""
QUEUE = """
def sched_yield(): print("spins")
class SpinCondition:
    def __init__(self, last_read): self.last_read, self.busy_loop_s = last_read, 60
    def wait(self, timeout_ms=None):
        if __import__("time").monotonic() <= self.last_read + self.busy_loop_s: sched_yield()
        else: print("waits", timeout_ms)
class Memory:
    def close(self): print("closed")
    def unlink(self): print("unlinked")
class ShmRingBuffer:
    is_creator, shared_memory = True, Memory()
    def __del__(self):
        self.shared_memory.close()
        if self.is_creator:
            self.shared_memory.unlink()
class MessageQueue:
    def __init__(self, is_writer): self._is_writer, self.buffer = is_writer, ShmRingBuffer() if is_writer else None
    def wait_until_ready(self): print("ready")
    @staticmethod
    def create_from_handle(handle, rank):
        buffer = ShmRingBuffer(); socket.connect()
"""
PARSER = """
class DelegatingParser:
    def parse_delta(self, delta_text, delta_token_ids, request, prompt_token_ids=None, *, finished): pass
"""
REGISTRY = """
def _run_in_subprocess(fn): return "elsewhere"
class _LazyRegisteredModel:
    def inspect_model_cls(self):
        # Performed in another process to avoid initializing CUDA
        return _run_in_subprocess(lambda: "here")
"""
ASK_REGISTRY = """
from vllm.model_executor.models.registry import _LazyRegisteredModel
print("inspected", _LazyRegisteredModel().inspect_model_cls())
"""
ASK_MEMORY = """
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
MessageQueue(False).wait_until_ready()
queue = MessageQueue(True)
queue.wait_until_ready()
print("serves")
del queue
"""
ASK_QUEUE = """
import time
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
SpinCondition(time.monotonic()).wait(7)
SpinCondition(time.monotonic() - 61).wait(8)
"""


@pytest.fixture
def fake_vllm(tmp_path: Path) -> Path:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "logger.py").write_text(LOGGER)
    (package / "envs.py").write_text("environment_variables = {}\n")
    folder = queue_file(package).parent
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").write_text("")
    queue_file(package).write_text(QUEUE)
    (package / "parser").mkdir()
    (package / "parser" / "__init__.py").write_text("")
    (package / "parser" / "abstract_parser.py").write_text(PARSER)
    return package


def queue_file(package: Path) -> Path:
    return package / "distributed" / "device_communicators" / "shm_broadcast.py"


def platform(package: Path, *, is_cpu: bool) -> None:
    source = f"class current_platform:\n    @staticmethod\n    def is_cpu(): return {is_cpu}\n"
    (package / "platforms.py").write_text(source)


def run(package: Path, code: str, *words: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={"PYTHONPATH": str(package.parent), "PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


OFF = {"LONGBOAT_VLLM_RESUME": "0", "LONGBOAT_VLLM_PREFIXES": "0"}
REGISTER = "from longboat_vllm.plugin import register; register(); register()"
START_METHOD = REGISTER + "; import vllm.envs as e; print(e.environment_variables['VLLM_WORKER_MULTIPROC_METHOD']())"


def test_plugin_switched_off_does_not_look_at_vllm(fake_vllm: Path) -> None:
    (fake_vllm / "platforms.py").write_text("raise SystemExit('imported')")
    assert run(fake_vllm, REGISTER, LONGBOAT_VLLM_PLUGIN="0") == ""


def test_mends_stay_off_and_say_so_where_vllm_looks_otherwise(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=True)
    told = run(fake_vllm, REGISTER)
    assert "Longboat: mend pipeline on cpu is off: this vLLM's code differs" in told
    assert "Longboat: mend ranks per node on cpu is off" in told


@pytest.mark.parametrize(("is_cpu", "told"), [(True, ["waits 8"]), (False, ["spins", "waits 8"])])
def test_readers_of_message_queues_spin_on_gpus_alone(fake_vllm: Path, is_cpu: bool, told: list[str]) -> None:
    platform(fake_vllm, is_cpu=is_cpu)
    lines = run(fake_vllm, REGISTER + ASK_QUEUE, **OFF).splitlines()
    assert [line for line in lines if not line.startswith("Longboat: ")] == told


def test_memory_of_a_queue_that_all_have_loses_its_name_once(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=False)
    told = run(fake_vllm, REGISTER + ASK_MEMORY, **OFF).split()
    assert told == ["ready", "ready", "unlinked", "serves", "closed"]


def test_memory_keeps_its_name_where_readers_are_told_ready_without_it(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=False)
    queue_file(fake_vllm).write_text(
        QUEUE.replace("buffer = ShmRingBuffer(); socket.connect()", "socket.connect(); ShmRingBuffer()")
    )
    told = run(fake_vllm, REGISTER + ASK_MEMORY, **OFF)
    assert "mend memory left behind is off: this vLLM's code differs" in told
    assert told.split()[-5:] == ["ready", "ready", "serves", "closed", "unlinked"]


def test_mends_of_the_cpu_runner_leave_gpus_alone(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=False)
    assert run(fake_vllm, REGISTER, **OFF) == ""


def test_resuming_stays_off_and_says_so_where_vllm_looks_otherwise(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=False)
    told = run(fake_vllm, REGISTER + "; from longboat_vllm.resume.install import STATE; print(STATE.told())")
    assert "carrying streams of other engines is off: this vLLM's code differs" in told
    assert "replaying streams of other engines is off: this vLLM's code differs" in told
    assert "'carried': False, 'replay': False" in told


def test_resuming_switched_off_says_by_what(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=False)
    told = run(
        fake_vllm,
        REGISTER + "; from longboat_vllm.resume.install import STATE; print(STATE.told(), STATE.journal)",
        **OFF,
    )
    assert "'carried': False, 'replay': False, 'detail': 'carried is off: LONGBOAT_VLLM_RESUME=0" in told
    assert told.strip().endswith("False")


def test_children_of_a_plain_start_keep_vllms_start_method(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=False)
    assert run(fake_vllm, REGISTER + "; import vllm.envs as e; print(e.environment_variables)", **OFF).strip() == "{}"


def test_children_of_a_forked_server_are_forked(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=False)
    assert run(fake_vllm, START_METHOD, LONGBOAT_FORKED="1", **OFF).strip() == "fork"


def test_children_that_bind_to_numa_nodes_are_spawned(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=False)
    assert run(fake_vllm, START_METHOD, "--numa-bind", LONGBOAT_FORKED="1", **OFF).strip() == "spawn"


def test_children_of_a_process_with_a_device_in_use_are_spawned(fake_vllm: Path) -> None:
    platform(fake_vllm, is_cpu=False)
    torch = "class cuda:\n    @staticmethod\n    def is_initialized(): return True\n"
    (fake_vllm.parent / "torch.py").write_text(torch)
    assert run(fake_vllm, "import torch; " + START_METHOD, LONGBOAT_FORKED="1", **OFF).strip() == "spawn"


@pytest.mark.parametrize(
    ("is_cpu", "reason", "place"),
    [(True, "CUDA", "here"), (False, "CUDA", "elsewhere"), (True, "leaks", "elsewhere")],
    ids=["processor", "GPU", "another vLLM"],
)
def test_models_are_inspected_in_the_process_that_asks_on_processors_alone(
    fake_vllm: Path, is_cpu: bool, reason: str, place: str
) -> None:
    platform(fake_vllm, is_cpu=is_cpu)
    folder = fake_vllm / "model_executor" / "models"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").write_text("")
    (folder / "registry.py").write_text(REGISTRY.replace("CUDA", reason))
    assert f"inspected {place}" in run(fake_vllm, REGISTER + ASK_REGISTRY, **OFF)
