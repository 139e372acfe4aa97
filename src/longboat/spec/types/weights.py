"""The section ``weights``: the storage that models come from, and the disks that keep them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from longboat.core.sizes import size_bytes
from longboat.spec.types.section import Section, address_parts, checked_size, label_pairs, mistake, with_agreement

__all__ = ("PrewarmSpec", "WeightLimitsSpec", "WeightsSpec")

MAX_PREWARM = 1000
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")


def _endpoint(value: str) -> str:
    parts = address_parts(value, "https://minio.example.com:9000")
    if parts.username is not None or parts.query or parts.fragment:
        raise mistake(
            "the endpoint holds a key or a query",
            "write only its address, and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY on the nodes",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise mistake(f"{value!r} is not the address of an S3 server", "write it like https://minio.example.com:9000")
    return value.rstrip("/")


def _region(value: str) -> str:
    if not _REGION.fullmatch(value):
        raise mistake(f"{value!r} is not a region", "write it like us-east-1")
    return value


def _size(value: str) -> str:
    return checked_size(value, "500GiB")


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise mistake(f"{value!r} is not a node's name", "write a name as longboat status shows it, or labels")
    return value


def _spelled(value: Any) -> Any:
    """Spell the short form of an entry out: a name is a node, a mapping of words is labels."""
    if isinstance(value, str):
        return {"node": value}
    if isinstance(value, dict) and not set(value) & {"node", "labels"}:
        return {"labels": value}
    return value


class WeightLimitsSpec(Section):
    """What the storage may be asked for by all nodes together."""

    requests: int = Field(default=16, ge=1, le=10_000)
    """Requests at the same time."""
    bandwidth: Annotated[str, AfterValidator(_size)] | None = None
    """Bytes in each second, with their unit ("1GB"); null sets no limit."""

    @property
    def bytes_per_s(self) -> int | None:
        """The bandwidth in bytes; None where there is no limit."""
        return size_bytes(self.bandwidth) if self.bandwidth else None


def _node_or_labels(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    if values.get("node") is not None and values.get("labels"):
        yield mistake("node and labels are both given: a node is known by its name", "write one of the two")


class PrewarmSpec(Section):
    """Nodes that fetch all models' weights before a replica needs them: a node's name, or labels."""

    node: Annotated[str, AfterValidator(_host)] | None = None
    """The node's name or address."""
    labels: Annotated[dict[str, str], AfterValidator(label_pairs)] = Field(default_factory=dict, max_length=50)
    """Labels that nodes carry."""

    @model_validator(mode="wrap")
    @classmethod
    def _one_way(cls, values: Any, handler: ModelWrapValidatorHandler[PrewarmSpec]) -> PrewarmSpec:
        return with_agreement(values, handler, cls, _node_or_labels)


class WeightsSpec(Section):
    """Where weights come from, and how nodes keep and share them. Keys are never in the file."""

    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None
    """Address of the S3 server for s3:// sources; null: AWS_ENDPOINT_URL of the nodes, else AWS."""
    region: Annotated[str, AfterValidator(_region)] | None = None
    """Region of s3:// sources; null: that of the nodes' environment, else us-east-1."""
    disk: Annotated[str, AfterValidator(_size)] | None = None
    """Bytes that fetched weights may take on each node, with their unit ("500GiB"); null: what the disk has."""
    limits: WeightLimitsSpec = WeightLimitsSpec()
    """What the storage may be asked for by all nodes together."""
    prewarm: tuple[Annotated[PrewarmSpec, BeforeValidator(_spelled)], ...] = Field(default=(), max_length=MAX_PREWARM)
    """Nodes that fetch the weights of all models before a replica needs them, by name or by labels."""

    @property
    def disk_bytes(self) -> int | None:
        """The disk budget in bytes; None where there is none."""
        return size_bytes(self.disk) if self.disk else None
