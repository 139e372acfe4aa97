"""The policy in the hand of one gateway process: whose a key is, what names mean, which salt a cache has."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import msgspec

from longboat.core.errors import UserInputError
from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.limits.keys import KeyRing
from longboat.routing.route_rules import RuleBook

__all__ = ("LivePolicy", "decode_policy", "digest_of_policy")

_DECODER = msgspec.json.Decoder(Policy)


def decode_policy(document: bytes) -> Policy:
    """:raises UserInputError: the document is no policy."""
    try:
        return _DECODER.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserInputError(
            f"the policy cannot be read: {error}", hint="send what Policy describes, as JSON"
        ) from None


def digest_of_policy(document: bytes) -> str:
    """By which the sender of policies knows which one is in hand."""
    return hashlib.sha256(document).hexdigest()[:16]


class LivePolicy:
    """One policy, with what is looked up in it for each request. A new policy, or new models, get a new one.

    digest: of the document it came by; empty for the one that a process starts with
    """

    __slots__ = ("_salts", "cors_any", "cors_origins", "digest", "keys", "policy", "rules")

    def __init__(self, policy: Policy, models: Sequence[str], digest: str = "") -> None:
        self.policy = policy
        self.digest = digest
        self.keys = KeyRing(policy)
        self.rules = RuleBook(policy, models)
        self.cors_origins = frozenset(origin.encode("latin-1", "replace") for origin in policy.cors.origins)
        self.cors_any = b"*" in self.cors_origins
        self._salts: dict[str, str | None] = {}

    def with_models(self, models: Sequence[str]) -> LivePolicy:
        """The same policy after the fleet's models changed."""
        return LivePolicy(self.policy, models, self.digest)

    def cache_salt(self, tenant: TenantPolicy) -> str | None:
        """What keeps a tenant's prefix cache apart from all others'; None where there are no tenants."""
        if not self.keys.asks:
            return None
        group = f"group:{tenant.cache_group}" if tenant.cache_group else f"tenant:{tenant.name}"
        salt = self._salts.get(group)
        if salt is None:
            digest = hmac.digest(self.policy.salt.encode(), group.encode(), "sha256")
            salt = self._salts[group] = digest.hex()[:32]
        return salt
