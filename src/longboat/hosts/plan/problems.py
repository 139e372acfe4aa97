"""What keeps a host from becoming a node, found before anything is changed on any host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from longboat.core.errors import Problem, UserInputError
from longboat.hosts.plan.address import address_of, why_no_address
from longboat.hosts.plan.facts import HostFacts
from longboat.hosts.plan.layout import UNIT, layout_of, wants_sudo
from longboat.hosts.plan.wanted import Wanted
from longboat.spec.files.hosts_file import HostSection, HostsFile, nested_folders

__all__ = ("HostsRefusedError", "cluster_problems", "host_problems")

ALL = "0.0.0.0"
MIN_LIBC = (2, 34)
MIN_SYSTEMD = 240
GB = 1e9


class HostsRefusedError(UserInputError):
    """Hosts on which nothing can be done as they are; nothing was changed on any host."""

    exit_code = 3

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        message = str(first) if len(problems) == 1 else f"{len(problems)} problems; nothing was changed on any host"
        super().__init__(message, hint=first.hint, problems=tuple(problems))


def cluster_problems(file: HostsFile, facts: Mapping[str, HostFacts], wanted: Wanted) -> list[Problem]:
    """Return every problem of every host. facts: host → what its probe found; hosts without are left out"""
    return [
        Problem(where=f"hosts[{index}] ({host.host})", what=what, hint=hint)
        for index, host in enumerate(file.hosts)
        if host.host in facts
        for what, hint in host_problems(file, host, facts[host.host], wanted)
    ]


def host_problems(file: HostsFile, host: HostSection, facts: HostFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with one host, and what to do about it."""
    yield from _system(facts, wanted)
    yield from _rights(file, host, facts)
    yield from _python(facts, wanted)
    yield from _disk(file, facts, wanted)
    yield from _ports(file, host, facts, wanted)
    yield from _leftovers(file, host, facts)
    yield from _runtime(file, host, facts, wanted)
    if abs(facts.clock_ahead_s) > wanted.max_clock_s:
        side = "ahead of" if facts.clock_ahead_s > 0 else "behind"
        what = (
            f"its clock is {abs(facts.clock_ahead_s):.0f} s {side} this machine's; at most {wanted.max_clock_s:.0f} s"
        )
        yield what, "turn on time synchronisation there: timedatectl set-ntp true"
    if host.gpus and facts.num_gpus < host.gpus:
        told = f"NVIDIA's driver shows {facts.num_gpus} GPUs" if facts.driver else "NVIDIA's driver is not loaded"
        yield f"gpus is {host.gpus:g}, and {told}", "install the driver there, or lower gpus"
    if not address_of(file, host, facts):
        yield why_no_address(file, host, facts)


