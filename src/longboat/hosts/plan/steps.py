"""From the facts of a host to the steps that are left to do there, each with its reason."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from longboat.hosts.plan.address import address_of
from longboat.hosts.plan.facts import HostFacts
from longboat.hosts.plan.layout import Layout, layout_of
from longboat.hosts.plan.unit import launcher_text, unit_text
from longboat.hosts.plan.wanted import Wanted
from longboat.spec.files.hosts_file import HostSection, HostsFile

__all__ = ("HostPlan", "Kind", "Step", "plan_hosts", "sha256")

PARTS = ("its release", "its unit", "the token")


class Kind(StrEnum):
    """Kind of step, in the order in which a host takes them."""

    FOLDERS = "folders"
    UV = "uv"
    RELEASE = "release"
    LAUNCHER = "launcher"
    SWITCH = "switch"
    ENGINE = "engine"
    TOKEN = "token"  # noqa: S105
    LINGER = "linger"
    UNIT = "unit"
    START = "start"
    RESTART = "restart"
    TIDY = "tidy"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do on one host."""

    kind: Kind
    # What will be done, for people.
    what: str
    # What differs.
    why: str
    # The engine of an ENGINE step.
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """What is left to do on one host, and what it needs."""

    host: HostSection
    facts: HostFacts
    layout: Layout
    address: str
    unit: str
    launcher: str
    # Digests of the release, the unit and the token that the node should be started with.
    started: tuple[str, ...]
    steps: tuple[Step, ...]

    def has(self, *kinds: Kind) -> bool:
        """Return whether one of these steps is left."""
        return any(step.kind in kinds for step in self.steps)


def sha256(text: str) -> str:
    """Return the digest by which the probe knows a file."""
    return hashlib.sha256(text.encode()).hexdigest()


def plan_hosts(file: HostsFile, facts: Mapping[str, HostFacts], wanted: Wanted) -> tuple[HostPlan, ...]:
    """Plan all hosts, in the order of the file. The hosts must be without problems."""
    head = address_of(file, file.head, facts[file.head.host])
    return tuple(_plan(file, host, facts[host.host], wanted, head) for host in file.hosts)


def _plan(file: HostsFile, host: HostSection, facts: HostFacts, wanted: Wanted, head: str) -> HostPlan:
    layout, address = layout_of(file, host, facts), address_of(file, host, facts)
    unit = unit_text(file, host, layout, user=facts.user, address=address, head=head)
    more = _package_variables(layout, file, wanted)
    launcher = launcher_text(layout, more)
    texts = {"unit": unit, "launcher": launcher}
    return HostPlan(
        host=host,
        facts=facts,
        layout=layout,
        address=address,
        unit=unit,
        launcher=launcher,
        started=_start_digests(wanted, texts),
        steps=tuple(_steps(host, facts, wanted, layout, texts)),
    )


def _start_digests(wanted: Wanted, texts: Mapping[str, str]) -> tuple[str, ...]:
    return wanted.release, sha256(texts["unit"]), wanted.token


def _package_variables(layout: Layout, file: HostsFile, wanted: Wanted) -> dict[str, str]:
    """Return where engines of this host come from."""
    if wanted.is_bundle:
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{layout.parcel(wanted.release)}/wheels"}
    return {"PIP_INDEX_URL": file.install.index_url} if file.install.index_url else {}


def _steps(
    host: HostSection, facts: HostFacts, wanted: Wanted, layout: Layout, texts: Mapping[str, str]
) -> Iterator[Step]:
    if facts.manifest is None:
        yield Step(kind=Kind.FOLDERS, what=f"make {layout.software} and {layout.data}", why="nothing is there yet")
    elif facts.missing:
        what = f"make {' and '.join(facts.missing)}"
        yield Step(kind=Kind.FOLDERS, what=what, why="not there")
    yield from _software(facts, wanted, texts)
    yield from _service(facts, wanted, layout, texts)
    yield from _life(facts, wanted, texts)
    old = sorted(facts.releases - {wanted.release})
    if old:
        yield Step(kind=Kind.TIDY, what=f"delete {len(old)} old releases", why="no node uses them")
    if host.role == "head" and wanted.fleet and facts.digests.get("fleet") != wanted.fleet:
        why = "its file changed" if facts.digests.get("fleet") else "it does not run yet"
        yield Step(kind=Kind.FLEET, what="serve the fleet", why=why)


def _software(facts: HostFacts, wanted: Wanted, texts: Mapping[str, str]) -> Iterator[Step]:
    if wanted.uv and facts.digests.get("uv") != wanted.uv:
        yield Step(kind=Kind.UV, what="copy uv", why=_differs(facts, "uv"))
    if wanted.release not in facts.releases:
        had = facts.manifest.version if facts.manifest and facts.manifest.version else ""
        why = f"{had} is installed, as another build" if had == wanted.version else f"{had or 'nothing'} is installed"
        what = f"install Longboat {wanted.version} with Python {wanted.python}"
        yield Step(kind=Kind.RELEASE, what=what, why=why)
    if facts.digests.get("launcher") != sha256(texts["launcher"]):
        yield Step(kind=Kind.LAUNCHER, what="write bin/longboat", why=_differs(facts, "launcher"))
    if facts.current != wanted.release:
        yield Step(kind=Kind.SWITCH, what=f"switch to {wanted.version}", why="another release is in use, or none")
    for engine in wanted.engines:
        if engine.environment(has_driver=bool(facts.driver)) not in facts.engines:
            what = f"install {engine.text}"
            yield Step(kind=Kind.ENGINE, what=what, why="its environment is missing", name=engine.text)


def _service(facts: HostFacts, wanted: Wanted, layout: Layout, texts: Mapping[str, str]) -> Iterator[Step]:
    if not wanted.token or facts.digests.get("token") != wanted.token:
        yield Step(kind=Kind.TOKEN, what="write the cluster's token", why=_differs(facts, "token"))
    if not layout.is_system and not facts.lingers:
        what = f"let services of {facts.user} run without a login"
        yield Step(kind=Kind.LINGER, what=what, why="lingering is off")
    if facts.digests.get("unit") != sha256(texts["unit"]):
        yield Step(kind=Kind.UNIT, what=f"write {layout.unit_file}", why=_differs(facts, "unit"))
    elif not facts.enabled:
        yield Step(kind=Kind.UNIT, what="enable the unit", why="it does not start at boot")


def _life(facts: HostFacts, wanted: Wanted, texts: Mapping[str, str]) -> Iterator[Step]:
    if facts.active not in ("active", "reloading"):  # "activating" may be the pause between two failures
        yield Step(kind=Kind.START, what="start the node", why=f"the unit is {facts.active or 'not there'}")
        return
    if why := _why_restart(facts, _start_digests(wanted, texts)):
        yield Step(kind=Kind.RESTART, what="restart the node", why=why)


def _why_restart(facts: HostFacts, wanted: tuple[str, ...]) -> str:
    """Return why a running node must restart; empty where it runs with these files, as the manifest tells."""
    there = (facts.current, facts.digests.get("unit", ""), facts.digests.get("token", ""))
    started = facts.manifest.started if facts.manifest else ()
    changed = [part for part, has, should in zip(PARTS, there, wanted, strict=True) if has != should]
    changed = changed or [part for part, had, should in zip(PARTS, started, wanted, strict=False) if had != should]
    if changed:
        return f"{' and '.join(changed)} changed"
    return "" if started == wanted else "no run noted that it started with these files"


def _differs(facts: HostFacts, name: str) -> str:
    return "it differs" if facts.digests.get(name) else "it is missing"
