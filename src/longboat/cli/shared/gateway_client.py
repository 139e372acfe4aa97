"""The HTTP client by which commands talk to gateways."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence

import httpx

from longboat.core.errors import UserInputError

__all__ = ("CONNECT_TIMEOUT_S", "gateway_client")

CONNECT_TIMEOUT_S = 10.0


def gateway_client(bases: Sequence[str], timeout_s: float) -> httpx.Client:
    """Make a client with the key in LONGBOAT_API_KEY, and the authorities in SSL_CERT_FILE where that is set.

    bases: addresses of the gateways
    Raises UserInputError where the key cannot be part of a header, or SSL_CERT_FILE cannot be read.
    """
    key = os.environ.get("LONGBOAT_API_KEY", "")
    if not (key.isascii() and key.isprintable()):
        what = "LONGBOAT_API_KEY has characters that an HTTP header cannot carry"
        raise UserInputError(what, hint="check the variable's value: a key has ASCII letters, digits and '-'")
    is_tls = any(base.startswith("https") for base in bases)
    verify = _authorities() if is_tls else False
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
    return httpx.Client(headers=headers, verify=verify, timeout=timeout, trust_env=False)


def _authorities() -> ssl.SSLContext:
    file = os.environ.get("SSL_CERT_FILE") or None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:  # also one of OpenSSL, for a file that has no certificate
        what = f"SSL_CERT_FILE: {file} cannot be read as certificates: {error.strerror or error}"
        raise UserInputError(what, hint="name a PEM file with the certificate of the gateway's authority") from None
