"""Opens storage of each kind with the keys of this node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longboat.core.errors import UserInputError
from longboat.weights.sources.credentials import aws_environment, aws_profile, hub_headers, netrc_headers
from longboat.weights.sources.hub import hub_address
from longboat.weights.sources.location import Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ("StorageOptions", "open_store")

CONNECT_S = 5.0
RETRY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageOptions:
    """How storage is reached. It holds no secrets: those are in the environment and in files of the node."""

    endpoint: str = ""  # of an S3 server; empty: the environment's, else AWS
    region: str = ""  # of S3; empty: the environment's, else us-east-1
    stall_s: float = 20.0  # a request that brings nothing for this long is given up
    request_s: float = 1800.0  # the longest for one try of a request
    retries: int = 3  # of one request, by the client itself


def open_store(
    where: Location, source: str, options: StorageOptions, env: Mapping[str, str], home: Path
) -> ObjectStore:
    """Open the store of a source. Raises UserInputError where its settings cannot work."""
    try:
        if where.scheme in ("gs", "az", "s3"):
            return _bucket(where, options, env, home)
        if where.scheme == "file":
            return _folder(where, source)
        return _http(where, options, env, home)
    except UserInputError:
        raise
    except Exception as error:  # the message may quote a setting
        raise UserInputError(
            f"{source} cannot be opened: {type(error).__name__}",
            hint="check weights.endpoint, and the environment's settings for this storage",
        ) from None


def _folder(where: Location, source: str) -> ObjectStore:
    from obstore.store import LocalStore

    folder = Path(f"/{where.prefix}")
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist on this machine"
        raise UserInputError(f"{source}: {folder} {what}", hint="check the path, and that its disk is mounted")
    return LocalStore(prefix=folder)


def _bucket(where: Location, options: StorageOptions, env: Mapping[str, str], home: Path) -> ObjectStore:
    from obstore.store import AzureStore, GCSStore, S3Store

    common: dict[str, Any] = {"prefix": where.prefix or None, **_client(options, {})}
    if where.scheme == "gs":
        return GCSStore(where.container, **common)
    if where.scheme == "az":
        return AzureStore(where.container, **common)
    config = {"region": "us-east-1", **aws_profile(env, home), **aws_environment(env)}
    config |= {name: value for name in ("endpoint", "region") if (value := getattr(options, name))}
    return S3Store(where.container, virtual_hosted_style_request=not config.get("endpoint"), **common, **config)


def _http(where: Location, options: StorageOptions, env: Mapping[str, str], home: Path) -> ObjectStore:
    from obstore.store import HTTPStore

    if where.scheme == "hf":
        url = f"{hub_address(env)}/{where.container}/resolve/{where.revision}"
        return HTTPStore(url, **_client(options, hub_headers(env, home)))
    headers = netrc_headers(where.container.partition(":")[0], home)
    return HTTPStore(f"{where.scheme}://{where.container}/{where.prefix}", **_client(options, headers))


def _client(options: StorageOptions, headers: dict[str, str]) -> dict[str, Any]:
    client: dict[str, Any] = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=min(options.stall_s, CONNECT_S)),
        "read_timeout": timedelta(seconds=options.stall_s),
        "timeout": timedelta(seconds=options.request_s),
    }
    retry = {"max_retries": options.retries, "retry_timeout": timedelta(seconds=RETRY_S)}
    return {"client_options": {**client, **({"default_headers": headers} if headers else {})}, "retry_config": retry}
