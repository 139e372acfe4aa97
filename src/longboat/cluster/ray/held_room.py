"""Steers Serve's next replicas to some nodes: the room of all others is held until the replicas have their places.

Serve creates the placement groups of replicas itself, and takes no preference of nodes that may change
(docs/decisions/0034-room-held-for-placement.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from longboat.telemetry import logger

__all__ = ("HeldRoom",)

log = logger("placement")

HOLD_S = 1.0
"""How long other nodes' room is waited for. What cannot be held by then is in use, and no replica goes there either."""
PLACED_S = 15.0
LOOK_EVERY_S = 0.25
CREATED_EVERY_S = 0.02
NODE_LABEL = "ray.io/node-id"


class HeldRoom:
    """Room on nodes that nothing else gets until it is released; it ends with this process at the latest."""

    def __init__(self, held: Mapping[str, int], bundle: Mapping[str, float]) -> None:
        """held: node → number of such bundles. Blocks for a moment."""
        self._groups: list[PlacementGroup] = []
        try:
            for node, part in ((node, part) for node, shares in held.items() for part in _parts(shares)):
                self._groups.append(_group(node, part, bundle))
            self._drop(_late(self._groups))  # an autoscaler would start nodes for what waits
        except BaseException:
            self.release()
            raise

    def release_when(self, is_placed: Callable[[], bool]) -> None:
        """Release the room when the replicas are placed, at the latest after some seconds. Blocks, and never raises."""
        end_s = time.monotonic() + PLACED_S
        try:
            while time.monotonic() < end_s and not is_placed():
                time.sleep(LOOK_EVERY_S)
        except Exception as error:  # the end of a thread: the room is released
            log.warning("whether replicas are placed cannot be seen: %r", error)
        self.release()

    def release(self) -> None:
        """Let the room go."""
        self._drop(self._groups)

    def _drop(self, groups: list[PlacementGroup]) -> None:
        self._groups = [group for group in self._groups if group not in groups]
        for group in groups:
            _remove(group)


def _group(node: str, part: int, bundle: Mapping[str, float]) -> PlacementGroup:
    amounts = {kind: amount * part for kind, amount in bundle.items()}
    return placement_group([amounts], strategy="STRICT_PACK", bundle_label_selector=[{NODE_LABEL: node}])


def _late(groups: list[PlacementGroup]) -> list[PlacementGroup]:
    """Return the groups that have no room when the time is over. Blocks for a moment."""
    end_s, late = time.monotonic() + HOLD_S, groups
    while (late := [group for group in late if not _is_created(group)]) and time.monotonic() < end_s:
        time.sleep(CREATED_EVERY_S)
    return late


def _is_created(group: PlacementGroup) -> bool:
    return bool(placement_group_table(group).get("state") == "CREATED")


def _parts(shares: int) -> Iterator[int]:
    """Divide a number into powers of two: where others take some of the room, most of the rest is held."""
    for bit in range(shares.bit_length()):
        if shares & (part := 1 << bit):
            yield part


def _remove(group: Any) -> None:
    try:
        remove_placement_group(group)
    except Exception as error:  # it ends with this process
        log.warning("held room is not released: %r", error)
