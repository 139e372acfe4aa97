"""Sign-in through an OpenID Connect provider: where it is, and what its groups may do here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

__all__ = ("GroupRights", "SignIn")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRights:
    """The rights of a provider's group."""

    group: str
    role: str = ""  # ``viewer`` | ``operator``; empty: no role
    tenant: str = ""  # whose records members may see and in whose name they may chat; empty: no tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """A provider, and this fleet as its client. The client's secret is named here, never held: gateways read it."""

    issuer: str  # exactly as the provider writes it
    client_id: str
    client_secret_env: str | None = None  # environment variable of the gateway
    client_secret_file: str | None = None  # path on the gateway's node
    scopes: tuple[str, ...] = ("openid", "profile")
    groups_claim: str = "groups"  # a claim's name, or a path with dots to it
    audiences: tuple[str, ...] = ()  # that bearer tokens may be for, beside the client itself
    console_urls: tuple[str, ...] = ()  # origins to which the provider may send people back
    groups: tuple[GroupRights, ...] = ()

    @property
    def digest(self) -> str:
        """Name this client of this provider: sessions end when either changes."""
        return hashlib.sha256(f"{self.issuer}\0{self.client_id}".encode()).hexdigest()
