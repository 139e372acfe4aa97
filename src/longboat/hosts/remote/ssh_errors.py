"""What the ssh client's own complaint means, and what to do about it. Pure."""

from __future__ import annotations

import re

from longboat.core.errors import ClusterError

__all__ = ("SilentHostError", "ssh_error")

BROKE = ("the connection broke", "when the host is up again, run the same command: it continues")
UNREACHED = ("it cannot be reached", "check that it is up, and the network between")
CAUSES = (
    (
        r"IDENTIFICATION HAS CHANGED|Host key for .* has changed",
        "its host key is not the known one",
        "if the host was installed again, forget the old key: ssh-keygen -R {host}",
    ),
    (
        r"Host key verification failed|authenticity of host|No .* host key is known",
        "its host key is not known here",
        "compare its fingerprint and accept it once: ssh {host}",
    ),
    (r"Permission denied", "it accepts none of your keys", "try ssh {host}; ssh-copy-id puts your key there"),
    (r"Too many authentication failures", "it refuses after too many keys", "set IdentitiesOnly for it in ssh config"),
    (r"Could not resolve hostname", "its name is not known", "write its address, or a Host of your ssh config"),
    (r"Connection refused", "nothing answers on its SSH port", "start sshd there, or write port:"),
    (
        r"Connection timed out|Operation timed out|No route to host|Network is unreachable",
        *UNREACHED,
    ),
    (r"not responding|Broken pipe|closed by remote host|Connection reset|Connection to .* closed", *BROKE),
)  # fmt: skip


class SilentHostError(ClusterError):
    """A host that did not answer, or no longer: it may be down, or only busy."""


def ssh_error(host: str, complaint: str) -> ClusterError:
    """Return the error for what ssh printed before it failed."""
    for pattern, what, hint in CAUSES:
        if re.search(pattern, complaint):
            kind = SilentHostError if (what, hint) in (BROKE, UNREACHED) else ClusterError
            return kind(f"{host}: {what}", hint=hint.format(host=host))
    lines = [line for line in complaint.strip().splitlines() if line.strip()]
    if not lines:  # a shared connection that breaks ends without a word
        return SilentHostError(f"{host}: {BROKE[0]}", hint=BROKE[1])
    return ClusterError(f"{host}: ssh failed: {lines[-1]}", hint=f"try ssh {host}")
