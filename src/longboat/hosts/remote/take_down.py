"""``longboat cluster remove``: takes hosts out of the cluster and deletes what Longboat put there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from longboat.core.errors import LongboatError
from longboat.hosts.plan.facts import HostFacts
from longboat.hosts.plan.layout import UNIT, layout_of
from longboat.hosts.plan.problems import HostsRefusedError
from longboat.hosts.remote.bring_up import Failure
from longboat.hosts.remote.look import look_at
from longboat.hosts.remote.ssh import SshHost, connections
from longboat.hosts.remote.work import Told
from longboat.spec.files.hosts_file import HostSection, HostsFile

__all__ = ("take_down",)

STOP_S = 200.0


async def take_down(file: HostsFile, hosts: Sequence[HostSection], tell: Told) -> list[Failure]:
    """Remove Longboat from hosts: workers at once, then the head. Return the hosts where that failed.

    Raises HostsRefusedError where a host cannot be reached; then nothing is removed.
    """
    async with connections(file, hosts) as ssh:
        look = await look_at(file, hosts, ssh)
        if look.problems:
            raise HostsRefusedError(look.problems)
        failures: list[Failure] = []

        async def one(host: HostSection) -> None:
            try:
                await _remove(file, host, look.facts[host.host], ssh, tell)
            except LongboatError as error:
                failures.append(Failure(host.host, error))

        await asyncio.gather(*(one(host) for host in hosts if host.role != "head"))
        await asyncio.gather(*(one(host) for host in hosts if host.role == "head"))
    return failures


async def _remove(file: HostsFile, host: HostSection, facts: HostFacts, ssh: Mapping[str, SshHost], tell: Told) -> None:
    if facts.manifest is None:
        tell(host.host, "nothing of Longboat is there")
        return
    layout, shell = layout_of(file, host, facts), ssh[host.host]
    unit_file = facts.manifest.unit_file
    is_system = unit_file.startswith("/etc/")
    variables = {
        "SOFTWARE": layout.software,
        # What up made, which need not be what the hosts file names now.
        "FOLDERS": "\n".join(facts.manifest.folders),
        "UNIT": UNIT,
        "UNIT_FILE": unit_file,
        "MANAGER": "" if is_system else "--user",
        "LINGERS": "1" if facts.manifest.lingers else "0",
    }
    if unit_file:
        tell(host.host, "stopping the node")
        done = await shell.script("stop", variables=variables, sudo=is_system and facts.uid != 0, limit_s=STOP_S)
        shell.require(done, "the unit cannot be removed")
    tell(host.host, f"deleting {layout.software}")
    shell.require(
        await shell.script("remove", variables=variables, limit_s=STOP_S), f"{layout.software} cannot be deleted"
    )
    tell(host.host, f"removed; {layout.data} stays")
