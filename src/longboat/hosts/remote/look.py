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

__all__ = ("Look", "answering", "look_at", "unreachable")

PROBE_S = 60.0
REACH_S = 3
SSH_PORT = 22


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
        done = await ssh.script("probe", variables=variables, limit_s=PROBE_S)
    except SilentHostError:  # a busy host may miss its turn once, and a second look costs nothing
        done = await ssh.script("probe", variables=variables, limit_s=PROBE_S)
    return facts_from(done.out, began_s=done.began_s, ended_s=time.time())


async def unreachable(file: HostsFile, addresses: Mapping[str, str], ssh: Mapping[str, SshHost]) -> list[Problem]:
    """Return a problem for each pair of hosts between which packets do not travel.

    addresses: host → its address in the cluster
    """
    others = {one: [address for other, address in addresses.items() if other != one] for one in addresses}
    answers = await asyncio.gather(*(answering(ssh[one], others[one]) for one in addresses))
    pairs = [
        (one, other)
        for one, found in zip(addresses, answers, strict=True)
        for other, address in addresses.items()
        if other != one and address not in found
    ]
    index = {host.host: place for place, host in enumerate(file.hosts)}
    return [
        Problem(
            where=f"hosts[{index[one]}] ({one})",
            what=f"it does not reach {other} at {addresses[other]}",
            hint="let all TCP through between the hosts, and check card: and address:",
        )
        for one, other in pairs
    ]


async def answering(ssh: SshHost, addresses: Sequence[str], port: int = SSH_PORT) -> frozenset[str]:
    """Return the addresses that answer a host; a refusal is an answer. port: SSH's, where a program usually listens"""
    variables = {"ADDRESSES": " ".join(addresses), "PORT": str(port), "LIMIT_S": str(REACH_S)}
    done = ssh.require(
        await ssh.script("reach", variables=variables, limit_s=REACH_S + 30.0), "cannot try the other hosts"
    )
    return frozenset(done.out.split())
