"""Reads the few text fields of a multipart/form-data body (audio requests) without copying its files."""

from __future__ import annotations

__all__ = ("Form", "read_form", "splice_form")


class Form:
    """What the gateway needs to know of one form.

    fields: text fields by name; file_bytes: size of all files together
    model, stream, wants_usage, usage_addable, user, num_prompt_tokens_estimate: as in body.Facts
    model_span: where the model's value stands in the body
    """

    __slots__ = (
        "boundary",
        "fields",
        "file_bytes",
        "model",
        "model_span",
        "num_prompt_tokens_estimate",
        "stream",
        "usage_addable",
        "user",
        "wants_usage",
    )

    boundary: bytes
    fields: dict[str, str]
    file_bytes: int
    model: str
    model_span: tuple[int, int]
    num_prompt_tokens_estimate: int
    stream: bool
    usage_addable: bool
    user: str
    wants_usage: bool


def read_form(body: bytes, content_type: bytes, *, refuse_fleet_fields: bool) -> Form:
    """Raises body.BodyError: not a well-formed form, a duplicate field, no model, a fleet field."""
    raise NotImplementedError


def splice_form(body: bytes, form: Form, *, model: str | None, add_usage: bool) -> bytes:
    """The form that the engine gets; arguments as in body.splice. The content type's boundary stays valid."""
    raise NotImplementedError
