"""The client's secret at the provider, read where it is used: in the gateway's own process."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from longboat.core.sign_in import SignIn
from longboat.gateway.sign_in.problems import ProviderSilentError

__all__ = ("read_client_secret", "why_unready")

_MAX_BYTES = 4096


def read_client_secret(sign_in: SignIn) -> str:
    """Return the secret; empty where the client has none. Raise ProviderSilentError where it cannot be read."""
    if sign_in.client_secret_file is not None:
        place, secret = sign_in.client_secret_file, _file(sign_in.client_secret_file)
    elif sign_in.client_secret_env is not None:
        place = f"the environment variable {sign_in.client_secret_env}"
        secret = os.environ.get(sign_in.client_secret_env, "")
    else:
        return ""
    if not (secret := secret.strip()):
        raise ProviderSilentError(f"{place} is empty or not set on this node")
    return secret


def why_unready(file: str | None, variable: str | None) -> str:
    """Return why a gateway on this node could not sign people in; empty where it could.

    file, variable: that hold the client's secret; None: not there
    """
    lacking = [name for name in ("jwt", "cryptography") if importlib.util.find_spec(name) is None]
    if lacking:
        return f"Python packages are missing ({', '.join(lacking)}): pip install 'longboat[oidc]'"
    try:
        read_client_secret(SignIn(issuer="", client_id="", client_secret_file=file, client_secret_env=variable))
    except ProviderSilentError as error:
        return str(error)
    return ""


def _file(path: str) -> str:
    try:
        with Path(path).open("rb") as handle:
            return handle.read(_MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ProviderSilentError(f"{path} cannot be read: {reason}") from None
