"""Forms: fields are found without touching files, ambiguous ones are refused, splices change nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.gateway.api.body import BodyError
from longboat.gateway.api.body_fields import Facts
from longboat.gateway.api.multipart import read_form, splice_form

TYPE = b"multipart/form-data; boundary=XyZ"
Parts = list[tuple[str, str | None, bytes]]


def form_body(parts: Parts, boundary: str = "XyZ") -> bytes:
    out = b""
    for name, filename, content in parts:
        extra = f'; filename="{filename}"\r\nContent-Type: audio/wav' if filename is not None else ""
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
        out += head.encode() + content + b"\r\n"
    return out + f"--{boundary}--\r\n".encode()


def read(parts: Parts) -> Facts:
    return read_form(form_body(parts), TYPE, refuse_fleet_fields=True)


SOUND = ("file", "a.wav", b"RIFF\x00\r\n--Xy\xff\r\n\r\n")


def test_fields_are_found_around_a_file() -> None:
    form = read([("stream", None, b"true"), SOUND, ("model", None, b"whisper"), ("prompt", None, b"x" * 40)])
    assert (form.model, form.stream, form.usage_addable) == ("whisper", True, True)
    assert form.form is not None and form.form.file_bytes == [len(SOUND[2])]
    assert form.num_prompt_tokens_estimate > 10
    assert form.form.fields == {"stream": "true", "model": "whisper", "prompt": "x" * 40}


NAMES = st.sampled_from(["language", "prompt", "temperature", "timestamp_granularities[]", "é"])
PARTS = st.lists(
    st.tuples(NAMES, st.none() | st.just("f.wav"), st.text(max_size=20).map(str.encode)),
    max_size=5,
    unique_by=lambda part: part[0],
)


@given(PARTS, PARTS, st.booleans(), st.none() | st.sampled_from(["m", "other"]), st.booleans())
def test_spliced_form_is_the_old_one_with_exactly_the_change(
    before: Parts, after: Parts, stream: bool, model: str | None, add_usage: bool
) -> None:
    names = {part[0] for part in before}
    parts = [*before, ("model", None, b"m"), *(part for part in after if part[0] not in names)]
    if stream:
        parts.insert(1, ("stream", None, b"true"))
    body = form_body(parts)
    form = read_form(body, TYPE, refuse_fleet_fields=True)
    spliced = splice_form(body, form, model=model, add_usage=add_usage)
    wanted = [(name, file, (model or "m").encode() if name == "model" else value) for name, file, value in parts]
    if add_usage and stream:
        wanted.insert(0, ("stream_include_usage", None, b"true"))
    assert spliced == form_body(wanted)


def test_usage_that_the_client_turned_off_is_turned_on_in_its_place() -> None:
    parts: Parts = [("stream_continuous_usage_stats", None, b"true"), ("stream_include_usage", None, b"false")]
    rest: Parts = [("stream", None, b"true"), ("model", None, b"m")]
    form = read(parts + rest)
    assert form.usage_addable
    spliced = splice_form(form_body(parts + rest), form, model=None, add_usage=True)
    wanted: Parts = [("stream_continuous_usage_stats", None, b"false"), ("stream_include_usage", None, b"true")]
    assert spliced == form_body(wanted + rest)


def test_form_without_change_is_the_same_object() -> None:
    body = form_body([("model", None, b"m"), SOUND])
    form = read_form(body, TYPE, refuse_fleet_fields=True)
    assert splice_form(body, form, model="m", add_usage=True) is body


@pytest.mark.parametrize(
    "content_type",
    [
        b'multipart/form-data; boundary="XyZ"',
        b"Multipart/Form-Data;boundary=XyZ",
        b"multipart/form-data; boundary=XyZ; charset=utf-8",
    ],
)
def test_boundary_is_read_from_the_content_type(content_type: bytes) -> None:
    assert read_form(form_body([("model", None, b"m")]), content_type, refuse_fleet_fields=True).model == "m"


@pytest.mark.parametrize(
    "content_type",
    [
        *(b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary="),
        *(b"multipart/form-data; boundary=" + b"x" * 71, TYPE + b"; charset=utf-7", TYPE + b"; boundary=other"),
    ],
)
def test_unclear_content_type_is_refused(content_type: bytes) -> None:
    with pytest.raises(BodyError):
        read_form(form_body([("model", None, b"m")]), content_type, refuse_fleet_fields=True)


def refused(body: bytes) -> str:
    with pytest.raises(BodyError) as caught:
        read_form(body, TYPE, refuse_fleet_fields=True)
    return caught.value.code


@pytest.mark.parametrize("name", ["model", "stream", "file"])
def test_field_that_comes_twice_is_refused(name: str) -> None:
    twice: Parts = [("model", None, b"m"), (name, None, b"true"), (name, "f.wav", b"x")]
    assert refused(form_body(twice)) == "duplicate_key"


def test_lists_may_come_several_times() -> None:
    part = ("timestamp_granularities[]", None, b"word")
    assert read([part, part, ("model", None, b"m")]).model == "m"


def test_form_needs_a_model_that_is_no_file() -> None:
    assert refused(form_body([SOUND])) == "model_missing"
    assert refused(form_body([("model", "f.wav", b"m")])) == "model_missing"


@pytest.mark.parametrize("name", ["vllm_xargs", "vllm_xargs[a]", "kv_transfer_params"])
def test_fields_of_the_fleet_are_refused(name: str) -> None:
    assert refused(form_body([("model", None, b"m"), (name, None, b"{}")])) == "fleet_field"


def test_flags_that_engines_would_read_in_their_own_way_are_refused() -> None:
    assert refused(form_body([("model", None, b"m"), ("stream", None, b"yes")])) == "invalid_type"


MODEL = b'--XyZ\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        MODEL,
        b"preamble\r\n" + MODEL + b"--XyZ--",
        MODEL + b"--XyZ--\r\nmore",
        MODEL + b"--XyZ \r\n--XyZ--",
        b"--XyZ\nContent-Disposition: form-data; name=model\n\nm\n--XyZ--",
        b"--XyZ\r\n\r\nm\r\n--XyZ--",
        b"--XyZ\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--XyZ--",
        b'--XyZ\r\nContent-Disposition: form-data; name="model"; name="x"\r\n\r\nm\r\n--XyZ--',
        b'--XyZ\r\nContent-Disposition: form-data; name="mo\\"del"\r\n\r\nm\r\n--XyZ--',
        b"--XyZ\r\nContent-Disposition: form-data; name=\"model\"; filename*=utf-8''x\r\n\r\nm\r\n--XyZ--",
        b'--XyZ\r\nContent-Disposition: form-data;\r\n name="model"\r\n\r\nm\r\n--XyZ--',
        b'--XyZ\r\nContent-Disposition : form-data; name="model"\r\n\r\nm\r\n--XyZ--',
        b'--XyZ\r\nContent-Disposition: form-data; name="x"\r\n' + MODEL[7:] + b"--XyZ--",
        b'--XyZ\r\nContent-Disposition: form-data; name="model"\r\n\r\n\xff\r\n--XyZ--',
        b"--XyZ\r\nContent-Transfer-Encoding: base64\r\n" + MODEL[7:] + b"--XyZ--",
        MODEL * 300 + b"--XyZ--",
    ],
)
def test_form_that_parsers_may_read_differently_is_refused(body: bytes) -> None:
    assert refused(body) in {"bad_form", "duplicate_key"}


@given(st.binary(max_size=200), st.integers(0, 400))
def test_damaged_forms_are_refused_or_read_and_never_crash(noise: bytes, at: int) -> None:
    body = form_body([("model", None, b"m"), SOUND])
    try:
        read_form(body[:at] + noise + body[at:], TYPE, refuse_fleet_fields=True)
    except BodyError as error:
        assert error.message
