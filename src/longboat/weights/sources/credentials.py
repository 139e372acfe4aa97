"""Keys of storage where the client library does not look for them by itself: ~/.aws, ~/.netrc and the hub's token."""

from __future__ import annotations

import base64
import configparser
import netrc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longboat.core.errors import UserInputError

__all__ = ("aws_environment", "aws_profile", "hub_headers", "netrc_headers")

_BY_OTHER_MEANS = ("role_arn", "sso_session", "sso_start_url", "credential_process")
_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}

_VARIABLES = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_DEFAULT_REGION": "region",
    "AWS_REGION": "region",
    "AWS_ENDPOINT_URL": "endpoint",
    "AWS_ENDPOINT_URL_S3": "endpoint",
}


def aws_environment(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of S3 in the environment; later variables of the table win."""
    return {ours: env[name] for name, ours in _VARIABLES.items() if env.get(name)}


def aws_profile(env: Mapping[str, str], home: Path) -> dict[str, Any]:
    """Return the settings of AWS_PROFILE in ~/.aws; nothing where the environment has a key, or there is no profile.

    Raises UserInputError where the profile needs boto3 and boto3 is not installed, or where it does not exist.
    """
    if env.get("AWS_ACCESS_KEY_ID"):
        return {}
    name = env.get("AWS_PROFILE", "default")
    values = _profile(name, env, home)
    if not values and "AWS_PROFILE" in env:
        raise UserInputError(f"~/.aws has no profile {name!r}", hint="unset AWS_PROFILE, or run aws configure")
    if any(key in values for key in _BY_OTHER_MEANS) and "aws_access_key_id" not in values:
        return _by_boto3(name)
    return {ours: values[theirs] for theirs, ours in _KEYS.items() if theirs in values}


def _profile(name: str, env: Mapping[str, str], home: Path) -> dict[str, str]:
    keys = Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    config = Path(env.get("AWS_CONFIG_FILE") or home / ".aws" / "config")
    section = name if name == "default" else f"profile {name}"
    return {**_section(config, section), **_section(keys, name)}


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
        return dict(parser.items(name)) if parser.has_section(name) else {}
    except (configparser.Error, UnicodeDecodeError):  # its text may be in the error, and a key in the text
        raise UserInputError(f"{path} cannot be read as AWS's settings", hint="run aws configure") from None


def _by_boto3(name: str) -> dict[str, Any]:
    try:
        from boto3 import Session  # type: ignore[import-not-found,unused-ignore]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise UserInputError(
            f"the AWS profile {name!r} gets its keys by a role or by SSO, and boto3 is not installed",
            hint="pip install boto3 on every node, or set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN",
        ) from None
    return {"credential_provider": Boto3CredentialProvider(Session(profile_name=name))}


def netrc_headers(host: str, home: Path) -> dict[str, str]:
    """Return the header with the name and password that ~/.netrc has for a host; nothing where it has none."""
    try:
        found = netrc.netrc(str(home / ".netrc")).authenticators(host)
    except (OSError, netrc.NetrcParseError):
        return {}
    if found is None:
        return {}
    text = base64.b64encode(f"{found[0]}:{found[2]}".encode()).decode()
    return {"Authorization": f"Basic {text}"}


def hub_headers(env: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return the header with the hub's token; nothing where there is none.

    Raises UserInputError where a header cannot hold the token. A secret that was mounted may end with a line break.
    """
    token = env.get("HF_TOKEN", "").strip()
    if not token:
        token = next(filter(None, map(_token_in, _hub_folders(env, home))), "")
    if not (token.isascii() and token.isprintable()):
        raise UserInputError("the hub's token has a character that no token has", hint="set HF_TOKEN, or hf auth login")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _hub_folders(env: Mapping[str, str], home: Path) -> list[Path]:
    """Return where ``hf auth login`` may have put its token: a unit's own folder of caches is not that of a login."""
    if folder := env.get("HF_HOME"):
        return [Path(folder)]
    caches = [Path(cache)] if (cache := env.get("XDG_CACHE_HOME")) else []
    return [folder / "huggingface" for folder in (*caches, home / ".cache")]


def _token_in(folder: Path) -> str:
    try:
        return (folder / "token").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
