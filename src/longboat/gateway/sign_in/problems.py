"""Why a sign-in or a token gives no rights."""

from __future__ import annotations

__all__ = ("ProviderSilentError", "RefusedError")


class RefusedError(Exception):
    """The provider, or a check here, refuses a sign-in or a token.

    code: a short word for the page and for programs; the message never holds a token, a code or a secret
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ProviderSilentError(Exception):
    """The provider cannot be reached, or its answer cannot be used: another try may help."""
