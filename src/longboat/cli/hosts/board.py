"""The live table of hosts: one row each on a terminal, one plain line for each event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from longboat.cli.shared.console import make_console, simple_table
from longboat.hosts.plan.steps import HostPlan
from longboat.spec.files.hosts_file import HostSection

__all__ = ("Board",)

COLOURS = {"done": "green", "as it should be": "green", "failed": "red"}


class Board:
    """What happens on each host now. Use it as a context manager."""

    def __init__(self, hosts: Sequence[HostSection], console: Console | None = None) -> None:
        self._console = console or make_console(stderr=True, plain_lines=True)
        self._hosts = hosts
        self._told = {host.host: "waiting" for host in hosts}
        self._since_s = {host.host: time.monotonic() for host in hosts}
        self._left = dict.fromkeys(self._told, "")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def tell(self, host: str, what: str) -> None:
        """Show what happens on a host from now on."""
        self._told[host] = what
        self._since_s[host] = time.monotonic()
        if self._live is None:
            self._console.print(f"{host}: {what}")

    def planned(self, plans: Sequence[HostPlan]) -> None:
        """Print what will be done and why."""
        for plan in plans:
            for step in plan.steps:
                self._console.print(f"{plan.host.host}: {step.what} ({step.why})")
            self._left[plan.host.host] = f"{len(plan.steps)} steps" if plan.steps else ""

    def _table(self) -> Table:
        table = simple_table("HOST", "ROLE", "PLAN", "NOW", "", wraps=("NOW",))
        for host in self._hosts:
            told = self._told[host.host]
            is_over = told in COLOURS or told.startswith("failed")
            seconds = "" if is_over else f"{time.monotonic() - self._since_s[host.host]:.0f} s"
            style = COLOURS.get(told.partition(":")[0], "cyan")
            table.add_row(host.host, host.role, self._left[host.host], Text(told, style=style), seconds)
        return table
