"""``longboat console``: the address of the console in a browser, and its page where this machine has a browser."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import httpx

from longboat.cli.shared.gateway_choice import gateways_here
from longboat.cli.shared.gateway_client import gateway_client
from longboat.cli.shared.gateway_replies import base_of
from longboat.core.errors import ClusterError

__all__ = ("address_here", "run_console")

_TIMEOUT_S = 5.0
_HOW = "Sign in with the secret of an admin (gateway.admin in the fleet file), or with a tenant's key."
_HOW_WITHOUT_KEYS = "This gateway has no keys: the console opens only in a browser on its own machine."


def run_console(*, url: str | None, in_browser: bool, as_json: bool) -> None:
    """Print the console's address. Raise ClusterError where no gateway serves one."""
    address = f"{base_of(url) if url is not None else _of_fleet()}/console"
    hint = "check the address after --url" if url is not None else "longboat status shows the gateways"
    _check(address, hint)
    session = _session(address)
    if not session:
        raise ClusterError(f"{address} is not the console of a Longboat gateway", hint=hint)
    print(json.dumps({"url": address}) if as_json else address)
    if not as_json:
        print(_how(session))
    if in_browser:
        import webbrowser

        webbrowser.open(address)


def _how(session: dict[str, Any]) -> str:
    """Return how a person signs in at this address."""
    provider = session.get("provider")
    if not provider:
        return _HOW_WITHOUT_KEYS if session.get("keyless") else _HOW
    if provider["here"]:
        return f"Sign in with {provider['name']}, the secret of an admin, or a tenant's key."
    return (
        f"{_HOW}\n{provider['name']} does not send browsers back to this address: to sign in there, "
        f"open {provider['url']}, or add this address to gateway.sign_in.console_urls."
    )


def _of_fleet() -> str:
    """Return the address of the gateway that is nearest to this machine."""
    from longboat.cli.shared.cluster_at_hand import connect_quickly, report_of

    with connect_quickly() as session:
        chosen = gateways_here(report_of(session).gateways)
    if not chosen:
        hint = "run the command on a node of the cluster, or name a gateway with --url"
        raise ClusterError("no gateway can be reached from this machine", hint=hint)
    return address_here(chosen[0].url, chosen[0].node_id)


def address_here(url: str, node_id: str) -> str:
    """Return the loopback address of a gateway without keys on this machine: its console trusts no other client.

    Other gateways keep their URL.
    """
    parts = urlsplit(url)
    loopback = f"{parts.scheme}://127.0.0.1:{parts.port}"
    found = _session(f"{loopback}/console")
    return loopback if found.get("keyless") and found.get("node") == node_id else url


def _session(address: str) -> dict[str, Any]:
    """Return what the console says of itself before anyone signs in; empty where there is none."""
    try:
        with gateway_client([address], _TIMEOUT_S) as client:
            found = client.get(f"{address}/api/session").json()
    except (httpx.HTTPError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _check(address: str, hint: str) -> None:
    try:
        with gateway_client([address], _TIMEOUT_S) as client:
            status = client.get(address).status_code
    except httpx.HTTPError as error:
        raise ClusterError(f"{address} does not reply: {error}", hint=hint) from None
    if status != httpx.codes.OK:
        hint = "check the address after --url; gateways of older versions have no console"
        raise ClusterError(f"{address} replied {status}", hint=hint)
