"""Keeps the arguments of tool calls to their schemas where a client demands a call.

SGLang's grammar then allows any JSON as arguments unless the tool is ``strict``; the text of a model that writes a
number there is an error 500 of ``/v1/messages``.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("install",)

_MARK = "_longboat_arguments"


def install() -> None:
    """Wrap the choice of the grammar, and the translation to Anthropic's messages. Raises UnexpectedShapeError."""
    from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    constraint, convert = FunctionCallParser.get_structure_constraint, AnthropicServing._convert_response
    if hasattr(constraint, _MARK):
        return
    expect(callable(constraint) and callable(convert), "tool calls are read elsewhere")
    FunctionCallParser.get_structure_constraint = _strict(constraint)
    AnthropicServing._convert_response = _with_objects(convert)


def _strict(constraint: Any) -> Any:
    """Wrap ``FunctionCallParser.get_structure_constraint``, so that a demanded call has arguments of its schema."""

    @functools.wraps(constraint)
    def constraint_of_strict_tools(parser: Any, tool_choice: Any, *args: Any, **kwargs: Any) -> Any:
        if tool_choice not in ("auto", "none"):
            parser.tools = [_strict_tool(tool) for tool in parser.tools]  # copies: the prompt shows the client's
        return constraint(parser, tool_choice, *args, **kwargs)

    setattr(constraint_of_strict_tools, _MARK, True)
    return constraint_of_strict_tools


def _strict_tool(tool: Any) -> Any:
    return tool.model_copy(update={"function": tool.function.model_copy(update={"strict": True})})


def _with_objects(convert: Any) -> Any:
    """Wrap ``AnthropicServing._convert_response``: other arguments become an empty object, as broken ones do."""

    @functools.wraps(convert)
    def convert_objects(serving: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        for choice in response.choices:
            for call in choice.message.tool_calls or ():
                if not _is_object(call.function.arguments):
                    call.function.arguments = "{}"
        return convert(serving, response, *args, **kwargs)

    return convert_objects


def _is_object(arguments: Any) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, TypeError):
        return False
