"""The record of a node's gateway on its disk, by which the next node daemon finds and adopts the gateway."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from longboat.disk_sync import write_whole

__all__ = ("GatewayRecord", "RecordFile")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRecord:
    """One gateway process."""

    socket: str  # path of its control socket
    token: str = field(repr=False)  # that the control socket asks for
    digest: str  # of the settings that it was started with
    port: int
    pid: int = 0  # 0: not known yet
    born: int = 0  # start time of the process in ticks, which tells reused pids apart
    drained: bool = False  # what the last order that was carried out said of its drain


class RecordFile:
    """The file of the record. ``preflight`` reads it too."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gateway.json"

    def read(self) -> GatewayRecord | None:
        """Return the record, without fields of a newer version; None where there is none."""
        try:
            found = json.loads(self._path.read_text())
            known = {field.name for field in fields(GatewayRecord)}
            return GatewayRecord(**{name: value for name, value in found.items() if name in known})
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return None

    def write(self, record: GatewayRecord) -> None:
        """Write the record by a rename: a reader finds the whole record or none."""
        write_whole(self._path, json.dumps(asdict(record)), mode=0o600)

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)
