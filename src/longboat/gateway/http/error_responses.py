"""The errors that the gateway itself returns: status, code, and a message that says what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

from longboat.core.external import NANOS
from longboat.gateway.http.responses import Refusal
from longboat.gateway.http.strict_json import BodyError
from longboat.routing.capacity.quota import Denied
from longboat.routing.queue.fair_queue import Rejected

__all__ = (
    "answer_lost",
    "bad_body",
    "bad_deadline",
    "bad_http",
    "bad_resume",
    "body_too_large",
    "coded_body",
    "coded_transfer",
    "context_too_long",
    "deadline_passed",
    "engines_unreachable",
    "head_too_large",
    "internal",
    "length_required",
    "method_not_allowed",
    "model_missing",
    "model_not_allowed",
    "model_paused",
    "name_a_model",
    "no_key",
    "no_ready_endpoint",
    "no_rest",
    "no_room",
    "no_table",
    "none_came",
    "overloaded_memory",
    "poison",
    "quota_refused",
    "response_gone",
    "starts_too_slowly",
    "stopping",
    "too_many_wait",
    "too_slow",
    "unknown_model",
    "unknown_response",
    "upstream_silent",
    "version_refused",
    "waited_too_long",
    "wrong_key",
)

_MAX_NAMES = 20
_LONGEST_WAIT_S = 60
"""OpenAI's and Anthropic's clients wait no longer for another try: of a longer time, they try twice within seconds."""
_MAX_NAME_CHARS = 100
_MAX_COMPARED = 16
_MAX_COMPARED_CHARS = 64


def bad_http(detail: str) -> Refusal:
    message = f"The request is not valid HTTP/1.1: {detail}. Check the client, or the proxy in front of the gateway."
    return Refusal(status=400, message=message, code="bad_http", close=True)


def version_refused() -> Refusal:
    message = "This server supports only HTTP/1.0 and HTTP/1.1."
    return Refusal(status=505, message=message, code="http_version", close=True)


def head_too_large(max_bytes: int) -> Refusal:
    message = f"The request line and headers are larger than {max_bytes} bytes. Send fewer or shorter headers."
    return Refusal(status=431, message=message, code="headers_too_large", close=True)


def body_too_large(max_bytes: int) -> Refusal:
    message = (
        f"The request body is larger than {max_bytes} bytes. Send a smaller one, or raise the gateway's max_body_bytes."
    )
    return Refusal(status=413, message=message, code="body_too_large", close=True)


def overloaded_memory() -> Refusal:
    message = "The gateway has no memory left for another request body. Try again in a moment."
    return Refusal(status=503, message=message, code="gateway_memory", retry_after_s=1, close=True)


def too_slow(what: str, timeout_s: float) -> Refusal:
    message = f"The {what} did not arrive within {timeout_s:g} s. Check the connection, or send a smaller request."
    return Refusal(status=408, message=message, code="request_timeout", close=True)


def length_required() -> Refusal:
    message = "The request does not say where its body ends. Send Content-Length, or Transfer-Encoding: chunked."
    return Refusal(status=411, message=message, code="length_required")


def coded_transfer() -> Refusal:
    message = "The only transfer encoding that this server supports is 'chunked'."
    return Refusal(status=501, message=message, code="transfer_encoding", close=True)


def coded_body(coding: str) -> Refusal:
    message = f"The content encoding {coding[:40]!r} is not supported. Send the body uncompressed."
    return Refusal(status=415, message=message, code="content_encoding")


def method_not_allowed(method: str, allow: str) -> Refusal:
    message = f"This path does not support {method[:20]}. Use {allow}."
    return Refusal(status=405, message=message, code="method_not_allowed", allow=allow)


def bad_body(error: BodyError) -> Refusal:
    return Refusal(status=400, message=error.message, code=error.code, param=error.param)


def model_missing(models: Sequence[str]) -> Refusal:
    message = f"'model' must be a string that names one of the models served here. {_listed(models)}"
    return Refusal(status=400, message=message, code="model_missing", param="model")


def name_a_model(models: Sequence[str]) -> Refusal:
    message = f"Name the model in the query, as in ?model=NAME. {_listed(models)}"
    return Refusal(status=400, message=message, code="model_missing", param="model")


def unknown_model(name: str, models: Sequence[str]) -> Refusal:
    """Return the refusal that lists the models that are served, the most similar first."""
    requested = name[:_MAX_NAME_CHARS]
    message = f"The model {requested!r} is not served here. {_listed(_nearest(requested, models))}"
    return Refusal(status=404, message=message, code="model_not_found", param="model")


def no_table() -> Refusal:
    message = "The gateway has not received its list of models yet. Try again in a moment."
    return Refusal(status=503, message=message, code="no_table", retry_after_s=2)


def no_ready_endpoint(model: str) -> Refusal:
    message = f"No replica of {model!r} is ready. Try again soon; `longboat status` shows how far the replicas are."
    return Refusal(status=503, message=message, code="model_not_ready", param="model", retry_after_s=2)


def model_paused(model: str) -> Refusal:
    message = f"{model!r} is paused: its operator took all replicas out of use. `longboat resume {model}` starts them."
    return Refusal(status=503, message=message, code="model_paused", param="model", retry_after_s=60)


def starts_too_slowly(model: str, ready_in_s: float, wait_s: float) -> Refusal:
    """Return the refusal for a request that cannot wait until a replica has started."""
    message = (
        f"No replica of {model!r} runs. One starts now and should be ready in {ready_in_s:.0f} s; this request can "
        f"wait {max(0.0, wait_s):.0f} s. Try again then, or stream the response: a stream waits longer."
    )
    return Refusal(
        status=503, message=message, code="model_starting", param="model", retry_after_s=max(1, math.ceil(ready_in_s))
    )


def too_many_wait(model: str, ready_in_s: float | None) -> Refusal:
    """Return the refusal for a request where as many wait for the model's first replica as may."""
    message = f"No replica of {model!r} is ready, and the queue for its start is full. Try again when it is ready."
    after_s = 5 if ready_in_s is None else max(1, math.ceil(ready_in_s))
    return Refusal(status=503, message=message, code="model_starting", param="model", retry_after_s=after_s)


