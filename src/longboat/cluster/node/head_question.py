"""Asks Ray's head with a deadline: Ray itself waits for a head that is stopped for minutes, or without an end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar
from weakref import WeakSet

from longboat.core.errors import ClusterError

__all__ = ("HEAD_HINT", "LEFT_BEHIND", "HeadAwayError", "asked_within")

HEAD_HINT = "the node that runs the head must be up; longboat status there says how it is"
LEFT_BEHIND: WeakSet[Thread] = WeakSet()
"""Threads whose question was given up: one that is in Ray crashes an interpreter that ends in the usual way."""
_HEAD_S = 30.0  # a head that is killed is back in less
_Found = TypeVar("_Found")


class HeadAwayError(ClusterError):
    """The head, or a part of it, does not answer."""


def asked_within(question: Callable[[], _Found], timeout_s: float = _HEAD_S) -> _Found:
    """Return what ``question`` returns; it raises what ``question`` raises.

    Raises HeadAwayError after ``timeout_s``. The thread that asks is left behind, and does not keep the process.
    """
    answer: Future[_Found] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # the caller gets it
            answer.set_exception(error)

    thread = Thread(target=ask, name="head-question", daemon=True)
    thread.start()
    try:
        return answer.result(timeout_s)
    except TimeoutError:
        if answer.done():  # the question's own
            raise
        LEFT_BEHIND.add(thread)
        raise HeadAwayError(f"the cluster's head did not answer within {timeout_s:.0f} s", hint=HEAD_HINT) from None
