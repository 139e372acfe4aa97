"""Asks Ray's autoscaler for nodes while replicas find no room, and no longer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longboat.cluster.fleet.deployed import bundle_labels
from longboat.telemetry import logger

__all__ = ("AskForNodes", "NodeRequests", "needed_bundles")

log = logger("nodes")

REPEAT_S = 60.0
"""A request is repeated this often: a head that starts again has forgotten it."""

Bundles = list[Mapping[str, float]]
Labels = list[Mapping[str, str]]
AskForNodes = Callable[[Sequence[Mapping[str, float]], Sequence[Mapping[str, str]]], bool]
"""(bundles, labels of each one's node) → whether an autoscaler runs, and was asked."""


def needed_bundles(wanted: Mapping[str, int], arguments: Mapping[str, Mapping[str, Any]]) -> tuple[Bundles, Labels]:
    """Return the bundles of all replicas, and the labels of each one's node.

    The autoscaler compares them with what the nodes have in all, so replicas that run are among them.
    wanted: model → replicas, those without room included; arguments: model → those of its application
    """
    bundles: Bundles = []
    labels: Labels = []
    for model, count in sorted(wanted.items()):
        args = arguments.get(model) or {}
        each = args.get("bundles") or []
        bundles += each * count
        labels += (bundle_labels(args) or [{}] * len(each)) * count if each else []
    return bundles, labels


class NodeRequests:
    """What the autoscaler was asked for last."""

    def __init__(self, ask: AskForNodes) -> None:
        self._ask = ask
        self._asked: tuple[Bundles, Labels] | None = None  # None: not known; an earlier controller may have asked
        self._asked_s = 0.0
        self.is_heard = False  # whether an autoscaler took the newest request for more

    async def follow(self, wanted: Mapping[str, int], arguments: Mapping[str, Mapping[str, Any]]) -> None:
        """Ask for what is wanted where that changed. wanted: as in ``needed_bundles``; empty: all replicas have room"""
        needed = needed_bundles(wanted, arguments)
        is_due = bool(needed[0]) and time.monotonic() - self._asked_s >= REPEAT_S
        if needed == self._asked and (self.is_heard or not needed[0]) and not is_due:
            return
        self._asked, self._asked_s = None, time.monotonic()  # a request that is cut off may have been heard
        self.is_heard = await asyncio.to_thread(self._ask, *needed) and bool(needed[0])
        self._asked = needed
        if self.is_heard:
            log.warning("Ray's autoscaler is asked for nodes for %d bundles", len(needed[0]))
