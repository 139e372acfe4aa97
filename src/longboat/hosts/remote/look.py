"""Looks at all hosts at once: probes, and whether the hosts reach one another on the cluster's network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from longboat.core.errors import ClusterError, Problem
from longboat.hosts.plan.facts import HostFacts, facts_from
from longboat.hosts.plan.layout import UNIT, wants_sudo
from longboat.hosts.remote.ssh import SshHost
from longboat.hosts.remote.ssh_errors import SilentHostError
from longboat.spec.files.hosts_file import HostSection, HostsFile

__all__ = ("Look", "look_at", "reaches", "unreachable")

PROBE_S = 60.0
REACH_S = 3
SSH_PORT = 22
REFUSED = "refused"


class Look:
    """What was found: facts of the hosts that answered, and a problem for each other one."""

    def __init__(self) -> None:
        self.facts: dict[str, HostFacts] = {}
        self.problems: list[Problem] = []


async def look_at(file: HostsFile, hosts: Sequence[HostSection], ssh: Mapping[str, SshHost]) -> Look:
    """Probe all hosts at once."""
    look = Look()
    found = await asyncio.gather(*(_probe(file, host, ssh[host.host]) for host in hosts), return_exceptions=True)
    for host, outcome in zip(hosts, found, strict=True):
        if isinstance(outcome, ClusterError):
            where = f"hosts[{file.hosts.index(host)}] ({host.host})" if host in file.hosts else host.host
            told = outcome.message.removeprefix(f"{host.host}: ")
            look.problems.append(Problem(where=where, what=told, hint=outcome.hint))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            look.facts[host.host] = outcome
    return look


async def _probe(file: HostsFile, host: HostSection, ssh: SshHost) -> HostFacts:
    run = file.folders.run or f"{file.folders.software}/run"
    variables = {
        "SOFTWARE": file.folders.software,
        "DATA": file.folders.data,
        "RUN": run,
        "UNIT": UNIT,
        "SUDO": "1" if wants_sudo(file, host) else "0",
    }
    try:
        done = await ssh.script("probe", variables, limit_s=PROBE_S)
    except SilentHostError:  # a busy host may miss its turn once, and a second look costs nothing
        done = await ssh.script("probe", variables, limit_s=PROBE_S)
    return facts_from(done.out, now_s=time.time())


async def unreachable(file: HostsFile, addresses: Mapping[str, str], ssh: Mapping[str, SshHost]) -> list[Problem]:
    """Return a problem for each pair of hosts between which packets do not travel.

    addresses: host → its address in the cluster
    An open port and a refusal both count as an answer.
    """
    pairs = [(one, other) for one in addresses for other in addresses if one != other]
    found = await asyncio.gather(*(reaches(ssh[one], addresses[other]) for one, other in pairs))
    index = {host.host: place for place, host in enumerate(file.hosts)}
    return [
        Problem(
            where=f"hosts[{index[one]}] ({one})",
            what=f"it gets no answer from {other} at {addresses[other]}",
            hint="let all TCP through between the hosts, and check card: and address:",
        )
        for (one, other), reaches in zip(pairs, found, strict=True)
        if not reaches
    ]


async def reaches(ssh: SshHost, address: str, port: int = SSH_PORT) -> bool:
    """Return whether packets travel from a host to an address. port: SSH's, where some program usually listens"""
    variables = {"ADDRESS": address, "PORT": str(port), "LIMIT_S": str(REACH_S)}
    done = await ssh.script("reach", variables, limit_s=REACH_S + 30.0)
    return done.code == 0 or REFUSED in done.err
