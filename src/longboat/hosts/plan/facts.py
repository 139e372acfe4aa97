"""Facts of one host: what the probe says about it."""

from __future__ import annotations

import ipaddress
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from longboat.core.errors import ClusterError

__all__ = ("Disk", "HostFacts", "Manifest", "NodeState", "facts_from")

LISTENS_ON_ALL = "0.0.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A file system that a folder lies on."""

    # Free bytes for the user.
    free_bytes: int = 0
    # Where it is mounted; two folders on one disk share its space.
    mount: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What Longboat put on a host, as the host remembers it."""

    # Digest of the release that was installed last.
    release: str = ""
    # Version of that release, for people.
    version: str = ""
    # Unit's file; empty before there is one.
    unit_file: str = ""
    # Whether Longboat turned lingering on for the user.
    lingers: bool = False
    # Folders outside the software's that Longboat made for itself: the run folder.
    folders: tuple[str, ...] = ()
    # Engines that were installed on request.
    engines: tuple[str, ...] = ()
    # Digests of the release, the unit and the token that the node was started with; empty while that is open.
    started: tuple[str, ...] = ()
    # Ray and Python that the node was started with; empty where no run noted them.
    runtime: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The node's own record (node.json)."""

    role: str = ""
    address: str = ""
    phase: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:  # size: one attribute for each fact
    """One host, as the probe found it."""

    user: str
    uid: int
    home: str
    machine: str
    # Version of glibc; empty where the system has another C library.
    libc: str = ""
    # Seconds that the host's clock is ahead of this machine's.
    clock_ahead_s: float = 0.0
    pythons: frozenset[str] = frozenset()
    software: Disk = Disk()
    data: Disk = Disk()
    # Folders that the user cannot write to, among the nearest existing ones.
    closed: tuple[str, ...] = ()
    # (address, port) pairs on which something listens.
    listening: frozenset[tuple[str, int]] = frozenset()
    # (card, address, prefix length) of each IPv4 address.
    cards: tuple[tuple[str, str, int], ...] = ()
    # Whether sudo works without a password; None where the probe did not try.
    sudo: bool | None = None
    # Version of systemd; empty where the host was not started by it.
    systemd: str = ""
    # Whether the user's own service manager answers.
    user_manager: bool = False
    # Whether the user's services run without a login, and whether the user may turn that on.
    lingers: bool = False
    may_linger: bool = False
    # Version of NVIDIA's driver, and the number of its GPUs.
    driver: str = ""
    num_gpus: int = 0
    # What Longboat put there; None where there is nothing of it.
    manifest: Manifest | None = None
    # The software's folder, where it holds files of others.
    foreign: str = ""
    # The run folder, where it lies outside the software's and holds files.
    used_run: str = ""
    # Folders of Longboat that are not there.
    missing: tuple[str, ...] = ()
    current: str = ""
    releases: frozenset[str] = frozenset()
    # SHA-256 of files: uv, launcher, token, fleet, unit; empty where there is none.
    digests: Mapping[str, str] = field(default_factory=dict)
    # systemd's ActiveState of the unit.
    active: str = ""
    enabled: bool = False
    node: NodeState = NodeState()
    engines: frozenset[str] = frozenset()

    @property
    def is_running(self) -> bool:
        """Whether the unit runs or is about to."""
        return self.active in ("active", "activating", "reloading")


def facts_from(text: str, *, began_s: float, ended_s: float) -> HostFacts:
    """Read what the probe printed. began_s, ended_s: this machine's clock around it.

    Raises ClusterError where the probe did not reach its end.
    """
    told: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and value:
            told[key].append(value)
    first = {key: values[0] for key, values in told.items()}
    if "done" not in first:
        raise ClusterError("the probe broke off", hint="look at the host: its shell may print or read at a login")
    return HostFacts(
        user=first["user"],
        uid=int(first["uid"]),
        home=first["home"],
        machine=first.get("machine", ""),
        libc=first.get("libc", ""),
        clock_ahead_s=_outside(float(first["time"]), began_s, ended_s),
        pythons=frozenset(told["python"]),
        software=_disk(first.get("disk_software", "")),
        data=_disk(first.get("disk_data", "")),
        closed=tuple(dict.fromkeys(told["closed"])),
        listening=frozenset(_socket(word) for word in told["listen"]),
        cards=tuple(_card(line) for line in told["card"]),
        sudo={"yes": True, "no": False}.get(first.get("sudo", "")),
        systemd=first.get("systemd", ""),
        user_manager="user_manager" in first,
        lingers="linger" in first,
        may_linger="may_linger" in first,
        driver=first.get("driver", ""),
        num_gpus=int(first.get("cards", "0")),
        manifest=_manifest(first["manifest"]) if "manifest" in first else None,
        foreign=first.get("foreign", ""),
        missing=tuple(told["missing"]),
        used_run=first.get("used_run", ""),
        current=first.get("current", ""),
        releases=frozenset(told["release"]),
        digests={name: first.get(name, "") for name in ("uv", "launcher", "token", "fleet", "unit")},
        active=first.get("active", ""),
        enabled=first.get("enabled", "") == "enabled",
        node=_node(first.get("node", "")),
        engines=frozenset(told["engine"]),
    )


def _outside(time_s: float, began_s: float, ended_s: float) -> float:
    """Return how far a time lies after the end (positive) or before the beginning (negative); 0 between them."""
    return max(time_s - ended_s, 0.0) + min(time_s - began_s, 0.0)


def _disk(text: str) -> Disk:
    free, _, mount = text.partition(" ")
    return Disk(free_bytes=int(free) * 1024, mount=mount) if free.isdecimal() else Disk()


def _socket(word: str) -> tuple[str, int]:
    """Read an address of /proc/net/tcp or tcp6: hexadecimal words of 32 bits, their bytes in the machine's order."""
    digits, _, port = word.partition(":")
    words = (bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8))
    address = ipaddress.ip_address(b"".join(words))
    if isinstance(address, ipaddress.IPv6Address):
        if address.is_unspecified:  # such a socket takes connections of IPv4 too
            return LISTENS_ON_ALL, int(port, 16)
        address = address.ipv4_mapped or address
    return str(address), int(port, 16)


def _card(line: str) -> tuple[str, str, int]:
    name, _, rest = line.partition(" ")
    address, _, length = rest.partition("/")
    return name, address, int(length or 32)


def _manifest(text: str) -> Manifest:
    """Read the manifest; one of another shape counts as an empty one."""
    try:
        found = json.loads(text)
        values = {name: found[name] for name in Manifest.__dataclass_fields__ if name in found}
        tuples = {name: tuple(values.get(name, ())) for name in ("folders", "engines", "started")}
        return Manifest(**{**values, **tuples})
    except (ValueError, TypeError):
        return Manifest()


def _node(text: str) -> NodeState:
    try:
        found = json.loads(text) if text else {}
        return NodeState(**{name: str(found.get(name, "")) for name in NodeState.__dataclass_fields__})
    except (ValueError, AttributeError):
        return NodeState()
