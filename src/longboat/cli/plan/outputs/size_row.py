"""One row of a comparison of kinds of machines."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.planner.compare.sizing import MAX_NODES, Sized

__all__ = ("Row",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of machines, and what of it is needed."""

    title: str  # of one machine
    sized: Sized | None  # None: it cannot be planned at all
    problem: str  # why the load is not served; "": it is
    purchase_usd: float | None = None  # of the accelerators
    rent_usd_per_hour: float | None = None

    @property
    def order(self) -> tuple[object, ...]:
        """The kinds that serve the load first, by price where it is known, else by machines."""
        count = self.sized.cluster.num_nodes if self.sized else MAX_NODES
        money = self.purchase_usd if self.purchase_usd is not None else float("inf")
        return bool(self.problem), money, self.rent_usd_per_hour or float("inf"), count
