"""Imported by every worker of our nodes before it is given work: the cycle collector waits until imports are done.

A supervisor's process imports several thousand objects of Ray Serve that all stay. With Python's own thresholds, the
collector looks through them again and again, for a fifth of the start's CPU time. It still runs, just less often.

Serve logs the arguments of each application that it builds. Those of a model hold the variables of its engine, which
may be secrets: the line is cut before them.
"""

from __future__ import annotations

import gc
import logging

__all__ = ("without_arguments",)

ARGUMENTS = " with arguments "


def without_arguments(record: logging.LogRecord) -> bool:
    """Cut the arguments of an application out of a line of Serve's log; every line is kept."""
    if isinstance(record.msg, str) and record.msg.startswith("Importing application") and ARGUMENTS in record.msg:
        record.msg, record.args = record.msg.partition(ARGUMENTS)[0], ()
    return True


gc.set_threshold(50_000, 20, 50)
logging.getLogger("ray.serve").addFilter(without_arguments)
