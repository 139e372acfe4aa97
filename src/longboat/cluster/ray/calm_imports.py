"""Imported by every worker of our nodes before it is given work: the cycle collector waits until imports are done.

A supervisor's process imports several thousand objects of Ray Serve that all stay. With Python's own thresholds, the
collector looks through them again and again, for a fifth of the start's CPU time. It still runs, just less often.
"""

from __future__ import annotations

import gc

__all__ = ()

gc.set_threshold(50_000, 20, 50)
