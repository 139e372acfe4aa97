"""The endpoint tables of a gateway's workers: each has a part of the node's slots, by its tenants' demands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from longboat.core.states import EndpointTable
from longboat.routing.capacity.shares import Divider, TenantDemands, read_demands

__all__ = ("WorkerShares",)


class WorkerShares:
    """Divides the newest table between workers. A worker that does not report keeps its last demands."""

    def __init__(self, names: Sequence[str]) -> None:
        self._demands: dict[str, TenantDemands] = {name: {} for name in names}
        self._divider = Divider()
        self._table: EndpointTable | None = None
        self._parts: dict[str, EndpointTable] = {}

    def set_table(self, table: EndpointTable) -> None:
        """Take the node's new table."""
        self._table = table
        self.divide()

    def set_demands(self, name: str, document: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """Take the demands of a worker's tenants, for the next division."""
        self._demands[name] = read_demands(document)

    def divide(self) -> None:
        """Compute the workers' tables again."""
        if self._table is not None:
            tables = self._divider.tables(self._table, list(self._demands.values()))
            self._parts = dict(zip(self._demands, tables, strict=True))

    def table_of(self, name: str) -> EndpointTable | None:
        """Return a worker's table; None before there is one."""
        return self._parts.get(name)
