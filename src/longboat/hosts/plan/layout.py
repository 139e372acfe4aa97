"""Where things lie on one host: whole paths, from the hosts file and the host's facts."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.hosts.plan.facts import HostFacts
from longboat.spec.files.hosts_file import HostSection, HostsFile

__all__ = ("UNIT", "Layout", "layout_of", "wants_sudo")

UNIT = "longboat-node.service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Whole paths on one host."""

    software: str
    data: str
    run: str
    # File of the unit, and whether it is the system's (or the user's own).
    unit_file: str
    is_system: bool

    @property
    def launcher(self) -> str:
        """The command ``longboat`` of this installation, with its folders set."""
        return f"{self.software}/bin/longboat"

    @property
    def uv(self) -> str:
        return f"{self.software}/bin/uv"

    @property
    def token(self) -> str:
        return f"{self.software}/cluster_token"

    @property
    def fleet(self) -> str:
        return f"{self.software}/fleet.yaml"

    @property
    def manifest(self) -> str:
        return f"{self.software}/manifest.json"

    def release(self, digest: str) -> str:
        """Return the folder of a release: a Python environment."""
        return f"{self.software}/releases/{digest}"

    def parcel(self, digest: str) -> str:
        """Return the folder that holds what a release is installed from."""
        return f"{self.software}/parcels/{digest}"


def wants_sudo(file: HostsFile, host: HostSection) -> bool:
    """Return whether the host's own word, or else the file's, allows sudo."""
    return file.sudo if host.sudo is None else host.sudo


def layout_of(file: HostsFile, host: HostSection, facts: HostFacts) -> Layout:
    """Return the paths on a host. Root needs no sudo for a unit of the system."""

    def whole(path: str) -> str:
        return facts.home.rstrip("/") + path[1:] if path.startswith("~") else path

    software = whole(file.folders.software)
    is_system = wants_sudo(file, host) or facts.uid == 0
    folder = "/etc/systemd/system" if is_system else f"{facts.home.rstrip('/')}/.config/systemd/user"
    return Layout(
        software=software,
        data=whole(file.folders.data),
        run=whole(file.folders.run) or f"{software}/run",
        unit_file=f"{folder}/{UNIT}",
        is_system=is_system,
    )
