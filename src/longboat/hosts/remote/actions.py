"""What each kind of step does on a host."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from longboat.hosts.plan.facts import Manifest
from longboat.hosts.plan.layout import UNIT
from longboat.hosts.plan.steps import HostPlan, Kind, Step
from longboat.hosts.remote.source import Source, uv_program
from longboat.hosts.remote.ssh import SshHost

__all__ = ("ACTIONS", "RemoteHost")

START_S = 700
INSTALL_S = 3600.0
WAIT_S: Final = 1800
"""For the end of an installation that a run that was cut has left."""
FLEET_S: Final = 14_400
"""For the first start of a fleet, which downloads its weights."""


@dataclass(slots=True)
class RemoteHost:
    """One host, and the manifest of what Longboat put there."""

    plan: HostPlan
    ssh: SshHost
    source: Source
    token: str = field(repr=False)
    parcel: Path
    fleet: str = field(repr=False)
    manifest: Manifest = field(default_factory=Manifest)

    def __post_init__(self) -> None:
        self.manifest = self.plan.facts.manifest or Manifest()

    async def script(self, *names: str, sudo: bool = False, limit_s: float = 120.0, **more: str) -> str:
        """Run Longboat's scripts of these names there, and return what they print."""
        layout = self.plan.layout
        variables = {
            "SOFTWARE": layout.software,
            "DATA": layout.data,
            "RUN": layout.run,
            "RELEASE": self.source.digest,
            "UNIT": UNIT,
            "UNIT_FILE": layout.unit_file,
            "MANAGER": "" if layout.is_system else "--user",
            **more,
        }
        as_root = sudo and self.plan.facts.uid != 0
        done = await self.ssh.script(*names, variables=variables, sudo=as_root, limit_s=limit_s)
        return self.ssh.require(done, f"{names[-1]} failed").out

    async def install(self, name: str, **more: str) -> None:
        """Run a script that installs; it waits for the end of an installation that a run that was cut has left."""
        limit_s = WAIT_S + INSTALL_S
        await self.script("install_lock", name, sudo=False, limit_s=limit_s, WAIT_S=str(WAIT_S), **more)

    async def remember(self, manifest: Manifest) -> None:
        """Write the manifest: what Longboat put there, before it is there."""
        self.manifest = manifest
        await self.ssh.put(self.plan.layout.manifest, json.dumps(asdict(manifest)).encode())

    async def forget_start(self) -> None:
        """Note that the node's files change: a run that is cut before the restart leaves it to the next one."""
        if self.manifest.started:
            await self.remember(replace(self.manifest, started=()))


async def _folders(host: RemoteHost, _step: Step) -> None:
    layout = host.plan.layout
    outside = () if layout.run.startswith(f"{layout.software}/") else (layout.run,)
    folders = tuple(dict.fromkeys((*host.manifest.folders, *outside)))
    host.manifest = replace(host.manifest, folders=folders)
    await host.script("folders", MANIFEST=json.dumps(asdict(host.manifest)))


async def _uv(host: RemoteHost, _step: Step) -> None:
    await host.ssh.put(f"{host.plan.layout.software}/bin/uv", uv_program(), mode=0o755)


async def _release(host: RemoteHost, _step: Step) -> None:
    layout, source = host.plan.layout, host.source
    parcel = layout.parcel(source.digest)
    await host.ssh.put_folder(host.parcel, parcel)
    await host.install(
        "release",
        PYTHON=source.python,
        IS_BUNDLE="1" if source.bundle else "0",
        INDEX_URL=source.index_url,
        REQUIREMENT=source.requirement(parcel),
    )


async def _launcher(host: RemoteHost, _step: Step) -> None:
    await host.ssh.put(host.plan.layout.launcher, host.plan.launcher.encode(), mode=0o755)


async def _switch(host: RemoteHost, _step: Step) -> None:
    await host.forget_start()
    await host.script("switch")
    await host.remember(replace(host.manifest, release=host.source.digest, version=host.source.version))


async def _engine(host: RemoteHost, step: Step) -> None:
    await host.install("engine", ENGINE=step.name)
    await host.remember(replace(host.manifest, engines=(*host.manifest.engines, step.name)))


async def _token(host: RemoteHost, _step: Step) -> None:
    await host.forget_start()
    await host.ssh.put(host.plan.layout.token, host.token.encode(), mode=0o600)


async def _linger(host: RemoteHost, _step: Step) -> None:
    await host.remember(replace(host.manifest, lingers=True))
    await host.script("linger")


async def _unit(host: RemoteHost, _step: Step) -> None:
    layout = host.plan.layout
    await host.remember(replace(host.manifest, unit_file=layout.unit_file, started=()))
    await host.ssh.put(f"{layout.software}/{UNIT}", host.plan.unit.encode(), mode=0o644)
    await host.script("unit", sudo=layout.is_system)


async def _start(host: RemoteHost, _step: Step) -> None:
    # A unit that is about to start keeps the files of its last try unless it is restarted.
    is_trying = host.plan.facts.active == "activating" and host.manifest.started != host.plan.started
    await _service(host, "restart" if is_trying else "start")


async def _restart(host: RemoteHost, _step: Step) -> None:
    await _service(host, "restart")


async def _service(host: RemoteHost, action: str) -> None:
    is_system = host.plan.layout.is_system
    more = {"ACTION": action, "LIMIT_S": str(START_S)}
    await host.script("service", sudo=is_system, limit_s=START_S + 30.0, **more)
    await host.remember(replace(host.manifest, started=host.plan.started, runtime=host.source.runtime))


async def _tidy(host: RemoteHost, _step: Step) -> None:
    await host.script("tidy")


async def _fleet(host: RemoteHost, _step: Step) -> None:
    """Serve the fleet; its file counts as served when the head's own command says so."""
    layout = host.plan.layout
    draft = f"{layout.software}/fleet.draft.yaml"
    await host.ssh.put(draft, host.fleet.encode())
    up = f"{layout.launcher} up {draft} --detach --timeout {FLEET_S} </dev/null && mv -T {draft} {layout.fleet}"
    host.ssh.require(await host.ssh.run(up, limit_s=FLEET_S + 200.0), "the fleet is not up")


ACTIONS: Final[Mapping[Kind, Callable[[RemoteHost, Step], Awaitable[None]]]] = {
    Kind.FOLDERS: _folders,
    Kind.UV: _uv,
    Kind.RELEASE: _release,
    Kind.LAUNCHER: _launcher,
    Kind.SWITCH: _switch,
    Kind.ENGINE: _engine,
    Kind.TOKEN: _token,
    Kind.LINGER: _linger,
    Kind.UNIT: _unit,
    Kind.START: _start,
    Kind.RESTART: _restart,
    Kind.TIDY: _tidy,
    Kind.FLEET: _fleet,
}
