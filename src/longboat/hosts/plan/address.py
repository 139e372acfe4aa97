"""Which address each host has in the cluster: what the file says, else that of the cluster's card or network."""

from __future__ import annotations

import ipaddress

from longboat.hosts.plan.facts import HostFacts
from longboat.spec.files.hosts_file import HostSection, HostsFile

__all__ = ("address_of", "why_no_address")


def address_of(file: HostsFile, host: HostSection, facts: HostFacts) -> str:
    """Return the host's address in the cluster; empty where the facts do not settle it."""
    if host.address:
        return host.address if any(host.address == address for _, address, _ in facts.cards) else ""
    found = _candidates(file, facts)
    if len(found) > 1 and (told := [address for address in found if address == host.host]):
        return told[0]
    return found[0] if len(found) == 1 else ""


def why_no_address(file: HostsFile, host: HostSection, facts: HostFacts) -> tuple[str, str]:
    """Return what is wrong and what to do, where ``address_of`` found none."""
    listed = ", ".join(f"{address} ({name})" for name, address, _ in facts.cards if not _is_loopback(address)) or "none"
    if host.address:
        return f"it has no address {host.address}; its addresses: {listed}", "write one of its addresses"
    if file.card and not _candidates(file, facts):
        return f"no address belongs to card or network {file.card!r}; its addresses: {listed}", "write another card:"
    return (
        f"it has several addresses: {listed}",
        "write card: with the network of the cluster, or address: for the host",
    )


def _candidates(file: HostsFile, facts: HostFacts) -> list[str]:
    cards = [(name, address) for name, address, _ in facts.cards if not _is_loopback(address)]
    if not file.card:
        usual = [address for name, address in cards if not name.startswith(("docker", "virbr", "br-", "cni"))]
        return usual or [address for _, address in cards]
    try:
        network = ipaddress.ip_network(file.card, strict=False)
    except ValueError:
        return [address for name, address in cards if name == file.card]
    return [address for _, address in cards if ipaddress.ip_address(address) in network]


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
