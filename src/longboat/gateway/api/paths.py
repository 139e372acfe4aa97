"""Maps the target of a request to a path of the gateway, and refuses the paths that it lacks."""

from __future__ import annotations

import difflib
import re
from urllib.parse import unquote_to_bytes

import msgspec
import orjson

from longboat.gateway.api.apis import APIS, KNOWN_PATHS
from longboat.gateway.api.multipart import with_model_field
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal

__all__ = ("DEPLOYMENT", "NOT_RELAYED", "is_coded", "not_relayed", "own_target", "unknown_path", "with_model")

DEPLOYMENT = b":deployment"
"""Among a request's noted headers: the model that its path names. No real header's name begins with a colon."""

_ABSOLUTE = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_DEPLOYMENT_PATH = re.compile(rb"/openai/deployments/([^/]+)(/.*)")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MAX_PATH_CHARS = 100
_PLAIN_PATHS = frozenset(path.encode() for path in KNOWN_PATHS)

_NO_SALT = "engines read no cache_salt there, so the prefix caches of tenants could not be kept apart"
_ONE_ENGINE = "it controls a single engine"
_ENGINE_ITSELF = "the address of that engine"
_NO_STORE = ("nothing is stored for clients", "/v1/chat/completions for each request")
_NO_IMAGES = ("no engine here makes images", "a service that does")
_NO_SPEECH = ("no engine here speaks", "a service that does")
_ABORT = ("one tenant could end the requests of another", "the request's own connection: closing it ends the work")

NOT_RELAYED: dict[str, tuple[str, str]] = {
    "/abort_requests": _ABORT,
    "/cohere/v2/chat": (_NO_SALT, "/v1/chat/completions"),
    "/cohere/v2/chat/render": (_NO_SALT, "/v1/chat/completions/render"),
    "/collective_rpc": (_ONE_ENGINE, _ENGINE_ITSELF),
    "/docs": ("the gateway has no web page for its API", "/openapi.json"),
    "/inference/v1/abort_requests": _ABORT,
    "/invocations": ("its body can be a request of any kind", "the path of that kind, for example /v1/completions"),
    "/pause": (_ONE_ENGINE, _ENGINE_ITSELF),
    "/redoc": ("the gateway has no web page for its API", "/openapi.json"),
    "/reset_prefix_cache": (_ONE_ENGINE, _ENGINE_ITSELF),
    "/resume": (_ONE_ENGINE, _ENGINE_ITSELF),
    "/server_info": (_ONE_ENGINE, _ENGINE_ITSELF),
    "/sleep": (_ONE_ENGINE, _ENGINE_ITSELF),
    "/v1/assistants": (_NO_STORE[0], "/v1/responses"),
    "/v1/audio/speech": _NO_SPEECH,
    "/v1/batches": _NO_STORE,
    "/v1/chat/completions/derender": ("it only turns token ids into text", "/detokenize"),
    "/v1/completions/derender": ("it only turns token ids into text", "/detokenize"),
    "/v1/conversations": (_NO_STORE[0], "/v1/responses"),
    "/v1/files": _NO_STORE,
    "/v1/images/edits": _NO_IMAGES,
    "/v1/images/generations": _NO_IMAGES,
    "/v1/images/variations": _NO_IMAGES,
    "/v1/moderations": ("no engine here has that API", "/classify with a model of task: classify"),
    "/v1/realtime": ("the gateway does not relay WebSockets", "/v1/audio/transcriptions"),
    "/v1/responses/compact": ("no engine can compact a conversation", "/v1/responses with a shorter input"),
    "/v1/threads": (_NO_STORE[0], "/v1/responses"),
    "/v1/vector_stores": (_NO_STORE[0], "/v1/embeddings"),
    "/v2/chat": (_NO_SALT, "/v1/chat/completions"),
    "/v2/embed": (_NO_SALT, "/v1/embeddings"),
    "/wake_up": (_ONE_ENGINE, _ENGINE_ITSELF),
}
"""Paths that engines or other services have and the gateway does not: path → (why, what to use instead)."""


def own_target(target: bytes) -> tuple[bytes, bytes]:
    """Return the path and query that a target means here, and the model that the path names (empty for most).

    Takes the absolute form of RFC 9112 3.2.2, Azure's paths (``/openai/v1/…``, ``/openai/deployments/NAME/…``) and one
    slash too many at the end. Azure's ``api-version`` is dropped; every other target is returned as it came.
    """
    if target[:4].lower() == b"http" and (host := _ABSOLUTE.match(target)) is not None:
        target = target[host.end() :]
        target = target if target.startswith(b"/") else b"/" + target
    path, mark, query = target.partition(b"?")
    model = b""
    if path.startswith(b"/openai/"):
        path, model = _azure_path(path)
        query = b"&".join(part for part in query.split(b"&") if not part.startswith(b"api-version="))
        mark = b"?" if query else b""
    if path.endswith(b"/") and path[:-1] in _PLAIN_PATHS:
        path = path[:-1]
    return path + mark + query, model


def _azure_path(path: bytes) -> tuple[bytes, bytes]:
    if (found := _DEPLOYMENT_PATH.fullmatch(path)) is not None:
        return b"/v1" + found[2], unquote_to_bytes(found[1])
    rest = path.removeprefix(b"/openai")
    return (rest if rest.startswith(b"/v1/") else b"/v1" + rest), b""


def with_model(request: Request, model: bytes, *, is_form: bool) -> bytes:
    """Return the body with this model as its field ``model``, in place of what the body names.

    Raises BodyError: it is not a form.
    """
    body = request.body()
    if is_form:
        return with_model_field(body, request.noted.get(b"content-type", b""), model)
    name = orjson.dumps(model.decode("utf-8", "replace"))
    members = _MEMBERS.decode(body)
    if "model" in members:
        return msgspec.json.encode({**members, "model": msgspec.Raw(name)})
    at = body.index(b"{") + 1
    return b"".join((body[:at], b'"model":', name, b"," if members else b"", body[at:]))


def is_coded(content_encoding: bytes) -> bool:
    """Return whether a Content-Encoding changes the body: ``identity`` does not."""
    return any(coding.strip().lower() not in (b"", b"identity") for coding in content_encoding.split(b","))


def not_relayed(path: str) -> Refusal | None:
    """Return the refusal for a path of :data:`NOT_RELAYED`; None for every other path."""
    found = NOT_RELAYED.get(path)
    if found is None:
        return None
    why, instead = found
    message = f"{path} is not relayed, because {why}. Use {instead}."
    return Refusal(status=404, message=message, code="path_not_relayed")


def unknown_path(path: str) -> Refusal:
    """Return the 404 for an unknown path, with the nearest one that works."""
    shown = path[:_MAX_PATH_CHARS]
    return Refusal(status=404, message=f"There is no path {shown!r} here. {_advice(shown)}", code="unknown_url")


def _advice(path: str) -> str:
    if path.startswith("//"):
        return "The client's base URL is wrong: it ends with a slash, and the client adds another. Remove that slash."
    if path.startswith("/v1/v1/"):
        return "The client's base URL is wrong: it ends with /v1, and the client adds /v1 again. Remove it there."
    if ("/v1" + path).encode() in APIS:
        return f"Use /v1{path}: the client's base URL probably lacks /v1 at its end."
    near = difflib.get_close_matches(path, KNOWN_PATHS, n=1)
    return (f"Did you mean {near[0]}? " if near else "") + "GET /openapi.json describes all paths."
