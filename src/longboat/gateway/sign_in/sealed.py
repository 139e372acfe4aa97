"""Text that only this node's gateway can read and make: AES-GCM under keys made from the control token."""

from __future__ import annotations

import base64
import binascii
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ("Seal",)

_NONCE_BYTES = 12


class Seal:
    """Seals documents for one purpose."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._cipher = AESGCM(hmac.digest(secret, b"longboat sign-in " + purpose.encode(), "sha256"))

    def close(self, document: bytes) -> str:
        """Return the document as text that no one else reads or changes."""
        nonce = os.urandom(_NONCE_BYTES)
        return base64.urlsafe_b64encode(nonce + self._cipher.encrypt(nonce, document, None)).decode()

    def open(self, text: str) -> bytes | None:
        """Return the document; None where another key made the text, or it was changed."""
        try:
            data = base64.b64decode(text, altchars=b"-_", validate=True)
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None)
        except (binascii.Error, ValueError, InvalidTag):
            return None
