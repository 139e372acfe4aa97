"""API keys: how a key is made, how it is stored, and which tenant a presented key belongs to."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import string
from collections.abc import Mapping

from longboat.core.policy import ANONYMOUS, AdminCredential, KeyRecord, Policy, TenantPolicy

__all__ = ("MAX_KEY_DAYS", "KeyRing", "digest_of", "new_admin_key", "new_key", "presented_key")

KEY_PREFIX = "lb"
ADMIN_PREFIX = "lba"
MAX_KEY_DAYS = 36_500
"""The longest that a key which expires may last; a tool that shows dates knows none beyond some later year."""
_LETTERS = string.ascii_letters + string.digits
_ID_CHARS = 10
_SECRET_CHARS = 40  # of 62 letters: 238 bits, so that one plain SHA-256 is enough to store it by


def new_key(tenant: str, *, now_s: float, expires_s: float | None = None, note: str = "") -> tuple[str, KeyRecord]:
    """Make a key, ``lb-<id>-<secret>``, to be shown once, and the record to keep of it.

    now_s, expires_s: Unix seconds; expires_s None: never
    """
    key_id = _random(_ID_CHARS)
    key = f"{KEY_PREFIX}-{key_id}-{_random(_SECRET_CHARS)}"
    record = KeyRecord(
        key_id=key_id, tenant=tenant, sha256=digest_of(key), created_s=now_s, expires_s=expires_s, note=note
    )
    return key, record


def new_admin_key(name: str, role: str) -> tuple[str, AdminCredential]:
    """Make a key for the admin API, ``lba-<id>-<secret>``, to be shown once, and the record to keep of it."""
    key = f"{ADMIN_PREFIX}-{_random(_ID_CHARS)}-{_random(_SECRET_CHARS)}"
    return key, AdminCredential(name=name, role=role, sha256=digest_of(key))


def digest_of(key: str) -> str:
    """Return the hex SHA-256 by which a key is stored."""
    return hashlib.sha256(key.encode()).hexdigest()


def presented_key(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the key that came with a request: a bearer token, or as Anthropic's and Azure's clients send it.

    headers: by lower-case name
    """
    scheme, _, key = headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return (headers.get(b"x-api-key") or headers.get(b"api-key") or b"").strip()


class KeyRing:
    """The keys of one policy. A new policy gets a new ring.

    Keys are found by their digest in a dict. The time of a look-up can only reveal something of a digest, and a key
    cannot be chosen by its digest.
    """

    __slots__ = ("_admins", "_by_digest", "anonymous", "asks")

    def __init__(self, policy: Policy) -> None:
        tenants = {tenant.name: tenant for tenant in policy.tenants}
        # whether requests need a key
        self.asks = policy.auth != "none"
        # the tenant of every request where no key is needed
        self.anonymous = tenants.get(ANONYMOUS) or TenantPolicy(name=ANONYMOUS)
        self._by_digest = {
            record.sha256: (tenants[record.tenant], record.expires_s)
            for record in policy.keys
            if record.tenant in tenants
        }
        self._admins = {admin.sha256: admin for admin in policy.admins}

    def tenant_of(self, presented: bytes, now_s: float) -> TenantPolicy | None:
        """Return the key's tenant; None where the key is unknown, revoked or expired. Without keys, the anonymous one.

        now_s: Unix seconds
        """
        if not self.asks:
            return self.anonymous
        found = self._by_digest.get(hashlib.sha256(presented).hexdigest())
        if found is None or (found[1] is not None and now_s >= found[1]):
            return None
        return found[0]

    def good_until_s(self, presented: bytes) -> float:
        """Return the Unix time at which a good key expires; infinity where it never does."""
        found = self._by_digest.get(hashlib.sha256(presented).hexdigest())
        return math.inf if found is None or found[1] is None else found[1]

    def has_expired(self, presented: bytes, now_s: float) -> bool:
        """Tell an expired key from an unknown one, for the error message."""
        found = self._by_digest.get(hashlib.sha256(presented).hexdigest())
        return found is not None and found[1] is not None and now_s >= found[1]

    def record_of(self, presented: bytes, policy: Policy) -> KeyRecord | None:
        """Return the record of a tenant's key in ``policy``, or None."""
        digest = hashlib.sha256(presented).hexdigest()
        return next((record for record in policy.keys if hmac.compare_digest(record.sha256, digest)), None)

    def admin_of(self, presented: bytes) -> AdminCredential | None:
        """Return the admin with this key, or None."""
        return self._admins.get(hashlib.sha256(presented).hexdigest())


def _random(num_chars: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(num_chars))