def engines_unreachable(model: str, detail: str, *, reached: bool) -> Refusal:
    """Return 502 where an engine accepted the request and failed (``reached``), 503 where no engine could be
    reached.
    """
    message = f"No replica of {model!r} responded: {detail}. Try again; `longboat logs {model}` shows why."
    if reached:
        return Refusal(status=502, message=message, code="engine_lost")
    return Refusal(status=503, message=message, code="engine_unreachable", retry_after_s=2)


def upstream_silent(model: str, silence_s: float) -> Refusal:
    message = f"The replica of {model!r} sent nothing for {silence_s:g} s. Try again, or request fewer tokens."
    return Refusal(status=504, message=message, code="engine_silent")


def waited_too_long(model: str, max_wait_s: float) -> Refusal:
    message = f"No replica of {model!r} had room for the request within {max_wait_s:g} s. Try again later."
    return Refusal(status=429, message=message, code="queue_timeout", retry_after_s=max(1, round(max_wait_s)))


def no_room(model: str, rejected: Rejected) -> Refusal:
    """Return the refusal for a request that would wait longer than it may, while every slot is taken."""
    message = f"Every replica of {model!r} is full: {rejected.detail}"
    return Refusal(status=429, message=message, code=str(rejected.reason), retry_after_s=rejected.retry_after_s)


def bad_deadline(value: bytes) -> Refusal:
    message = (
        f"{value[:40]!r} is not a time. X-Request-Timeout takes seconds from now, X-Request-Deadline Unix seconds."
    )
    return Refusal(status=400, message=message, code="bad_deadline")


def deadline_passed() -> Refusal:
    message = "The request's own deadline passed before an engine responded. Allow more time, or try again later."
    return Refusal(status=504, message=message, code="deadline_passed")


def no_key() -> Refusal:
    message = "This gateway requires an API key. Send Authorization: Bearer KEY; `longboat keys create` makes one."
    return Refusal(status=401, message=message, code="missing_api_key")


def wrong_key(*, expired: bool) -> Refusal:
    if expired:
        message = "This API key has expired. Ask the fleet's operator for a new one (`longboat keys create`)."
        return Refusal(status=401, message=message, code="expired_api_key")
    message = "This API key is wrong or has been revoked. `longboat keys list` shows the valid ones."
    return Refusal(status=401, message=message, code="invalid_api_key")


def model_not_allowed(model: str, allowed: Sequence[str]) -> Refusal:
    message = (
        f"Your API key does not allow the model {model[:_MAX_NAME_CHARS]!r}. It allows {_names(allowed) or 'none'}."
    )
    return Refusal(status=403, message=message, code="model_not_allowed", param="model")


def context_too_long(num_tokens: int, limit: int) -> Refusal:
    message = (
        f"Prompt and completion need about {num_tokens} tokens; your API key allows {limit}. "
        "Shorten the prompt, or lower max_tokens."
    )
    return Refusal(status=400, message=message, code="context_length_exceeded")


_LIMITS = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "tokens_per_day": "tokens a day",
    "concurrent_requests": "requests at one time",
}