def _system(facts: HostFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    if facts.machine != wanted.machine:
        hint = f"run this command on a machine of its kind, with a wheel for {facts.machine}"
        yield f"it is a {facts.machine}, and the release is for {wanted.machine}", hint
    if not facts.libc or tuple(int(part) for part in facts.libc.split(".")[:2]) < MIN_LIBC:
        yield f"its C library is {facts.libc or 'not glibc'}; glibc 2.34 or newer is needed", "use a newer system"
    if not facts.systemd or int(facts.systemd) < MIN_SYSTEMD:
        told = f"systemd {facts.systemd}" if facts.systemd else "no running systemd"
        yield f"it has {told}; systemd {MIN_SYSTEMD} or newer is needed", "start nodes there by longboat node start"


def _rights(file: HostsFile, host: HostSection, facts: HostFacts) -> Iterator[tuple[str, str]]:
    if wants_sudo(file, host) and facts.uid != 0 and not facts.sudo:
        hint = f"allow it in /etc/sudoers.d (NOPASSWD), or write sudo: false for a unit of user {facts.user}"
        yield f"user {facts.user} may not use sudo without a password", hint
    for folder in facts.closed:
        hint = f"make the folder there once: sudo install -d -o {facts.user} FOLDER, or write another under folders:"
        yield f"user {facts.user} cannot write to {folder}", hint
    if layout_of(file, host, facts).is_system or not facts.systemd:
        return
    if not facts.user_manager:
        hint = "install libpam-systemd and dbus-user-session there, or write sudo: true"
        yield f"the service manager of user {facts.user} does not answer", hint
    if not (facts.lingers or facts.may_linger):
        hint = f"run there once, as root: loginctl enable-linger {facts.user}; or write sudo: true"
        yield f"services of user {facts.user} end with its login, and it may not change that", hint


def _python(facts: HostFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    if not wanted.is_bundle or wanted.brings_python:
        return
    needed = (wanted.python, wanted.engine_python) if wanted.engines else (wanted.python,)
    for python in dict.fromkeys(needed):
        if python not in facts.pythons:
            have = ", ".join(sorted(facts.pythons)) or "none"
            hint = f"install python{python} there, or make the bundle with --with-python"
            yield f"Python {python} is not there (it has: {have}), and the bundle does not bring it", hint


def _runtime(file: HostsFile, host: HostSection, facts: HostFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Refuse restarts one by one where each restarted node would not fit the ones that still run."""
    has = facts.manifest.runtime if facts.manifest else ""
    if len(file.hosts) == 1 or not facts.is_running or not has or wanted.runtime in ("", has):
        return
    stop = "sudo systemctl stop" if layout_of(file, host, facts).is_system else "systemctl --user stop"
    what = f"its node runs with {has}, and the release has {wanted.runtime}: such nodes cannot form a cluster"
    yield what, f"stop the nodes of all hosts, which ends answers under way ({stop} {UNIT}), and run the command again"


def _disk(file: HostsFile, facts: HostFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """Compare the free space with what is left to install: what is installed already needs none."""
    software = 0 if wanted.release in facts.releases else wanted.software_bytes
    has_driver = bool(facts.driver)
    missing = [item for item in wanted.engines if item.environment(has_driver=has_driver) not in facts.engines]
    data = sum(item.free_bytes.get(item.platform(has_driver=has_driver), 0) for item in missing)
    needs = [(file.folders.software, facts.software, software), (file.folders.data, facts.data, data)]
    if facts.software.mount == facts.data.mount:
        needs = [(f"{file.folders.software} and {file.folders.data}", facts.software, software + data)]
    for folder, disk, needed in needs:
        if disk.free_bytes < needed:
            what = f"{folder}: {disk.free_bytes / GB:.1f} GB are free on {disk.mount}; {needed / GB:.1f} GB are needed"
            yield what, "free some space there, or write another folder under folders:"


def _ports(file: HostsFile, host: HostSection, facts: HostFacts, wanted: Wanted) -> Iterator[tuple[str, str]]:
    if facts.is_running:  # they are taken by the node itself
        return
    own = address_of(file, host, facts)
    needed = {**wanted.ports, **({file.port: "the head"} if host.role == "head" else {})}
    for port, part in sorted(needed.items()):
        if taken := sorted(address for address, number in facts.listening if number == port and address in (own, ALL)):
            hint = "end the program there (ss -ltnp shows it), or choose another port"
            yield f"port {port}, which {part} needs, is taken on {taken[0]}", hint


def _leftovers(file: HostsFile, host: HostSection, facts: HostFacts) -> Iterator[tuple[str, str]]:
    if facts.foreign:
        hint = "move them away, or write another folder as folders.software"
        yield f"{facts.foreign} holds files that longboat cluster up did not put there", hint
    layout = layout_of(file, host, facts)
    unit = layout.unit_file
    runs = (layout.run, *(facts.manifest.folders if facts.manifest else ()))
    for told in dict.fromkeys(nested_folders(layout.software, layout.data, run) for run in runs):
        if told:
            yield told, "write folders beside each other under folders:"
    if facts.used_run and (facts.manifest is None or layout.run not in facts.manifest.folders):
        hint = "write a folder that does not exist yet as folders.run, or leave it out"
        yield f"{facts.used_run} holds files of others, and longboat cluster remove would delete it", hint
    if facts.digests.get("unit") and (facts.manifest is None or facts.manifest.unit_file != unit):
        yield f"{unit} was not written by longboat cluster up", "move it away there"
    if facts.manifest is not None and facts.manifest.unit_file not in ("", unit):
        hint = "run longboat cluster remove with the file as it was, then up again"
        yield f"its unit is {facts.manifest.unit_file}; with this sudo: it would be {unit}", hint
