"""The policy in force in one gateway process: keys, routing rules, cache salts."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from ipaddress import ip_network

import msgspec

from longboat.core.errors import UserInputError
from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.limits.keys import KeyRing
from longboat.routing.route_rules import RuleBook

__all__ = ("LivePolicy", "decode_policy", "digest_of_policy")

_DECODER = msgspec.json.Decoder(Policy)


def decode_policy(document: bytes) -> Policy:
    """Read a policy. Raise UserInputError where the document is something else."""
    try:
        return _DECODER.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserInputError(
            f"the policy cannot be read: {error}", hint="send what Policy describes, as JSON"
        ) from None


def digest_of_policy(document: bytes) -> str:
    """Return the digest by which the sender of a policy knows which one is in force."""
    return hashlib.sha256(document).hexdigest()[:16]


class LivePolicy:
    """One policy, prepared for the look-ups of each request. A new policy, or new models, get a new object."""

    __slots__ = ("_salts", "cors_any", "cors_origins", "digest", "keys", "policy", "proxies", "resume", "rules")

    def __init__(self, policy: Policy, models: Sequence[str], digest: str = "") -> None:
        self.policy = policy
        self.resume = policy.resume
        # of the policy's document; empty for the configured policy
        self.digest = digest
        self.keys = KeyRing(policy)
        self.rules = RuleBook(policy, models)
        self.cors_origins = frozenset(origin.encode("latin-1", "replace") for origin in policy.cors.origins)
        self.cors_any = b"*" in self.cors_origins
        self.proxies = tuple(ip_network(network, strict=False) for network in policy.trusted_proxies)
        self._salts: dict[str, str | None] = {}

    def with_models(self, models: Sequence[str]) -> LivePolicy:
        """Return the same policy for a new list of models."""
        return LivePolicy(self.policy, models, self.digest)

    @property
    def is_keyless(self) -> bool:
        """Whether the policy has neither keys nor a provider, so that clients on this machine need none."""
        policy = self.policy
        return not self.keys.asks and not policy.admins and policy.sign_in is None

    def cache_salt(self, tenant: TenantPolicy) -> str | None:
        """Return the salt that keeps a tenant's prefix cache apart; None where there are no tenants."""
        if not self.keys.asks:
            return None
        group = f"group:{tenant.cache_group}" if tenant.cache_group else f"tenant:{tenant.name}"
        salt = self._salts.get(group)
        if salt is None:
            digest = hmac.digest(self.policy.salt.encode(), group.encode(), "sha256")
            salt = self._salts[group] = digest.hex()[:32]
        return salt
