"""A Ray cluster's token: where Ray keeps it, whether a cluster requires one, and whether it accepts a given one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from longboat.core.errors import ClusterError

__all__ = ("TOKEN_VARIABLES", "cluster_token", "default_token_file", "find_token", "gcs_refuses", "token_mode")

TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables that tell Ray about the token."""

PROBE_S = 5.0
METHOD = "/ray.rpc.NodeInfoGcsService/GetClusterId"
HINT = (
    "copy the head's token file to ~/.ray/auth_token, or name it in RAY_AUTH_TOKEN_PATH; "
    "longboat node start --join ADDRESS --token-file FILE joins with it"
)

Refuses = Callable[[str, str], bool]
"""(HOST:PORT, token) → whether the cluster there refuses the token; the empty token is none."""


def default_token_file(home: Path) -> Path:
    """Return the file in which Ray keeps the token where no variable names another one."""
    return home / ".ray" / "auth_token"


def find_token(env: Mapping[str, str], home: Path) -> str:
    """Return the token that Ray would use: of the variable, of the file that is named, of its own file; else empty.

    Raises ClusterError where a file cannot be read.
    """
    if token := env.get("RAY_AUTH_TOKEN", "").strip():
        return token
    named = env.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named).expanduser() if named else default_token_file(home)
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"the cluster's token in {path} cannot be read: {error}", hint=HINT) from None


def cluster_token(env: Mapping[str, str], home: Path) -> str:
    """Return the token with which to speak to the cluster; empty where ``env`` does not turn tokens on."""
    is_on = env.get("RAY_AUTH_TOKEN") or env.get("RAY_AUTH_MODE") == "token"
    return find_token(env, home) if is_on else ""


def token_mode(env: Mapping[str, str], home: Path, refuses: Refuses) -> dict[str, str]:
    """Return the variables with which Ray connects to the cluster at RAY_ADDRESS: with a token where it asks for one.

    Raises ClusterError where the cluster asks for a token and there is none, or it takes another.
    """
    address = env["RAY_ADDRESS"]
    if not refuses(address, ""):
        return {}
    if env.get("RAY_AUTH_MODE", "token") != "token":
        what = f"the cluster at {address} asks for a token, and RAY_AUTH_MODE={env['RAY_AUTH_MODE']} sends none"
        raise ClusterError(what, hint="unset RAY_AUTH_MODE")
    if not (token := find_token(env, home)):
        raise ClusterError(f"the cluster at {address} asks for a token, and none was found", hint=HINT)
    if refuses(address, token):
        raise ClusterError(f"the cluster at {address} asks for another token than the one that was found", hint=HINT)
    return {"RAY_AUTH_MODE": "token"}


def gcs_refuses(address: str, token: str) -> bool:
    """Ask Ray's GCS at ``HOST:PORT``. Other answers than a refusal of the token are for Ray to judge."""
    try:
        import grpc
    except ImportError:
        return False
    sent = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(METHOD)(b"", timeout=PROBE_S, metadata=sent)
        except grpc.RpcError as error:
            return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False
