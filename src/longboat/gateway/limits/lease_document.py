"""The documents that a parent and its workers exchange about leases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from longboat.core.errors import UserInputError
from longboat.routing.capacity.quota_leases import Claim, Share

__all__ = ("decode_claims", "decode_shares", "encode_shares")


class _Shares(msgspec.Struct, frozen=True):
    number: int = 0
    shares: dict[str, Share] = {}


_DECODER = msgspec.json.Decoder(_Shares)


def encode_shares(number: int, shares: Mapping[str, Share]) -> bytes:
    """Write new shares by tenant. number: rises with each message, so a late message cannot undo a newer one."""
    return msgspec.json.encode(_Shares(number, dict(shares)))


def decode_shares(document: bytes) -> tuple[int, dict[str, Share]]:
    """Read what ``encode_shares`` wrote. Raise UserInputError where it is something else."""
    try:
        message = _DECODER.decode(document)
    except msgspec.DecodeError as error:
        raise UserInputError(f"the leases cannot be read: {error}", hint="send a number and shares as JSON") from None
    return message.number, message.shares


def decode_claims(answer: Mapping[str, Any]) -> dict[str, Claim]:
    """Read a worker's reply: its claims by tenant."""
    return msgspec.convert(answer, dict[str, Claim])
