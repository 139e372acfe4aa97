"""The real ``FleetController`` with a stand's nodes instead of Ray's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from longboat.cluster.fleet import controller as module
from longboat.cluster.fleet.controller import FleetController

__all__ = ("real_controller",)


async def real_controller(
    daemon_of: Callable[[str], Any], nodes: Sequence[str], values: Mapping[str, Any]
) -> FleetController:
    """Return a controller that has taken its values. daemon_of: returns what takes the orders of a node"""
    entries = [{"NodeID": n, "Alive": True, "NodeManagerAddress": n, "Resources": {"CPU": 8.0}} for n in nodes]
    module._alive_nodes = lambda: entries
    controller = FleetController.__new__(FleetController)
    await FleetController.__init__(  # type: ignore[misc]
        controller, daemon_of, _end_daemon, _carry_out, hold_room=_hold_room, ask_for_nodes=_ask_for_nodes
    )
    await controller.reconfigure(values)
    return controller


async def _end_daemon(_node: str) -> bool:
    return True


async def _carry_out(*_: Any) -> None:
    """Carry no order out: the stand gives none."""


def _hold_room(*_: Any) -> NoReturn:
    raise AssertionError("no model of the stand gets more replicas through Serve")


def _ask_for_nodes(*_: Any) -> bool:
    return False
