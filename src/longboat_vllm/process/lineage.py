"""Ends processes with the process that forked them: no worker of an engine outlives the engine."""

from __future__ import annotations

import os
import threading

from longboat_vllm.process import keeper

__all__ = ("end_together",)

_registered_in = 0
_parent_pid = 0


def end_together() -> None:
    """Make the kernel SIGKILL every Python-forked descendant of this process when its parent ends.

    Only forks by a main thread count: the kernel watches the forking thread, and another thread may end early.
    """
    global _registered_in
    if not _registered_in:
        os.register_at_fork(before=_note_parent, after_in_child=_follow_parent)
        _registered_in = os.getpid()


def _note_parent() -> None:
    global _parent_pid
    _parent_pid = os.getpid() if threading.current_thread() is threading.main_thread() else 0


def _follow_parent() -> None:
    if _parent_pid:
        keeper.die_with_parent(_parent_pid)
