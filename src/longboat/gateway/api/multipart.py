"""Reads the few text fields of a multipart/form-data body (audio requests) without copying its files.

It takes only forms that every parser reads alike: each part starts right after its boundary line and has one
Content-Disposition with a quoted, unescaped name (``filename*`` only after ``filename``). No name comes twice unless it
ends in ``[]``.

Spliced places of forms: the value of ``model``; for streams whose client did not ask for usage, that of
``stream_include_usage`` (and ``stream_continuous_usage_stats``, which does nothing without it, is turned off).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from longboat.gateway.api.body_fields import FLEET_FIELDS, BodyKind, Facts, Form, fleet_field
from longboat.gateway.http.strict_json import BodyError

__all__ = ("read_form", "splice_form", "with_model_field")

_MAX_PARTS = 200
_MAX_HEAD_BYTES = 4096
_MAX_TEXT_BYTES = 1024 * 1024
_FILE_TOKENS = 1500
"""What a sound file is taken to cost: as many tokens as Whisper makes of its window of 30 s."""

_BOUNDARY = re.compile(
    rb"[ \t]*multipart/form-data[ \t]*;[ \t]*boundary=(?:\"([^\"\\\r\n]{1,70})\"|([^\s;\",\\]{1,70}))[ \t]*"
    rb"(?:;[ \t]*charset=\"?utf-8\"?[ \t]*)?",
    re.IGNORECASE,
)
_DISPOSITION = re.compile(
    rb"[ \t]*form-data[ \t]*;[ \t]*name=\"([^\"\\\r\n]{1,200})\""
    rb"(?:[ \t]*;[ \t]*filename=\"([^\"\r\n]*)\"(?:[ \t]*;[ \t]*filename\*=[^\s;\"]+)?)?[ \t]*",
    re.IGNORECASE,
)
_NEW_FIELD = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
_TRUE = frozenset(("true", "True", "1"))
_FALSE = frozenset(("false", "False", "0", ""))


def read_form(body: bytes, content_type: bytes, *, refuse_fleet_fields: bool, allowed: Collection[str] = ()) -> Facts:
    """Read a form. Raises BodyError: not a well-formed form, a duplicate field, no model, a fleet field."""
    form, names = _form(body, content_type)
    if refuse_fleet_fields:
        _refuse_fleet_fields(names, allowed)
    return _facts(form)


def splice_form(body: bytes, facts: Facts, *, model: str | None, add_usage: bool) -> bytes:
    """Return the form that the engine gets; arguments as in body.splice. The content type's boundary stays valid."""
    form = facts.form
    assert form is not None
    changes: dict[str, bytes] = {}
    if model is not None and model != facts.model:
        changes["model"] = model.encode()
        if form.boundary in changes["model"]:
            raise BodyError("The model's name contains the form's boundary. Use another boundary.", "bad_form")
    if add_usage and facts.usage_addable:
        changes["stream_include_usage"] = b"true"
        if "stream_continuous_usage_stats" in form.spans:
            changes["stream_continuous_usage_stats"] = b"false"
    return _spliced(body, form, changes) if changes else body


def with_model_field(body: bytes, content_type: bytes, model: bytes) -> bytes:
    """Return the form with this value of the field ``model``. Raises body.BodyError: it is not a form."""
    form, _ = _form(body, content_type)
    if form.boundary in model:
        raise BodyError("The model's name contains the form's boundary. Use another boundary.", "bad_form")
    return _spliced(body, form, {"model": model})


def _form(body: bytes, content_type: bytes) -> tuple[Form, set[str]]:
    """Return a form and the names of all of its parts."""
    form = Form(_boundary(content_type))
    names: set[str] = set()
    for start, end in _parts(body, form.boundary):
        _read_part(form, body, start, end, names)
    return form, names


def _spliced(body: bytes, form: Form, changes: dict[str, bytes]) -> bytes:
    """Return the body with values replaced and new fields put before the first part."""
    pieces = [
        _NEW_FIELD % (form.boundary, name.encode(), value) for name, value in changes.items() if name not in form.spans
    ]
    at = 0
    for (start, end), value in sorted(
        (form.spans[name], value) for name, value in changes.items() if name in form.spans
    ):
        pieces += (body[at:start], value)
        at = end
    pieces.append(body[at:])
    return b"".join(pieces)


def _boundary(content_type: bytes) -> bytes:
    match = _BOUNDARY.fullmatch(content_type)
    if match is None:
        message = "Content-Type must be multipart/form-data with a boundary of 1 to 70 characters and nothing else."
        raise BodyError(message, "bad_form")
    boundary: bytes = match[1] or match[2]
    return boundary


