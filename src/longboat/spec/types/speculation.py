"""The field ``speculative`` of a model: who proposes tokens, and how many at once."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from longboat.spec.types.section import Section, mistake
from longboat.spec.types.source import check_source

__all__ = ("SpeculativeSpec",)

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


class SpeculativeSpec(Section):
    """Tokens that are proposed cheaply, and checked by the model in one step."""

    method: Literal["ngram", "draft", "eagle", "eagle3", "mtp"]
    """Where proposals come from: repeated text, a smaller model, an EAGLE head, or the model's own MTP layers."""
    tokens: int = Field(default=3, ge=1, le=64)
    """Tokens that are proposed in each step."""
    model: Annotated[Annotated[str, AfterValidator(_source)] | None, Field()] = None
    """Model of draft, eagle and eagle3: a folder as the nodes see it, or hf:ORGANISATION/NAME."""
    lookup: int | None = Field(default=None, ge=1, le=64)
    """Longest run of tokens that ngram looks for in the text; null is 3."""

    @model_validator(mode="after")
    def _fits_method(self) -> SpeculativeSpec:
        if self.method in _WITH_MODEL and self.model is None:
            raise mistake(f"{self.method} needs a model that proposes tokens", "write model: hf:ORGANISATION/NAME")
        if self.method not in _WITH_MODEL and self.model is not None:
            raise mistake(f"{self.method} takes no model", "leave model out, or write method: draft")
        if self.method != "ngram" and self.lookup is not None:
            raise mistake(f"{self.method} looks nothing up", "leave lookup out, or write method: ngram")
        return self
