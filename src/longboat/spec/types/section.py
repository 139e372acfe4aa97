"""What all parts of the file share: strict frozen sections, and how a value is refused."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from longboat.core.sizes import canonical_size, size_bytes

__all__ = (
    "LATER",
    "MISTAKE",
    "Section",
    "absolute_file",
    "address_parts",
    "checked_size",
    "host_name",
    "is_loopback",
    "label_pairs",
    "mistake",
    "refuse_all",
    "with_agreement",
)

MISTAKE: Final = "longboat_mistake"
LATER: Final = "longboat_later"

LABEL_KEY = re.compile(
    r"([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
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
    told = {"what": _printable(what), "hint": _printable(hint)}
    return PydanticCustomError(LATER if later else MISTAKE, "{what}", told)


def _printable(text: str) -> str:
    """Return text without what stands for bytes that are not UTF-8: a command's argument may have them."""
    return text.encode(errors="backslashreplace").decode()


SomeSection = TypeVar("SomeSection", bound=Section)


def refuse_all(found: Iterable[PydanticCustomError]) -> None:
    """Raise every refusal of one value at once; nothing where there is none."""
    if lines := [InitErrorDetails(type=one, input=None) for one in found]:
        raise ValidationError.from_exception_data("", lines)


def with_agreement(
    values: Any,
    handler: ModelWrapValidatorHandler[SomeSection],
    kind: type[SomeSection],
    between: Callable[[Mapping[str, Any]], Iterable[PydanticCustomError]],
) -> SomeSection:
    """Return the section that ``values`` describe. Raises what is wrong between them beside what is wrong in each.

    between: gets the values as they are written. A field that does not exist may be meant as any other: nothing is
    said between values then.
    """
    readable = isinstance(values, dict) and values.keys() <= kind.model_fields.keys()
    lines = [InitErrorDetails(type=one, input=values) for one in (between(values) if readable else ())]
    try:
        section = handler(values)
    except ValidationError as error:
        lines += map(_same_error, error.errors(include_url=False))
        raise ValidationError.from_exception_data(error.title, lines) from None
    if lines:
        raise ValidationError.from_exception_data(kind.__name__, lines)
    return section


def _same_error(detail: ErrorDetails) -> InitErrorDetails:
    kind, context = detail["type"], detail.get("ctx", {})
    told = PydanticCustomError(kind, "{what}", context) if kind in (MISTAKE, LATER) else kind
    return InitErrorDetails(type=told, loc=detail["loc"], input=detail["input"], ctx=context)


def absolute_file(value: str) -> str:
    """Check that the value is a file's whole path. Raises the refusal of anything else."""
    if not value.startswith("/") or value.endswith("/"):
        raise mistake(f"{value!r} is not the absolute path of a file", "write it whole: /etc/longboat/file.pem")
    if UNUSABLE_IN_PATHS.search(value):
        raise mistake(f"{value!r} has a character that a path must not have", "give the file another name")
    return value


def address_parts(value: str, example: str) -> SplitResult:
    """Return the parts of an address. The refusal does not repeat it, as it may hold a password."""
    try:
        parts = urlsplit(value)
        _ = parts.port  # raises where it is not a number
    except ValueError:
        raise mistake("this is not an address", f"write it like {example}") from None
    return parts


def checked_size(value: str, example: str) -> str:
    """Return an amount of memory in its shortest form. Raises the refusal of anything else."""
    try:
        return canonical_size(size_bytes(value))
    except ValueError as error:
        raise mistake(str(error), f'write it like "{example}" (B, KB, KiB, MB, MiB, GB, GiB, TB, TiB)') from None


def label_pairs(value: dict[str, str]) -> dict[str, str]:
    """Check names and values of labels. Raises the refusal of anything else."""
    refuse_all(_wrong_labels(value))
    return value


def _wrong_labels(value: Mapping[str, str]) -> Iterator[PydanticCustomError]:
    for key, text in value.items():
        if not LABEL_KEY.fullmatch(key):
            yield mistake(
                f"{key!r} is not a label's name", "use letters, digits, '.', '_', '-': zone, or example.com/zone"
            )
        if not LABEL_VALUE.fullmatch(text):
            yield mistake(f"{text!r} is not a label's value", f"use letters, digits, '.', '_', '-': {key}: fast")


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
