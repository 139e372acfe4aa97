"""Texts that Longboat writes on a host: the systemd unit and the launcher."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from longboat.hosts.plan.layout import Layout
from longboat.spec.files.hosts_file import HostSection, HostsFile

__all__ = ("launcher_text", "node_words", "unit_text")

MARK = "# Written by longboat cluster up, which replaces it. Own settings: systemctl edit longboat-node"
ALWAYS = {
    "NoNewPrivileges": "yes",
    "LockPersonality": "yes",
    "RestrictRealtime": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallArchitectures": "native",
}
"""Hardening that any service manager can apply."""
SYSTEM = {
    "ProtectSystem": "full",
    "ProtectClock": "yes",
    "ProtectControlGroups": "yes",
    "ProtectHostname": "yes",
    "ProtectKernelLogs": "yes",
    "ProtectKernelModules": "yes",
    "ProtectKernelTunables": "yes",
}
"""Hardening that needs the system's manager. Home folders and /tmp stay: engines and `longboat` share them."""


def unit_text(file: HostsFile, host: HostSection, layout: Layout, *, user: str, address: str, head: str) -> str:
    """Return the unit of a host's node. address: the host's own in the cluster; head: the head's"""
    words = [f"{layout.software}/current/bin/longboat", *node_words(file, host, layout, address=address, head=head)]
    service = {
        "Type": "notify",
        **({"User": user} if layout.is_system else {}),
        "Environment": " ".join(_quoted(f"{name}={value}") for name, value in variables(layout).items()),
        "WorkingDirectory": layout.data,
        "ExecStart": " ".join(_quoted(word) for word in words),
        "Restart": "always",
        "RestartSec": "3",
        "TimeoutStartSec": "600",
        "TimeoutStopSec": "120",
        "KillMode": "mixed",
        "OOMPolicy": "continue",
        "LimitNOFILE": "524288" if layout.is_system else "",
        "LimitMEMLOCK": "infinity" if layout.is_system else "",
        "LimitCORE": "0",
        "TasksMax": "infinity",
        "StandardOutput": "journal",
        "StandardError": "journal",
        "SyslogIdentifier": "longboat-node",
        **ALWAYS,
        **(SYSTEM if layout.is_system else {}),
    }
    online = {"Wants": "network-online.target", "After": "network-online.target"} if layout.is_system else {}
    head_section = {"Description": f"Longboat node ({host.role})", **online, "StartLimitIntervalSec": "0"}
    target = "multi-user.target" if layout.is_system else "default.target"
    return "\n".join(
        (
            MARK,
            *_section("Unit", head_section),
            *_section("Service", service),
            "",
            "[Install]",
            f"WantedBy={target}",
            "",
        )
    )


def node_words(file: HostsFile, host: HostSection, layout: Layout, *, address: str, head: str) -> list[str]:
    """Return the words of ``longboat node start`` on this host. Holds no secret: the token stands in a file."""
    words = ["node", "start", "--block", "--address", address, "--token-file", layout.token]
    if host.role == "head":
        words += ["--head", "--port", str(file.port), "--storage", f"{layout.data}/head"]
    else:
        words += ["--join", f"{head}:{file.port}"]
    words += [word for name, value in sorted(host.labels.items()) for word in ("--label", f"{name}={value}")]
    for flag, number in (("--num-cpus", host.cpus), ("--num-gpus", host.gpus)):
        words += [flag, f"{number:g}"] if number is not None else []
    return words


def variables(layout: Layout) -> dict[str, str]:
    """Return the environment of everything of Longboat on the host; caches of engines lie with the data."""
    return {
        "LONGBOAT_HOME": layout.data,
        "LONGBOAT_RUN": layout.run,
        "TMPDIR": f"{layout.run}/tmp",  # noqa: S108
        "XDG_CACHE_HOME": f"{layout.data}/cache",
        "XDG_CONFIG_HOME": f"{layout.data}/config",
        "PYTHONUNBUFFERED": "1",
    }


def launcher_text(layout: Layout, more: Mapping[str, str]) -> str:
    """Return the script ``bin/longboat``. more: variables that installations on this host need"""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in {**variables(layout), **more}.items()]
    run = f'exec {shlex.quote(layout.software + "/current/bin/longboat")} "$@"'
    return "\n".join(
        ("#!/bin/sh", "# Longboat as longboat cluster up installed it, with its folders.", *lines, run, "")
    )


def _section(name: str, values: Mapping[str, str]) -> list[str]:
    return ["", f"[{name}]", *(f"{key}={value}" for key, value in values.items() if value)]


def _quoted(word: str) -> str:
    """Quote a word for systemd, which reads ``%`` and ``$`` also inside quotes."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(letter in ' "\\;' for letter in word) else escaped
