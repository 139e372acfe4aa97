"""Proofs that a request between nodes comes from one that knows the swarm's token. The token itself never travels."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

__all__ = ("HEADER", "answer_proof", "is_proven", "request_proof")

HEADER: Final = "X-Longboat-Proof"
MAX_SKEW_S: Final = 300
"""How far the clocks of two nodes may be apart; a request that was overheard can be repeated for this long."""
PURPOSE = b"longboat weights 1"


def request_proof(token: str, method: str, path: str, body: bytes, at_s: float) -> str:
    """Return the header's value for a request at this time (seconds since 1970)."""
    moment = str(int(at_s))
    return f"{moment}:{_mac(token, method, path, moment, hashlib.sha256(body).hexdigest())}"


def is_proven(token: str, method: str, path: str, body: bytes, value: str, now_s: float) -> bool:
    """Return whether the header's value proves this request."""
    moment, _, _ = value.partition(":")
    if not moment.isdigit() or len(moment) > 12 or abs(int(moment) - now_s) > MAX_SKEW_S:
        return False
    expected = request_proof(token, method, path, body, float(moment))
    return hmac.compare_digest(expected.encode(), value.encode())


def answer_proof(token: str, asked: str, body: bytes) -> str:
    """Return the header's value for an answer. asked: the proof of its request."""
    return _mac(token, "answer", asked, hashlib.sha256(body).hexdigest())


def _mac(token: str, *parts: str) -> str:
    key = hmac.digest(token.encode(), PURPOSE, "sha256")
    return hmac.digest(key, "\n".join(parts).encode(), "sha256").hex()
