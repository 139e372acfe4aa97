"""What all parts of the file share: strict frozen sections, and how a value is refused."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from longboat.core.sizes import canonical_size, size_bytes

__all__ = ("LATER", "MISTAKE", "Section", "absolute_file", "checked_size", "host_name", "is_loopback", "mistake")

MISTAKE: Final = "longboat_mistake"
LATER: Final = "longboat_later"

HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
UNUSABLE_IN_PATHS = re.compile("[\0-\x1f\x7f\ud800-\udfff]")


class Section(BaseModel):
    """Base of every part of the file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        populate_by_name=True,
    )


def mistake(what: str, hint: str, *, later: bool = False) -> PydanticCustomError:
    """Return the refusal of a value: what is wrong, and the nearest thing that works. later: a later version has it."""
    return PydanticCustomError(LATER if later else MISTAKE, "{what}", {"what": what, "hint": hint})


def absolute_file(value: str) -> str:
    """Check that the value is a file's whole path. Raises the refusal of anything else."""
    if not value.startswith("/") or value.endswith("/"):
        raise mistake(f"{value!r} is not the absolute path of a file", "write it whole: /etc/longboat/file.pem")
    if UNUSABLE_IN_PATHS.search(value):
        raise mistake(f"{value!r} has a character that a path must not have", "give the file another name")
    return value


def checked_size(value: str, example: str) -> str:
    """Return an amount of memory in its shortest form. Raises the refusal of anything else."""
    try:
        return canonical_size(size_bytes(value))
    except ValueError as error:
        raise mistake(str(error), f'write it like "{example}" (B, KB, KiB, MB, MiB, GB, GiB, TB, TiB)') from None


def host_name(value: str) -> str:
    """Check that the value is an IP address or a host's name. Raises the refusal of anything else."""
    if not HOST_NAME.fullmatch(value) and not _is_address(value):
        raise mistake(f"{value!r} is neither an IP address nor a host name", "write 127.0.0.1 or 0.0.0.0")
    return value


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches the host."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(value: str) -> bool:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True
