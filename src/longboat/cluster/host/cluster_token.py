"""A Ray cluster's token: where Ray keeps it, whether a cluster requires one, and whether it accepts a given one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from longboat.core.errors import ClusterError

__all__ = (
    "REFUSED_HINT",
    "TOKEN_VARIABLES",
    "HeadTroubleError",
    "cluster_token",
    "default_token_file",
    "find_token",
    "gcs_refuses",
    "token_mode",
)

TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables that tell Ray about the token."""

PROBE_S = 15.0
"""A head on a busy machine takes seconds; for one that is stopped, Ray waits without an end. gRPC gives it 20 s."""
METHOD = "/ray.rpc.NodeInfoGcsService/GetClusterId"
HINT = (
    "copy the head's token file to ~/.ray/auth_token, or name it in RAY_AUTH_TOKEN_PATH; "
    "longboat node start --join ADDRESS --token-file FILE joins with it"
)

REFUSED_HINT = (
    "a cluster reads its token when it starts. If the file was changed since, put the former token back, or start the "
    "cluster again: longboat down and longboat up, or longboat node stop and start on each node. Elsewhere, copy the "
    "head's token file to ~/.ray/auth_token, or name it in RAY_AUTH_TOKEN_PATH"
)
SILENT_HINT = (
    "on the head's machine, ps -C gcs_server -o pid,stat shows T for a process that is stopped: kill -CONT PID "
    "continues it; longboat node stop and longboat node start there start the head again"
)


class HeadTroubleError(ClusterError):
    """The head is there, and does not serve this command: it does not come back by itself."""


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
    path = _token_file(env, home)
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"the cluster's token in {path} cannot be read: {error}", hint=HINT) from None


def _token_file(env: Mapping[str, str], home: Path) -> Path:
    named = env.get("RAY_AUTH_TOKEN_PATH")
    return Path(named).expanduser() if named else default_token_file(home)


def _token_place(env: Mapping[str, str], home: Path) -> str:
    return "RAY_AUTH_TOKEN" if env.get("RAY_AUTH_TOKEN", "").strip() else str(_token_file(env, home))


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
        what = f"the cluster at {address} takes another token than the one in {_token_place(env, home)}"
        raise HeadTroubleError(what, hint=REFUSED_HINT)
    return {"RAY_AUTH_MODE": "token"}


def gcs_refuses(address: str, token: str) -> bool:
    """Ask Ray's GCS at ``HOST:PORT``. Other answers than a refusal of the token are for Ray to judge.

    Raises HeadTroubleError where it takes the connection and does not answer.
    """
    try:
        import grpc
    except ImportError:
        return False
    sent = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(METHOD)(b"", timeout=PROBE_S, metadata=sent)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                what = f"the cluster's head at {address} takes connections, and did not answer within {PROBE_S:.0f} s"
                raise HeadTroubleError(what, hint=SILENT_HINT) from None
            return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False
