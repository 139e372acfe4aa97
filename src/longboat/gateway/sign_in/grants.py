"""From a person's claims to a role and a tenant. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from longboat.core.sign_in import SignIn

__all__ = ("Grant", "grant_of", "groups_in", "name_in")

_MAX_GROUPS = 5000
_MAX_NAME = 100
_RANKS = ("", "viewer", "operator")


class Grant(NamedTuple):
    """The rights that a person's groups give."""

    name: str  # as the console shows the person
    role: str  # empty: none
    tenant: str  # empty: none


def groups_in(claims: Mapping[str, Any], claim: str) -> tuple[str, ...] | None:
    """Return the groups in a claim; None where the claim is absent. A claim with one text is one group.

    claim: a name, or a path with dots (``realm_access.roles``) where no claim has that name
    """
    value: Any = claims
    for part in (claim,) if claim in claims else claim.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(group for group in found[:_MAX_GROUPS] if isinstance(group, str))


def grant_of(sign_in: SignIn, name: str, groups: Iterable[str]) -> Grant | None:
    """Return the highest role and the first tenant of these groups; None where they give neither."""
    members = set(groups)
    rights = [entry for entry in sign_in.groups if entry.group in members]
    role = max((entry.role for entry in rights), key=_RANKS.index, default="")
    tenant = next((entry.tenant for entry in rights if entry.tenant), "")
    return Grant(name, role, tenant) if role or tenant else None


def name_in(claims: Mapping[str, Any]) -> str:
    """Return the name by which people know the person, else the provider's own."""
    for claim in ("preferred_username", "email", "name", "sub"):
        value = claims.get(claim)
        if isinstance(value, str) and (name := "".join(char for char in value if char.isprintable()).strip()):
            return name[:_MAX_NAME]
    return "unnamed"
