"""``longboat cluster up``: looks at every host, refuses or plans, installs everywhere at once, and starts in order."""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from longboat.core.errors import LongboatError, UserInputError
from longboat.engines.environments.engine_lock import ENGINE_PYTHON, recipe_of
from longboat.engines.environments.installer import parse_engine
from longboat.hosts.plan.address import address_of
from longboat.hosts.plan.facts import HostFacts
from longboat.hosts.plan.layout import layout_of
from longboat.hosts.plan.problems import HostsRefusedError, cluster_problems
from longboat.hosts.plan.steps import HostPlan, Kind, plan_hosts, sha256
from longboat.hosts.plan.wanted import Wanted, WantedEngine
from longboat.hosts.remote.actions import RemoteHost
from longboat.hosts.remote.look import look_at, unreachable
from longboat.hosts.remote.rolling import restart_worker
from longboat.hosts.remote.source import Source, read_source, uv_program
from longboat.hosts.remote.ssh import SshHost, connections
from longboat.hosts.remote.work import HostWork, Told
from longboat.spec.files.hosts_file import HostsFile

__all__ = ("Failure", "Observer", "Raised", "bring_up", "fleet_text")


@dataclass(frozen=True, slots=True)
class Failure:
    """A host on which the work ended early."""

    host: str
    error: LongboatError


@dataclass(slots=True)
class Raised:
    """How a run went."""

    plans: tuple[HostPlan, ...] = ()
    failures: list[Failure] = field(default_factory=list)

    @property
    def is_unchanged(self) -> bool:
        """Whether there was nothing to do."""
        return not any(plan.steps for plan in self.plans)


@dataclass(frozen=True, slots=True)
class Observer:
    """A receiver of what happens."""

    tell: Told
    # Called once with all plans, before the first step.
    planned: Callable[[Sequence[HostPlan]], None]


async def bring_up(file: HostsFile, folder: Path, observer: Observer, *, dry_run: bool = False) -> Raised:
    """Make the hosts what the file says. folder: where its relative paths start.

    Raises HostsRefusedError with every problem of every host, before anything is changed.
    """
    source = read_source(file, folder)
    fleet = fleet_text(file, folder)
    async with connections(file, file.hosts) as ssh:
        facts = await _checked(file, source, fleet, ssh, observer.tell)
        token = await _token(file, facts, ssh)
        plans = plan_hosts(file, facts, _wanted(file, source, fleet, token))
        observer.planned(plans)
        raised = Raised(plans=plans)
        if dry_run or raised.is_unchanged:
            return raised
        with source.parcel() as parcel:
            hosts = [RemoteHost(plan, ssh[plan.host.host], source, token, parcel, fleet) for plan in plans]
            works = [HostWork(host, observer.tell) for host in hosts]
            await _work(works, raised)
    return raised


async def _checked(
    file: HostsFile, source: Source, fleet: str, ssh: Mapping[str, SshHost], tell: Told
) -> dict[str, HostFacts]:
    """Return the facts of all hosts. Raises HostsRefusedError."""
    for host in file.hosts:
        tell(host.host, "looking")
    look = await look_at(file, file.hosts, ssh)
    problems = [*look.problems, *cluster_problems(file, look.facts, _wanted(file, source, fleet, ""))]
    found = {host.host: address_of(file, host, look.facts[host.host]) for host in file.hosts if host.host in look.facts}
    addresses = {name: address for name, address in found.items() if address}
    problems += await unreachable(file, addresses, ssh)
    if problems:
        raise HostsRefusedError(problems)
    for host in file.hosts:
        tell(host.host, "as it should be")
    return look.facts


def _wanted(file: HostsFile, source: Source, fleet: str, token: str) -> Wanted:
    engines = []
    for text in file.engines:
        kind, version = parse_engine(text)
        free = recipe_of(kind).free_bytes
        engines.append(WantedEngine(text=text, kind=kind, version=version, free_bytes=free))
    return Wanted(
        release=source.digest,
        version=source.version,
        python=source.python,
        engine_python=ENGINE_PYTHON,
        runtime=source.runtime,
        machine=platform.machine(),
        is_bundle=source.bundle is not None,
        brings_python=source.brings_python,
        uv=hashlib.sha256(uv_program().read_bytes()).hexdigest(),
        token=sha256(token) if token else "",
        fleet=sha256(fleet) if fleet else "",
        engines=tuple(engines),
        ports=_gateway_port(fleet),
    )


