"""The JSON document by which a policy is pushed to a gateway."""

from __future__ import annotations

import hashlib

import msgspec

from longboat.core.errors import UserInputError
from longboat.core.policy import Policy

__all__ = ("decode_policy", "encode_policy", "policy_digest")

_DECODER = msgspec.json.Decoder(Policy)


def encode_policy(policy: Policy) -> bytes:
    """The document that the control socket takes. Equal policies give equal bytes. It holds secrets."""
    return msgspec.json.encode(policy, order="deterministic")


def decode_policy(document: bytes) -> Policy:
    """:raises UserInputError: the document is not what :func:`encode_policy` writes."""
    try:
        return _DECODER.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserInputError(f"the policy cannot be read: {error}", hint="send what encode_policy writes") from error


def policy_digest(document: bytes) -> str:
    """By which a pusher knows whether a gateway has this document."""
    return hashlib.sha256(document).hexdigest()
