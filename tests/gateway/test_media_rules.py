"""Images and other media in requests: which addresses, data and sizes reach an engine."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from gateway_lab import config, endpoint, table
from hypothesis import given
from hypothesis import strategies as st

from longboat.core.media import MediaRules
from longboat.core.policy import Policy
from longboat.gateway.api.media import holds_media, media_refusal
from longboat.gateway.calls.head import KnownHead
from longboat.gateway.calls.model_request import Call
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal
from longboat.gateway.requests.admit import admit

RULES = MediaRules(domains=("images.example.com", "*.cdn.example.org"), max_bytes=300, max_items=3)
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def chat(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, *parts]}]}


@pytest.mark.parametrize(
    "url",
    [
        "https://images.example.com/a.png",
        "http://IMAGES.example.com:8080/a.png?size=1&x=%20",
        "https://images.example.com./a.png",
        "https://a.b.cdn.example.org/x",
        PIXEL,
        "DATA:image/jpeg;base64,AAAA",
        "data:image/svg+xml;charset=utf-8;base64,AAAA",
    ],
)
def test_allowed_places_are_taken(url: str) -> None:
    assert media_refusal(chat(url), RULES) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a.png",
        "https://cdn.example.org/x",
        "https://evilcdn.example.org.attacker.net/x",
        "https://images.example.com.attacker.net/a.png",
        "https://images.example.com@attacker.net/a.png",
        "https://attacker.net#@images.example.com/",
        "https://attacker.net\\@images.example.com/",
        "https://images.example.com\\.attacker.net/",
        "https://images.example.com/\n",
        " https://images.example.com/",
        "https:///images.example.com/",
        "https:images.example.com",
        "//images.example.com/a",
        "file:///etc/passwd",
        "file://images.example.com/etc/passwd",
        "ftp://images.example.com/a",
        "gopher://images.example.com/a",
        "https://imäges.example.com/",
        "http://127.0.0.1/a",
        "http://[::1]/a",
        "http://2130706433/",
        "",
        "data:text/html;base64,AAAA",
        "data:audio/wav;base64,AAAA",
        "data:image/png,AAAA",
        "data:image/png;base64",
    ],
)
def test_other_places_are_refused(url: str) -> None:
    found = media_refusal(chat(url), RULES)
    assert found is not None
    assert found.status == 400
    assert found.code in ("media_address", "media_data")


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "224.0.0.1",
            "100.64.0.1",
        ),
        *("[::1]", "[::]", "[fe80::1]", "[fd00::1]", "[ff02::1]", "[::ffff:127.0.0.1]", "[::ffff:a00:1]"),
        *("2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "1.1.1", "localhost.1"),
    ],
)
def test_inner_addresses_are_refused_even_where_a_domain_names_them(host: str) -> None:
    rules = MediaRules(domains=(host.strip("[]"), "::ffff:7f00:1", "*.1"))
    assert media_refusal(chat(f"http://{host}/a.png"), rules) is not None


def test_inner_addresses_are_taken_where_the_fleet_allows_them() -> None:
    rules = MediaRules(domains=("10.1.2.3", "::1"), private_addresses=True)
    assert media_refusal(chat("http://10.1.2.3:90/a.png", "http://[::1]/b.png"), rules) is None


def test_without_domains_only_data_urls_are_taken() -> None:
    assert media_refusal(chat(PIXEL), MediaRules()) is None
    found = media_refusal(chat("https://images.example.com/a.png"), MediaRules())
    assert found is not None
    assert "data URL" in found.message


def test_sizes_and_numbers_are_bounded() -> None:
    large = "data:image/png;base64," + "A" * 404
    assert (found := media_refusal(chat(large), RULES)) is not None
    assert (found.status, found.code) == (413, "media_too_large")
    assert media_refusal(chat("data:image/png;base64," + "A" * 400), RULES) is None
    assert (found := media_refusal(chat(*[PIXEL] * 4), RULES)) is not None
    assert found.code == "too_many_media"


BAD = "http://169.254.169.254/"


@pytest.mark.parametrize(
    "document",
    [
        {"messages": [{"content": [{"type": "image_url", "image_url": BAD}]}]},
        {"messages": [{"content": [{"image_url": {"url": BAD}}]}]},
        {"messages": [{"content": [{"type": "video_url", "video_url": {"url": BAD}}]}]},
        {"messages": [{"content": [{"type": "audio_url", "audio_url": {"url": BAD}}]}]},
        {"messages": [{"content": [{"type": "image", "source": {"type": "url", "url": BAD}}]}]},
        {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image_url", "image_url": BAD}]}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": BAD}]}]},
        {"input": [{"type": "function_call_output", "output": [{"type": "input_file", "file_url": BAD}]}]},
        {"query": {"content": [{"type": "image_url", "image_url": {"url": BAD}}]}, "documents": ["x"]},
        {"content_parts": [{"type": "image_url", "image_url": {"url": BAD}}]},
        {"messages": [{"content": [{"type": "image", "source": {"url": BAD}}]}]},
        {"messages": [{"content": [{"type": "image", "source": {"type": "else", "url": BAD, "data": "AAAA"}}]}]},
        {"messages": [{"content": [{"type": "image_url", "image_url": BAD}], "metadata": {}, "tools": []}]},
        {"messages": [{"metadata": {"content": [{"type": "image_url", "image_url": BAD}]}}]},
        {"input": [{"tools": [{"type": "input_image", "image_url": BAD}]}]},
        {"input": [{"text": "x", "image": [PIXEL, BAD]}]},
        {"text": "x", "image_data": "/etc/passwd"},
        {"text": "x", "audio_data": [[BAD]]},
        {"text": "x", "video_data": [{"url": "file:///etc/passwd"}]},
    ],
)
def test_every_place_of_an_address_is_read(document: dict[str, Any]) -> None:
    assert media_refusal(document, RULES) is not None
    assert holds_media(json.dumps(document).encode())


def test_sounds_and_files_are_bounded() -> None:
    sound = {"messages": [{"content": [{"type": "input_audio", "input_audio": {"data": "A" * 404, "format": "wav"}}]}]}
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 404}
    assert media_refusal(sound, RULES) is not None
    assert media_refusal({"messages": [{"content": [{"type": "image", "source": source}]}]}, RULES) is not None


@pytest.mark.parametrize("kind", ["base64", "anything", None])
def test_data_of_a_source_counts_whatever_it_calls_itself(kind: str | None) -> None:
    source = {"media_type": "image/png", "data": "A" * 40} | ({"type": kind} if kind else {})
    document = {"messages": [{"content": [{"type": "image", "source": source}] * 4}]}
    assert (found := media_refusal(document, RULES)) is not None
    assert found.code == "too_many_media"


def test_what_a_tool_is_given_is_no_media() -> None:
    call = {"type": "tool_use", "id": "t", "name": "docker_run", "input": {"image": "nginx:latest", "image_url": BAD}}
    document = {"messages": [{"role": "assistant", "content": [call]}], "metadata": {"image": "x"}}
    assert media_refusal(document, MediaRules()) is None


def parts_of_a_tool(**more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "content": [{"type": "image_url", "image_url": {"url": BAD}}], **more}


@pytest.mark.parametrize(
    "document",
    [
        parts_of_a_tool(messages=[]),
        {"type": "tool_use", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": BAD}]}]},
        {"messages": [parts_of_a_tool(role="user")]},
        {"messages": [{"role": "user", "content": [parts_of_a_tool()]}]},
        {"messages": [{"role": "user", "content": parts_of_a_tool()}]},
        {"messages": [{"content": [{"type": "tool_use", "image_url": BAD, "input": {}}]}]},
        {"input": [{"type": "tool_use", "input": [{"type": "input_image", "image_url": BAD}]}]},
    ],
)
def test_only_a_tools_input_is_not_read(document: dict[str, Any]) -> None:
    assert (found := media_refusal(document, RULES)) is not None
    assert found.code == "media_address"


TEXTS = MediaRules(in_texts=True, max_items=2)


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": f"see ![]({BAD})"},
        {"inputs": "![](file:///etc/passwd)"},
        {"prompt": ["x", f"![]({BAD})"]},
        {"messages": [{"content": f"![]({BAD})"}]},
        {"messages": [{"content": [{"type": "text", "text": f"![]({BAD})"}]}]},
        {"messages": [{"content": [{"type": "text", "text": "!"}, {"type": "text", "text": f"[]({BAD})"}]}]},
        {
            "messages": [
                {"content": [{"type": "text", "text": f"![]({BAD}"}, {"type": "image_url", "image_url": PIXEL}]}
            ]
        },
        {"messages": [{"content": f"![]({BAD}"}, {"content": ")"}]},
        {"messages": [{"content": "x!"}, {"content": f"[]({BAD})"}]},
        {"messages": [{"content": "x!["}, {"content": f"]({BAD})"}]},
        {"messages": [{"content": "x![]"}, {"content": f"({BAD})"}]},
        {"messages": [{"role": f"![]({BAD})", "content": "x"}]},
        {"messages": [{"content": [{"type": "image_url", "image_url": f"{PIXEL}) ![]({BAD}"}]}]},
        {"inputs": f"![]({PIXEL}![]({BAD})"},
        {"inputs": "x", "tools": [{"function": {"description": f"![]({BAD})"}}]},
        {"inputs": "x", "tools": [{"function": {"parameters": {f"![]({BAD})": {}}}}]},
        {"inputs": f"![]({PIXEL})" * 3},
        {"inputs": "![](docs ![](" + BAD + ")"},
        {"inputs": "![](//169.254.169.254/a)"},
        {"messages": [{"content": "a!"}, {"content": "[]"}, {"content": f"({BAD})"}]},
        {"messages": [{"content": "a!"}, {"content": "["}, {"content": f"]({BAD})"}]},
        {"messages": [{"content": "a!["}, {"content": "]"}, {"content": f"({BAD})"}]},
        {"messages": [{"content": "a![ "}, {"content": f" ]({BAD})"}]},
        {"messages": [{"content": "a! "}, {"content": f" []({BAD})"}]},
        {"messages": [{"content": "a![] "}, {"content": f" ({BAD})"}]},
        {"messages": [{"content": "a!"}, {"content": "[]("}, {"content": f"{BAD})"}]},
        {"messages": [{"content": "a!"}, {"content": "[]"}, {"content": "("}, {"content": f"{BAD})"}]},
        {"messages": [{"content": "![](ht"}, {"content": BAD[2:] + ")"}]},
    ],
)
def test_images_that_texts_name_are_read_where_the_engine_loads_them(document: dict[str, Any]) -> None:
    assert media_refusal(document, TEXTS) is not None


def test_the_refusal_of_an_image_in_a_text_says_how_it_stays_text() -> None:
    found = media_refusal({"inputs": "![](https://images.example.com/a.png)"}, TEXTS)
    assert found is not None
    assert found.message.endswith("![a boat](ADDRESS) stays text.")
    assert media_refusal({"inputs": "![a boat](https://images.example.com/a.png)"}, TEXTS) is None
    part = {"type": "image_url", "image_url": {"url": "https://images.example.com/a.png"}}
    found = media_refusal({"messages": [{"content": [part]}]}, TEXTS)
    assert found is not None
    assert "stays text" not in found.message


@pytest.mark.parametrize(
    "text", [f"![]({PIXEL}) what?", f"![a]({BAD})", f"[]({BAD})!", f"x [x]({BAD})", "a[](b) !", "x"]
)
def test_texts_without_such_images_are_taken(text: str) -> None:
    assert media_refusal({"messages": [{"role": "user", "content": f"x {text}"}]}, TEXTS) is None


@pytest.mark.parametrize(
    "texts",
    [
        ["# Logo\n![](docs/logo.png)\ntext"],
        ["![](/static/a.png) ![](../b.png) ![](#c) ![]()"],
        ["![](docs/logo"],
        ["What does ![ mean, and what ![]"],
        ["](a) is what?", "!"],
        ["Stop!", "[]", "(sic) yes", "["],
        ["Stop!", f"({BAD}) is an address"],
    ],
)
def test_ordinary_markdown_is_taken(texts: list[str]) -> None:
    assert media_refusal({"messages": [{"role": "user", "content": text} for text in texts]}, TEXTS) is None


def test_texts_are_not_read_for_other_engines() -> None:
    assert media_refusal({"inputs": f"![]({BAD})"}, RULES) is None


def test_a_text_is_read_however_its_marks_are_written() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"\\u0021[](http://169.254.169.254/)"}]}'
    assert not holds_media(body)
    refused = admit_at(served(Policy(media={"m": TEXTS})), body)
    assert isinstance(refused, Refusal)
    assert refused.code == "media_address"


def test_schemas_of_tools_are_no_media() -> None:
    schema = {"type": "object", "properties": {"image_url": {"type": "string"}, "source": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    assert media_refusal({"tools": tools, "messages": []}, RULES) is None


@pytest.mark.parametrize(
    "document",
    [
        {"structured_outputs": {"json": {"examples": [{"image_url": "a.png"}]}}},
        {"guided_json": {"properties": {"a": {"default": {"image": "a.png"}}}}},
        {"json_schema": {"examples": [{"image_url": "a.png"}]}},
        {"text": {"format": {"type": "json_schema", "schema": {"examples": [{"image_url": "a.png"}]}}}},
    ],
)
def test_schemas_of_answers_are_no_media(document: dict[str, Any]) -> None:
    assert media_refusal({"messages": [], **document}, RULES) is None
    assert media_refusal({"messages": [document]}, RULES) is not None


@given(st.text(max_size=60))
def test_only_known_hosts_pass_whatever_the_text(text: str) -> None:
    for url in (text, f"http://{text}", f"https://{text}/a", f"http://images.example.com{text}"):
        if media_refusal(chat(url), MediaRules(domains=("images.example.com",))) is None:
            host = url.lower().partition("://")[2].partition("/")[0].partition("?")[0].partition("#")[0]
            assert host.rstrip(".").partition(":")[0].rstrip(".") == "images.example.com", url


def served(policy: Policy) -> GatewayState:
    state = GatewayState(config())
    state.offer_table("e", table(endpoint("http://127.0.0.1:9", "r", "m"), models=("m",)))
    state.offer_policy(msgspec.json.encode(policy))
    return state


def decide(document: dict[str, Any], policy: Policy) -> object:
    return admit_at(served(policy), json.dumps(document).encode())


def admit_at(state: GatewayState, body: bytes) -> object:
    noted = {b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
    request = Request(b"/v1/chat/completions", "POST", "r", noted, [])
    request.pieces.append(body)
    return admit(state, request, KnownHead(request), close=False)


def test_files_of_a_form_are_bounded() -> None:
    state = served(Policy(media={"m": RULES}))
    for sizes, expected in (((300,), ""), ((0, 301), "media_too_large"), ((1, 1, 1, 1), "too_many_media")):
        found = admit_form(state, sizes)
        assert (found.code if isinstance(found, Refusal) else "") == expected, sizes


def admit_form(state: GatewayState, sizes: tuple[int, ...]) -> object:
    head = '--x\r\nContent-Disposition: form-data; name="'
    files = [f'{head}file{at}"; filename="a.wav"\r\n\r\n{"A" * size}\r\n' for at, size in enumerate(sizes)]
    body = (f'{head}model"\r\n\r\nm\r\n' + "".join(files) + "--x--\r\n").encode()
    noted = {b"content-type": b"multipart/form-data; boundary=x", b"content-length": str(len(body)).encode()}
    request = Request(b"/v1/audio/transcriptions", "POST", "r", noted, [])
    request.pieces.append(body)
    return admit(state, request, KnownHead(request), close=False)


def test_a_fallback_that_may_not_load_an_image_is_left_out() -> None:
    policy = Policy(media={"m": RULES, "n": MediaRules()}, fallbacks={"m": ("n",)})
    state = GatewayState(config())
    state.offer_table("e", table(endpoint("http://127.0.0.1:9", "r", "m"), models=("m", "n")))
    state.offer_policy(msgspec.json.encode(policy))
    url = chat("https://images.example.com/a.png")
    for document, pools in ((url, ("m",)), (chat(PIXEL), ("m", "n"))):
        found = admit_at(state, json.dumps(document).encode())
        assert isinstance(found, Call)
        assert found.pools == pools


def test_a_request_is_checked_before_an_engine_sees_it() -> None:
    policy = Policy(media={"m": RULES})
    refused = decide(chat(BAD), policy)
    assert isinstance(refused, Refusal)
    assert refused.code == "media_address"
    taken = decide(chat(PIXEL), policy)
    assert isinstance(taken, Call)
    assert taken.cost_tokens > 1000  # an image is not free of charge before its tokens are known
    assert isinstance(decide(chat(BAD), Policy()), Call)  # an engine that is not of this fleet
