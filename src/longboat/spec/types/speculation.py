"""The field ``speculative`` of a model: who proposes tokens, and how many at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, ModelWrapValidatorHandler, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from longboat.spec.types.section import Section, mistake, with_agreement
from longboat.spec.types.source import check_source

__all__ = ("SpeculativeSpec",)

_Method = Literal["ngram", "draft", "eagle", "eagle3", "mtp"]
_WITH_MODEL = ("draft", "eagle", "eagle3")
"""Methods whose proposals come from another model."""


def _source(value: str, info: ValidationInfo) -> str:
    folder = info.context["folder"] if info.context else "/"
    if wrong := check_source(value, folder):
        raise mistake(wrong.what, wrong.hint, later=wrong.later)
    if value.startswith("builtin:"):
        raise mistake(
            f"{value} is not a model that proposes tokens",
            "write a folder as the nodes see it, or hf:ORGANISATION/NAME",
        )
    return value


def _between(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    """Yield what does not go with the method."""
    method = values.get("method")
    if method not in get_args(_Method):
        return
    if method in _WITH_MODEL and values.get("model") is None:
        yield mistake(f"{method} needs a model that proposes tokens", "write model: hf:ORGANISATION/NAME")
    if method not in _WITH_MODEL and values.get("model") is not None:
        yield mistake(f"{method} takes no model", "leave model out, or write method: draft")
    if method != "ngram" and values.get("lookup") is not None:
        yield mistake(f"{method} looks nothing up", "leave lookup out, or write method: ngram")


class SpeculativeSpec(Section):
    """Tokens that are proposed cheaply, and checked by the model in one step."""

    method: _Method
    """Where proposals come from: repeated text, a smaller model, an EAGLE head, or the model's own MTP layers."""
    tokens: int = Field(default=3, ge=1, le=64)
    """Tokens that are proposed in each step."""
    model: Annotated[Annotated[str, AfterValidator(_source)] | None, Field()] = None
    """Model of draft, eagle and eagle3: a folder as the nodes see it, or hf:ORGANISATION/NAME."""
    lookup: int | None = Field(default=None, ge=1, le=64)
    """Longest run of tokens that ngram looks for in the text; null is 3."""

    @model_validator(mode="wrap")
    @classmethod
    def _fits_method(cls, values: Any, handler: ModelWrapValidatorHandler[SpeculativeSpec]) -> SpeculativeSpec:
        return with_agreement(values, handler, cls, _between)
