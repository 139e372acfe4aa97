"""Writes the hand-made part of the corpus: ``python tests/gateway/fuzz/seeds.py``. A name says what must come.

``400.smuggle-cl-te.http``: one answer, 400. ``200+400.x.http``: two, in this order. ``4xx5xx.x.http``: one refusal.
``none.x.http``: no answer, since the request never ends. ``any.x.http``: found by a fuzzer; nothing may break.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

__all__ = ("seeds",)

CORPUS = Path(__file__).parent / "corpus"
GOOD = json.dumps({"model": "tiny", "prompt": "x"}).encode()
INNER = b"POST /v1/smuggled HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


def post(body: bytes, *lines: bytes, path: bytes = b"/v1/completions", length: bool = True) -> bytes:
    """A request; ``lines`` are header lines besides Host."""
    head = [b"POST " + path + b" HTTP/1.1", b"host: x", *lines]
    if length:
        head.append(b"content-length: %d" % len(body))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def chunked(body: bytes, *lines: bytes) -> bytes:
    return post(body, b"transfer-encoding: chunked", *lines, length=False)


def one_chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def smuggling() -> Iterator[tuple[str, bytes]]:
    zero = b"0\r\n\r\n"
    both = (b"content-length: 4", b"transfer-encoding: chunked")
    yield "400.smuggle-cl-te", post(zero + INNER, *both, length=False)
    yield "400.smuggle-te-cl", post(zero + INNER, *reversed(both), length=False)
    yield "400.smuggle-two-lengths", post(GOOD + INNER, b"content-length: 4")
    yield "400.smuggle-list-of-lengths", post(GOOD, b"content-length: %d, 4" % len(GOOD), length=False)
    yield "400.smuggle-plus-length", post(GOOD, b"content-length: +%d" % len(GOOD), length=False)
    yield "400.smuggle-negative-length", post(GOOD, b"content-length: -1", length=False)
    yield "400.smuggle-hex-length", post(GOOD, b"content-length: 0x20", length=False)
    yield "400.smuggle-spaced-length", post(GOOD, b"content-length : %d" % len(GOOD), length=False)
    yield "400.smuggle-huge-length", post(GOOD, b"content-length: 99999999999999999999999", length=False)
    for name, value in (
        ("obs", b"xchunked"),
        ("identity", b"identity"),
        ("gzip", b"gzip, chunked"),
        ("twice", b"chunked, chunked"),
        ("quoted", b'"chunked"'),
        ("not-last", b"chunked, identity"),
    ):
        yield f"4xx5xx.smuggle-te-{name}", post(zero + INNER, b"transfer-encoding: " + value, length=False)
    yield "4xx5xx.smuggle-te-spaced-name", post(zero + INNER, b"transfer-encoding : chunked", b"content-length: 4")
    yield "4xx5xx.smuggle-te-folded", post(zero + INNER, b"transfer-encoding:", b" chunked", b"content-length: 4")
    yield "4xx5xx.smuggle-te-tab", post(zero + INNER, b"transfer-encoding:\tchunked", b"content-length: 4")
    yield "4xx5xx.smuggle-te-vertical-tab", post(zero + INNER, b"transfer-encoding: \x0bchunked", b"content-length: 4")
    yield "4xx5xx.smuggle-te-two-lines", chunked(zero + INNER, b"transfer-encoding: identity")
    yield "4xx5xx.smuggle-http10-te", chunked(zero).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    yield "400.smuggle-header-by-cr", post(GOOD, b"x: y\rtransfer-encoding: chunked")
    yield "4xx5xx.smuggle-header-by-lf", post(GOOD, b"x: y\ntransfer-encoding: chunked")
    yield "400.smuggle-body-of-a-get", post(INNER, *both, length=False).replace(b"POST", b"GET", 1)


def chunks() -> Iterator[tuple[str, bytes]]:
    yield "200.chunk-plain", chunked(one_chunk(GOOD))
    yield "200.chunk-single-bytes", chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in GOOD) + b"0\r\n\r\n")
    yield "200.chunk-extension", chunked(b"%x;a=b\r\n%b\r\n0;c\r\n\r\n" % (len(GOOD), GOOD))
    yield "200.chunk-trailer", chunked(one_chunk(GOOD)[:-2] + b"x-trailer: 1\r\n\r\n")
    yield "400.chunk-trailer-smuggles", chunked(one_chunk(GOOD)[:-2] + b"x-smuggled: 1\r\ncontent-length: 3\r\n\r\n")
    yield "400.chunk-size-word", chunked(b"zz\r\n")
    yield "400.chunk-size-negative", chunked(b"-1\r\n" + GOOD)
    yield "400.chunk-size-0x", chunked(b"0x5\r\nhello\r\n0\r\n\r\n")
    yield "400.chunk-size-empty", chunked(b"\r\n\r\n")
    yield "400.chunk-size-overflow", chunked(b"fffffffffffffffff\r\n")
    yield "413.chunk-size-beyond-the-limit", chunked(b"80000\r\n" + b" " * 70_000)
    yield "400.chunk-without-end-of-line", chunked(b"5\r\nhelloX0\r\n\r\n")
    yield "400.chunk-longer-than-said", chunked(b"2\r\nhello\r\n0\r\n\r\n" + INNER)
    yield "none.chunk-shorter-than-said", chunked(b"fff\r\nhello")
    yield "none.chunk-without-last", chunked(one_chunk(GOOD)[:-5])
    yield "400.chunk-extension-endless", chunked(b"5;" + b"a" * 300_000)
    yield "400.chunk-trailer-bad", chunked(one_chunk(GOOD)[:-2] + b"no colon here\r\n\r\n")


def heads() -> Iterator[tuple[str, bytes]]:
    yield "431.head-one-long-line", b"GET /livez HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 20_000 + b"\r\n\r\n"
    yield "431.head-many-lines", b"GET /livez HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 4000 + b"\r\n"
    yield "431.head-long-target", b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"
    yield "431.head-without-end", b"GET /livez HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 20_000
    yield "none.head-cut", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-le"
    yield "none.head-empty-lines", b"\r\n\r\n\r\n\r\n"
    yield "none.nothing", b""
    yield "400.head-no-host", b"GET /livez HTTP/1.1\r\n\r\n"
    yield "400.head-two-hosts", b"GET /livez HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n"
    yield "400.head-nul-in-name", b"GET /livez HTTP/1.1\r\nhost: x\r\na\x00b: c\r\n\r\n"
    yield "400.head-nul-in-value", b"GET /livez HTTP/1.1\r\nhost: x\r\na: b\x00c\r\n\r\n"
    yield "400.head-no-colon", b"GET /livez HTTP/1.1\r\nhost: x\r\nnonsense\r\n\r\n"
    yield "400.head-space-first", b"GET /livez HTTP/1.1\r\n host: x\r\n\r\n"
    yield "400.head-empty-name", b"GET /livez HTTP/1.1\r\nhost: x\r\n: y\r\n\r\n"
    yield "4xx5xx.head-http-2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "4xx5xx.head-http-0-9", b"GET /livez\r\n"
    yield "4xx5xx.head-version-nonsense", b"GET /livez HTTP/9.9\r\nhost: x\r\n\r\n"
    yield "400.head-tls-hello", bytes.fromhex("16030100c8010000c40303") + b"\x00" * 64
    yield "400.head-binary", bytes(range(256)) * 4
    yield "400.head-unknown-method", b"BREW /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    yield "404.head-connect", b"CONNECT engine:80 HTTP/1.1\r\nhost: x\r\n\r\n" + INNER
    yield "200.head-upgrade", b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" + INNER
    yield "404.head-websocket", b"GET /v1/x HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"


def targets() -> Iterator[tuple[str, bytes]]:
    for name, target in (
        ("authority", b"smuggled:80"),
        ("asterisk", b"*"),
        ("dots", b"/v1/../v1/completions"),
        ("encoded", b"/v1%2fcompletions"),
        ("double-slash", b"//smuggled/v1/completions"),
        ("fragment", b"/v1/completions#smuggled"),
        ("backslash", b"/v1\\completions"),
        ("non-ascii", b"/v1/completions\xc3\xa9"),
        ("nul", b"/v1/completions\x00"),
        ("space", b"/v1/ completions"),
        ("metrics-of-the-engine", b"/fault"),
    ):
        yield f"4xx5xx.target-{name}", post(GOOD, path=target)
    yield "200.target-absolute", post(GOOD, path=b"http://smuggled/v1/completions")
    yield "200.target-query", post(GOOD, path=b"/v1/completions?a=b")


def bodies() -> Iterator[tuple[str, bytes]]:
    for name, body in (
        ("empty", b""),
        ("cut", GOOD[:-1]),
        ("list", b"[1]"),
        ("number", b"1"),
        ("invalid-utf8", b'{"model":"tiny","prompt":"\xff\xfe"}'),
        ("invalid-utf8-in-key", b'{"model":"tiny","\xc3\x28":1}'),
        ("overlong-utf8", b'{"model":"tiny","prompt":"\xc0\xaf"}'),
        ("lone-surrogate-bytes", b'{"model":"tiny","prompt":"\xed\xa0\x80"}'),
        ("utf16", '{"model":"tiny"}'.encode("utf-16")),
        ("nul", b'{"model":"tiny","prompt":"\x00"}'),
        ("only-nul", b"\x00" * 100),
        ("deep-lists", b'{"model":"tiny","prompt":' + b"[" * 25_000 + b"]" * 25_000 + b"}"),
        ("deep-objects", b'{"model":"tiny","a":' + b'{"a":' * 8_000 + b"1" + b"}" * 8_000 + b"}"),
        ("deep-and-cut", b"[" * 60_000),
        ("duplicate-model", b'{"model":"tiny","prompt":"x","model":"smuggled"}'),
        ("duplicate-by-escape", b'{"model":"tiny","prompt":"x","m\\u006fdel":"smuggled"}'),
        ("duplicate-inside", b'{"model":"tiny","prompt":"x","stream_options":{"a":1,"a":2}}'),
        ("nan", b'{"model":"tiny","prompt":"x","temperature":NaN}'),
        ("infinity", b'{"model":"tiny","prompt":"x","temperature":-Infinity}'),
        ("comment", b'{"model":"tiny"/**/}'),
        ("trailing-comma", b'{"model":"tiny",}'),
        ("two-documents", GOOD + GOOD),
        ("model-number", b'{"model":1,"prompt":"x"}'),
        ("single-quotes", b"{'model':'tiny'}"),
    ):
        yield f"400.json-{name}", post(body)
    yield "404.json-model-unknown", post(b'{"model":"smuggled","prompt":"x"}')
    yield "404.json-model-path", post(b'{"model":"../../etc/passwd","prompt":"x"}')
    yield "413.body-too-large", post(b" " * 70_000)
    yield "none.body-cut", post(GOOD)[:-3]
    yield "411.body-without-length", post(b"", length=False)
    yield "415.body-gzip", post(GOOD, b"content-encoding: gzip")
    yield "200.json-model-null", post(b'{"model":null,"prompt":"x"}')  # there is one model
    yield "200.json-model-missing", post(b'{"prompt":"x"}')
    yield "200.json-spaces", post(b" \r\n\t" + GOOD + b" \n")
    yield "200.json-big-number", post(b'{"model":"tiny","prompt":"x","seed":12345678901234567890}')


def pipelines() -> Iterator[tuple[str, bytes]]:
    live = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
    yield "200+200+200.pipeline-plain", live + post(GOOD) + live
    yield "200+400.pipeline-good-then-bad", post(GOOD) + b"nonsense\r\n\r\n"
    yield "400+200.pipeline-bad-json-then-good", post(b"{") + post(GOOD)
    yield "200.pipeline-after-close", post(GOOD, b"connection: close") + INNER
    yield "200.pipeline-after-http-1-0", live.replace(b"1.1", b"1.0") + INNER
    yield "404+200.pipeline-404-then-good", b"GET /v1/smuggled HTTP/1.1\r\nhost: x\r\n\r\n" + post(GOOD)
    yield (
        "200+400.pipeline-then-cl-te",
        post(GOOD) + post(b"0\r\n\r\n" + INNER, b"content-length: 4", b"transfer-encoding: chunked", length=False),
    )
    yield "200+none.pipeline-then-cut", live + post(GOOD)[:-5]
    yield "200.expect-continue", post(GOOD, b"expect: 100-continue")
    yield "200.expect-nonsense", post(GOOD, b"expect: 42-bananas")


def forms() -> Iterator[tuple[str, bytes]]:
    path = b"/v1/audio/transcriptions"

    def part(name: bytes, value: bytes, more: bytes = b"") -> bytes:
        return b'--B\r\ncontent-disposition: form-data; name="' + name + b'"' + more + b"\r\n\r\n" + value + b"\r\n"

    sound = part(b"file", bytes(range(256)), b'; filename="a.wav"\r\ncontent-type: audio/wav')
    model = part(b"model", b"tiny")
    kind = b"content-type: multipart/form-data; boundary=B"

    def form(*parts: bytes, end: bytes = b"--B--\r\n", head: bytes = kind) -> bytes:
        return post(b"".join(parts) + end, head, path=path)

    yield "200.form-plain", form(model, sound)
    yield "200.form-file-first", form(sound, model)
    yield "400.form-no-boundary", form(model, sound, head=b"content-type: multipart/form-data")
    yield "400.form-other-boundary", form(model, sound, head=b"content-type: multipart/form-data; boundary=C")
    yield "400.form-empty-boundary", form(model, sound, head=b'content-type: multipart/form-data; boundary=""')
    yield "400.form-not-a-form", form(model, sound, head=b"content-type: application/json")
    yield "400.form-no-content-type", form(model, sound, head=b"x: y")
    yield "400.form-no-end", form(model, sound, end=b"")
    yield "200.form-no-model", form(sound)
    yield "400.form-two-models", form(model, part(b"model", b"smuggled"), sound)
    yield "400.form-empty", post(b"", kind, path=path)
    yield "400.form-part-without-blank-line", form(model, b'--B\r\ncontent-disposition: form-data; name="x"\r\n')
    yield "400.form-model-not-utf8", form(part(b"model", b"\xff\xfe"), sound)
    yield "404.form-model-unknown", form(part(b"model", b"smuggled"), sound)
    twice = kind + b"\r\ncontent-type: multipart/form-data; boundary=C"
    yield "4xx5xx.form-two-content-types", form(model, sound, head=twice)
    yield "413.form-too-large", form(model, part(b"file", b"\x00" * 70_000, b'; filename="a"'))


def seeds() -> Iterator[tuple[str, bytes]]:
    """Names, without the ending, and bytes."""
    for kind in (smuggling, chunks, heads, targets, bodies, pipelines, forms):
        yield from kind()


if __name__ == "__main__":
    for seed_name, seed in seeds():
        (CORPUS / f"{seed_name}.http").write_bytes(seed)
