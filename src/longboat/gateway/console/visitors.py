"""The people at the console, and what each may see and do: the roles are those of the admin API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from longboat.core.policy import ANONYMOUS, AdminCredential, KeyRecord, TenantPolicy
from longboat.core.sign_in import SignIn
from longboat.gateway.admin.admin_call import ROLES, may_steer
from longboat.gateway.admin.local_clients import is_here
from longboat.gateway.console.sessions import Session, Sessions
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.policy_view import LivePolicy
from longboat.gateway.sign_in.desk import SignInDesk
from longboat.gateway.sign_in.grants import Grant

__all__ = ("Visitor", "credential_of", "leaving", "playing_tenant", "visitor_of")


class _Live(Protocol):
    @property
    def live(self) -> LivePolicy: ...
    @property
    def sign_in(self) -> SignInDesk: ...


@dataclass(frozen=True)
class Visitor:
    """The rights of a person at the console."""

    name: str  # as the page shows it
    rank: int = 0  # the role by its number in ROLES; 0: a tenant
    # whose records may be seen, where there is no role, and in whose name chats run
    tenant: TenantPolicy | None = None
    session: Session | None = None  # None: the gateway has no keys

    @property
    def role(self) -> str:
        return next((name for name, rank in ROLES.items() if rank == self.rank), "tenant")

    @property
    def may_steer(self) -> bool:
        """Whether the person may change something, and not only look."""
        return may_steer(self.rank)

    @property
    def only(self) -> str | None:
        """The tenant whose records may be seen; None sees all."""
        return self.tenant.name if self.tenant is not None and not self.rank else None


async def visitor_of(
    state: _Live, sessions: Sessions, cookie: str, noted: Mapping[bytes, bytes], peer: str, now_s: float
) -> Visitor | None:
    """Return the person that the request comes from; None without a good session. cookie: its value, if it is there

    Raises ProviderSilentError where the session's provider must be asked, and does not answer.
    """
    policy = state.live.policy
    found = sessions.find(cookie, policy, now_s) if cookie else None
    if found is None:
        is_open = state.live.is_keyless and is_here(noted, peer)
        return Visitor("this machine", rank=ROLES["viewer"]) if is_open else None
    session, credential = found
    if isinstance(credential, SignIn):
        grant = await state.sign_in.person(credential, session.id)
        return None if grant is None else _person(state, session, grant)
    if isinstance(credential, AdminCredential):
        rank = ROLES.get(credential.role, 0)
        return Visitor(credential.name, rank=rank, session=session) if rank else None
    tenant = next((tenant for tenant in policy.tenants if tenant.name == credential.tenant), None)
    return Visitor(credential.tenant, tenant=tenant, session=session) if tenant is not None else None


def leaving(state: _Live, sessions: Sessions, cookie: str, now_s: float) -> Visitor | None:
    """Return the owner of a good session without any right: it can be ended while its provider does not answer."""
    found = sessions.find(cookie, state.live.policy, now_s) if cookie else None
    return None if found is None else Visitor("", session=found[0])


def _person(state: _Live, session: Session, grant: Grant) -> Visitor | None:
    """Return the visitor with the rights of a person's groups. Operators choose a tenant, others have theirs."""
    rank = ROLES.get(grant.role, 0)
    named = (tenant for tenant in state.live.policy.tenants if tenant.name == grant.tenant)
    tenant = next(named, None) if rank < ROLES["operator"] else None
    return Visitor(grant.name, rank=rank, tenant=tenant, session=session) if rank or tenant is not None else None


def credential_of(state: _Live, presented: bytes, now_s: float) -> tuple[str, AdminCredential | KeyRecord] | None:
    """Return the kind of a key that a person signs in with, and its record; None where it is not good."""
    keys, policy = state.live.keys, state.live.policy
    admin = keys.admin_of(presented)
    if admin is not None:
        return ("admin", admin) if admin.role in ROLES else None
    if not keys.asks or keys.tenant_of(presented, now_s) is None:
        return None
    record = keys.record_of(presented, policy)
    return None if record is None else ("key", record)


def playing_tenant(state: _Live, visitor: Visitor, wanted: str) -> TenantPolicy | Refusal:
    """Return the tenant in whose name a chat from the playground runs.

    wanted: the tenant that an operator chose; others have no choice
    """
    keys, policy = state.live.keys, state.live.policy
    if visitor.tenant is not None:
        return visitor.tenant
    if not keys.asks:
        return keys.anonymous
    if not visitor.may_steer:
        message = "A viewer sends no requests. Sign in with a tenant's key, or with the secret of an operator."
        return Refusal(status=403, message=message, code="not_allowed")
    found = next((tenant for tenant in policy.tenants if tenant.name == wanted != ANONYMOUS), None)
    if found is None:
        message = f"There is no tenant {wanted[:100]!r}. Choose one in whose name the request runs."
        return Refusal(status=404, message=message, code="tenant_not_found")
    return found
