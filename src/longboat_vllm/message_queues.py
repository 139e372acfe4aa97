"""Fixes the queues in shared memory through which vLLM's engine core and workers talk."""

from __future__ import annotations

import functools
import inspect
import time
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("NAP_S", "mend_memory_left_behind", "mend_spinning_on_cpu")

NAP_S = 2e-4
_SPINNING_MENDED = "_longboat_mended_spinning"
_MEMORY_MENDED = "_longboat_mended_memory"


def mend_spinning_on_cpu() -> None:
    """Let the engine core and the workers nap while they wait for each other's messages.

    For a second after each message, vLLM's queue polls for the next one without a pause, so that a GPU's result is not
    delayed by a wakeup. On CPU, that takes the cores that compute. Naps of ``NAP_S`` keep the same promise: a lost
    wakeup is only noticed after seconds. Can be dropped when vLLM lets its user choose how a reader waits.
    """
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    wait = SpinCondition.wait
    if hasattr(wait, _SPINNING_MENDED):
        return
    expect("sched_yield()" in inspect.getsource(wait), "readers of message queues do not spin")

    @functools.wraps(wait)
    def wait_in_naps(condition: Any, timeout_ms: int | None = None) -> None:
        if time.monotonic() <= condition.last_read + condition.busy_loop_s:
            time.sleep(NAP_S)
        else:
            wait(condition, timeout_ms)

    setattr(wait_in_naps, _SPINNING_MENDED, True)
    SpinCondition.wait = wait_in_naps


def mend_memory_left_behind() -> None:
    """Unlink a queue's shared memory as soon as its writer and all readers have it.

    The memory then ends with the last of them, however that one ends. Otherwise a gang that is killed together with its
    keeper leaves up to 240 MiB of the machine's memory behind per queue. Can be dropped when vLLM unlinks it itself.
    """
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue, ShmRingBuffer

    wait_until_ready = MessageQueue.wait_until_ready
    if hasattr(wait_until_ready, _MEMORY_MENDED):
        return
    source = inspect.getsource(ShmRingBuffer.__del__)
    expect(
        "if self.is_creator:" in source and "self.shared_memory.unlink()" in source,
        "buffers are unlinked in another way",
    )
    joins = inspect.getsource(MessageQueue.create_from_handle)
    known = 0 <= joins.find("ShmRingBuffer(") < joins.find(".connect(")
    expect(known, "readers report themselves before they have the memory")

    @functools.wraps(wait_until_ready)
    def wait_until_ready_and_unlink(queue: Any) -> None:
        wait_until_ready(queue)
        buffer = getattr(queue, "buffer", None)
        if queue._is_writer and buffer is not None and buffer.is_creator:
            buffer.is_creator = False
            buffer.shared_memory.unlink()

    setattr(wait_until_ready_and_unlink, _MEMORY_MENDED, True)
    MessageQueue.wait_until_ready = wait_until_ready_and_unlink
