"""What a backup says of the fleet that runs: its file, with the changes that commands made since ``longboat up``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longboat.core.errors import LongboatError

__all__ = ("RunningFleet", "running_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFleet:
    """The fleet that runs. Everything is empty where none does."""

    name: str = ""
    text: str = ""  # the file as it was asked for, with the adapters that are served
    commands: tuple[str, ...] = ()  # they give models the numbers of replicas that commands gave them
    lacks: str = ""  # what is not in the file, and why


def running_of(values: Mapping[str, Any]) -> RunningFleet:
    """Read the fleet that runs from the controller's values. The file stays as it was written where nothing differs."""
    from longboat.cluster.counts.by_hand import commands_of, read_holds
    from longboat.cluster.fleet.adapters import running_fleet, with_adapters_of
    from longboat.spec.files.dump import dump_fleet
    from longboat.spec.files.load import load_fleet

    if not values:
        return RunningFleet()
    text, lacks = str((values.get("planned") or {}).get("asked") or values["text"]), ""
    try:
        asked = load_fleet(text, "the fleet as it was asked for")
        wanted = with_adapters_of(asked, running_fleet(values))
        text = text if wanted == asked else dump_fleet(wanted)
    except LongboatError as error:  # the fleet was started by another version
        lacks = f"adapters that commands changed are not in the fleet's file, which this version cannot read: {error}"
    commands = tuple(commands_of(read_holds(values)))
    return RunningFleet(name=str(values["fleet"]), text=text, commands=commands, lacks=lacks)