def _gateway_port(fleet: str) -> dict[int, str]:
    """Return the port that every host needs for its gateway; none where the fleet is not named here."""
    if not fleet:
        return {}
    from longboat.spec.files.load import read_fleet

    gateway = read_fleet(fleet, "fleet", folder="/").gateway
    return {gateway.port: "the gateway"} if gateway is not None else {}


def fleet_text(file: HostsFile, folder: Path) -> str:
    """Return the fleet with this machine's variables in it, for the head; empty where none is named.

    Raises UserInputError.
    """
    if not file.fleet:
        return ""
    from longboat.spec.files.dump import dump_fleet
    from longboat.spec.files.load import read_files

    path = folder / file.fleet
    try:
        text = path.read_text()
    except OSError as error:
        told = f"fleet: {path} cannot be read: {error.strerror}"
        raise UserInputError(told, hint="write the path from the hosts file's folder") from None
    fleet = read_files([(str(path), text)], folder=str(path.parent.absolute()), variables=os.environ).whole()
    # The head's command fills in variables too: there, what is left of them stands for itself.
    return dump_fleet(fleet).replace("${", "$${")


async def _token(file: HostsFile, facts: Mapping[str, HostFacts], ssh: Mapping[str, SshHost]) -> str:
    """Return the cluster's token: the head's, else a new one. It travels by the input and output of ssh only."""
    head = file.head
    if not facts[head.host].digests.get("token"):
        return secrets.token_hex(32)
    path = layout_of(file, head, facts[head.host]).token
    done = await ssh[head.host].run(f"cat {shlex.quote(path)}")
    return ssh[head.host].require(done, "the head's token cannot be read").out


async def _work(works: Sequence[HostWork], raised: Raised) -> None:
    """Take all steps; a host that fails takes no further one, and the others continue without it."""
    head = next(work for work in works if work.host.plan.host.role == "head")
    workers = [work for work in works if work is not head]
    await _each(works, lambda work: work.install(), raised)
    num_uninstalled = len(raised.failures)
    if head.host.plan.has(Kind.START):
        await _each(_sound([head], raised), lambda work: work.live(), raised)
    if not _sound([head], raised):
        return
    await _each(
        [work for work in _sound(workers, raised) if work.host.plan.has(Kind.START)], lambda work: work.live(), raised
    )
    waiting = await _roll(head, workers, raised, num_uninstalled)
    # The fleet is for the whole cluster: it waits for the next run where a host is missing.
    last = works if not raised.failures else workers
    await _each([work for work in _sound(last, raised) if work not in waiting], lambda work: work.finish(), raised)
    for work in _sound(works, raised):
        work.tell(work.name, "waits for the next run" if work in waiting else "done")


async def _roll(head: HostWork, workers: Sequence[HostWork], raised: Raised, num_uninstalled: int) -> list[HostWork]:
    """Restart nodes one by one, the head last. Return those that wait for the next run, because a node did not come up.

    They still run the release that they had, which must stay on them.
    num_uninstalled: hosts that failed before a node with the release was to start; they hold no other back
    """
    waiting = list[HostWork]()
    for work in _sound([*workers, head], raised):
        if not work.host.plan.has(Kind.RESTART):
            continue
        if len(raised.failures) > num_uninstalled:
            waiting.append(work)
            continue
        await _each([work], lambda one: one.live() if one is head else restart_worker(head, one), raised)
    return waiting


def _sound(works: Sequence[HostWork], raised: Raised) -> list[HostWork]:
    failed = {failure.host for failure in raised.failures}
    return [work for work in works if work.name not in failed]


async def _each(works: Sequence[HostWork], what: Callable[[HostWork], Awaitable[None]], raised: Raised) -> None:
    """Do something on hosts at once, and note those where it failed."""

    async def one(work: HostWork) -> None:
        try:
            await what(work)
        except LongboatError as error:
            work.tell(work.name, f"failed: {error.message.splitlines()[0]}")
            raised.failures.append(Failure(work.name, error))

    await asyncio.gather(*(one(work) for work in works))