def _parts(body: bytes, boundary: bytes) -> list[tuple[int, int]]:
    """Return where each part's head starts and its content ends."""
    first = b"--" + boundary + b"\r\n"
    if not body.startswith(first):
        raise _bad("it does not start with its boundary")
    delimiter = b"\r\n--" + boundary
    parts = []
    start = len(first)
    while True:
        end = body.find(delimiter, start)
        if end < 0:
            raise _bad("its last boundary is missing")
        parts.append((start, end))
        after = end + len(delimiter)
        if body.startswith(b"--", after):
            if body[after + 2 :].strip():
                raise _bad("something follows its last boundary")
            return parts
        if not body.startswith(b"\r\n", after):
            raise _bad("a boundary is followed by other characters")
        if len(parts) >= _MAX_PARTS:
            raise _bad(f"it has more than {_MAX_PARTS} parts")
        start = after + 2


def _read_part(form: Form, body: bytes, start: int, end: int, names: set[str]) -> None:
    head_end = body.find(b"\r\n\r\n", start, min(end, start + _MAX_HEAD_BYTES))
    if head_end < 0:
        raise _bad("a part's headers do not end")
    name, is_file = _disposition(body[start:head_end])
    if name in names and not name.endswith("[]"):
        raise BodyError(
            f"The field {name[:100]!r} stands twice in the form. Send it once.", "duplicate_key", name[:100]
        )
    names.add(name)
    content = head_end + 4
    if is_file:
        form.file_bytes.append(end - content)
        return
    if end - content > _MAX_TEXT_BYTES:
        raise _bad(f"the field {name[:100]!r} is longer than {_MAX_TEXT_BYTES} bytes")
    try:
        form.fields[name] = body[content:end].decode()
    except UnicodeDecodeError:
        raise _bad(f"the field {name[:100]!r} is not UTF-8") from None
    form.spans[name] = (content, end)


def _disposition(head: bytes) -> tuple[str, bool]:
    """Return the name of a part, and whether it is a file."""
    found = None
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon or not name or not _is_token(name) or b"\n" in value or b"\r" in value:
            raise _bad("a part has a broken header")
        if name.lower() == b"content-disposition":
            if found is not None:
                raise _bad("a part has two Content-Disposition headers")
            found = value
        elif name.lower() == b"content-transfer-encoding":
            raise _bad("a part has a Content-Transfer-Encoding")
    match = _DISPOSITION.fullmatch(found) if found is not None else None
    if match is None:
        raise _bad('a part has no Content-Disposition of the form: form-data; name="NAME"; filename="NAME"')
    try:
        return match[1].decode(), match[2] is not None
    except UnicodeDecodeError:
        raise _bad("a part's name is not UTF-8") from None


def _is_token(name: bytes) -> bool:
    return name.replace(b"-", b"").isalnum()


def _refuse_fleet_fields(names: set[str], allowed: Collection[str]) -> None:
    for name in names:
        if (field := name.partition("[")[0]) in FLEET_FIELDS and field not in allowed:
            raise fleet_field(name[:100])


def _facts(form: Form) -> Facts:
    fields, facts = form.fields, Facts()
    facts.model_at = facts.model_end = 0
    facts.form = form
    facts.document = {}
    facts.kind = BodyKind.FORM
    facts.model = fields.get("model", "")
    if not facts.model:
        raise BodyError("'model' must name a model. GET /v1/models lists them.", "model_missing", "model")
    facts.stream = _flag(fields, "stream")
    facts.wants_usage = facts.stream and _flag(fields, "stream_include_usage")
    facts.usage_addable = facts.stream and not facts.wants_usage
    facts.user = fields.get("user", "")
    facts.n = 1
    facts.max_tokens = _limit(fields)
    facts.prompt_chars = len(fields.get("prompt", ""))
    facts.num_prompt_tokens_estimate = facts.prompt_chars // 4 + (_FILE_TOKENS if any(form.file_bytes) else 0)
    return facts


def _limit(fields: dict[str, str]) -> int | None:
    text = fields.get("max_completion_tokens", "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BodyError("'max_completion_tokens' must be an integer.", "invalid_type", "max_completion_tokens")
    return int(text)


def _flag(fields: dict[str, str], name: str) -> bool:
    value = fields.get(name, "")
    if value in _TRUE or value in _FALSE:
        return value in _TRUE
    raise BodyError(f"{name!r} must be true or false.", "invalid_type", name)


def _bad(detail: str) -> BodyError:
    message = f"The request body is not a well-formed form: {detail}. Let an HTTP library build it."
    return BodyError(message, "bad_form")
