"""Facts of hosts as a probe finds them, and a hosts file for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from longboat.hosts.plan.facts import Disk, HostFacts, Manifest
from longboat.hosts.plan.layout import layout_of
from longboat.hosts.plan.steps import Kind, plan_hosts, sha256
from longboat.hosts.plan.wanted import Wanted, WantedEngine
from longboat.spec.files.hosts_file import HostsFile, load_hosts_file

TEXT = """
hosts: [one, two]
user: deploy
sudo: true
install: {wheel: dist/longboat-0.1.0-cp311-cp311-linux_x86_64.whl}
"""
ENGINE = WantedEngine(text="vllm", kind="vllm", version="0.32.0", free_bytes={"cpu": 5 * 10**9, "cuda": 20 * 10**9})
WANTED = Wanted(release="aaaa", version="0.1.0", python="3.11", uv="uv-digest", token="token-digest")


def hosts_file(text: str = TEXT) -> HostsFile:
    return load_hosts_file(text, "hosts.yaml")


def bare(number: int = 1, **changes: Any) -> HostFacts:
    """A host with nothing of Longboat on it."""
    disk = Disk(free_bytes=100 * 10**9, mount="/")
    facts = HostFacts(
        user="deploy",
        uid=1000,
        home="/users/deploy",
        machine="x86_64",
        libc="2.36",
        pythons=frozenset(("3.11",)),
        software=disk,
        data=disk,
        cards=(("lo", "127.0.0.1", 8), ("eth0", f"10.0.0.{number}", 24)),
        sudo=True,
        systemd="252",
        user_manager=True,
        may_linger=True,
    )
    return replace(facts, **changes)


def two(**changes: Any) -> dict[str, HostFacts]:
    return {"one": bare(1, **changes), "two": bare(2, **changes)}


def after(file: HostsFile, facts: dict[str, HostFacts], wanted: Wanted) -> dict[str, HostFacts]:
    """What a probe finds when every step of the plan was taken."""
    found = {}
    for plan in plan_hosts(file, facts, wanted):
        layout = layout_of(file, plan.host, plan.facts)
        is_fleet_here = wanted.fleet if plan.host.role == "head" else ""
        digests = {"uv": wanted.uv, "token": wanted.token, "fleet": is_fleet_here}
        digests |= {"unit": sha256(plan.unit), "launcher": sha256(plan.launcher)}
        found[plan.host.host] = replace(
            plan.facts,
            manifest=Manifest(
                release=wanted.release, version=wanted.version, unit_file=layout.unit_file, started=plan.started
            ),
            releases=frozenset((wanted.release,)),
            current=wanted.release,
            digests=digests,
            active="active",
            enabled=True,
            lingers=plan.facts.lingers or plan.has(Kind.LINGER),
            engines=frozenset(item.environment(has_driver=bool(plan.facts.driver)) for item in wanted.engines),
        )
    return found
