"""Counts the input tokens of a Responses request, which OpenAI's API does on a path that vLLM does not have.

vLLM renders such a request itself, behind ``--enable-scale-out``. A count tells less than token ids, so it needs no
such argument.
"""

from __future__ import annotations

from typing import Any

__all__ = ("PATH", "count", "renderer_of")

PATH = "/v1/responses/input_tokens"


def renderer_of(app: Any) -> Any:
    """Return what renders requests in this API server; None where vLLM looks other than expected."""
    renderer = getattr(getattr(app, "state", None), "serving_render", None)
    return renderer if hasattr(renderer, "render_responses_request") else None


async def count(renderer: Any, body: bytes) -> tuple[int, dict[str, Any]]:
    """Return status and document of the response."""
    from pydantic import ValidationError
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    try:
        request = ResponsesRequest.model_validate_json(body)
        rendered = await renderer.render_responses_request(request)
    except ValidationError as error:
        found = error.errors()[0]
        return 400, _error(found["msg"], ".".join(map(str, found["loc"])))
    except (ValueError, TypeError) as error:
        return 400, _error(str(error), None)
    if hasattr(rendered, "error"):
        return int(rendered.error.code), rendered.model_dump()
    return 200, {"object": "response.input_tokens", "input_tokens": len(rendered.token_ids)}


def _error(message: str, param: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": param, "code": 400}}