def quota_refused(denied: Denied, tenant: str, currency: str = "") -> Refusal:
    """Return the refusal for a request that would exceed a limit of its tenant. currency: of a limit of money"""
    value, most = str(denied.value), str(denied.limit_value)
    what = _LIMITS.get(denied.limit, denied.limit)
    if denied.limit == "money_per_day":
        value, most, what = f"{denied.value / NANOS:.4f}", f"{denied.limit_value / NANOS:g}", f"{currency} a day"
    retry_s = denied.retry_after_s
    advice = "This request alone exceeds the limit. Shorten the prompt or lower max_tokens."
    if retry_s is not None:
        advice = f"Try again in {retry_s} s."
    message = f"Tenant {tenant!r} has used {value} of {most} {what}. {advice}"
    helps = retry_s is not None and retry_s <= _LONGEST_WAIT_S
    return Refusal(status=429, message=message, code=denied.limit, retry_after_s=retry_s, retry_helps=helps)


def unknown_response(response_id: str) -> Refusal:
    message = (
        f"No replica behind this gateway stores the response {response_id[:80]!r} for you. "
        "Send the request to the gateway that returned the response, or send the whole conversation instead."
    )
    return Refusal(status=404, message=message, code="response_not_found", param="previous_response_id")


def response_gone(model: str) -> Refusal:
    message = f"The replica of {model!r} that stored this response is gone. Send the whole conversation instead."
    return Refusal(status=404, message=message, code="response_not_found", param="previous_response_id")


def internal() -> Refusal:
    message = "The gateway failed to handle this request. Try again; the gateway's log says why."
    return Refusal(status=500, message=message, code="gateway_failed")


def stopping() -> Refusal:
    message = "This gateway is stopping. Send the request to another gateway of the fleet, or try again in a moment."
    return Refusal(status=503, message=message, code="gateway_stopping", retry_after_s=1, close=True)


def answer_lost(detail: str) -> Refusal:
    """Return the error for a response whose engine was lost in the middle, where no other could continue it."""
    message = f"The engine failed in the middle of this response, and no other could continue it: {detail}."
    return Refusal(status=502, message=f"{message} Send the request again.", code="engine_lost")


def poison() -> Refusal:
    message = (
        "This request crashed every engine that started it, so it will not be retried. "
        "Change the prompt or the parameters, or tell the fleet's operator; `longboat logs` shows why."
    )
    return Refusal(status=422, message=message, code="poison_request")


def bad_resume() -> Refusal:
    message = (
        "Last-Event-ID and X-Longboat-Resume do not belong to this request, or are older than an hour. "
        "Repeat the original request unchanged with the token from its response, or leave both headers out."
    )
    return Refusal(status=400, message=message, code="bad_resume")


def no_rest(detail: str) -> Refusal:
    """Return the refusal for a stream whose beginning came from another gateway."""
    message = f"This stream cannot be resumed: {detail}. Send the request again without Last-Event-ID."
    return Refusal(status=409, message=message, code="resume_gone")


def none_came(model: str, failure: str, *, rest: bool) -> Refusal:
    """Return the refusal for a request that waited for an engine as long as it may.

    rest: it wanted the rest of a response
    """
    able = "that can continue this response " if rest else ""
    message = f"No replica of {model!r} {able}became ready while the request waited"
    detail = f" (the last one: {failure})" if failure else ""
    hint = "Try again soon; `longboat status` shows how far it is."
    return Refusal(status=503, message=f"{message}{detail}. {hint}", code="model_not_ready", retry_after_s=5)


def _nearest(name: str, models: Sequence[str]) -> list[str]:
    """Return the models, the likeliest first: the few that share most pairs of characters are compared in full.

    It runs on the event loop: comparing 500 long names in full took 0.2 s.
    """
    name = name[:_MAX_COMPARED_CHARS]
    pairs = _pairs(name)
    near = difflib.SequenceMatcher(b=name)

    def shared(model: str) -> float:
        others = _pairs(model[:_MAX_COMPARED_CHARS])
        return len(pairs & others) / (len(pairs) + len(others) + 1)

    def likeness(model: str) -> float:
        near.set_seq1(model[:_MAX_COMPARED_CHARS])
        return near.ratio()

    found = sorted(models[:500], key=shared, reverse=True)
    return [*sorted(found[:_MAX_COMPARED], key=likeness, reverse=True), *found[_MAX_COMPARED:]]


def _pairs(name: str) -> set[str]:
    return {name[at : at + 2] for at in range(len(name) - 1)}


def _listed(models: Sequence[str]) -> str:
    return f"Served: {_names(models)}." if models else "This fleet does not serve any model yet."


def _names(models: Sequence[str]) -> str:
    listed = ", ".join(models[:_MAX_NAMES])
    return listed + (f", and {len(models) - _MAX_NAMES} more" if len(models) > _MAX_NAMES else "")
