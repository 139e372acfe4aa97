"""Carries output into vLLM's engine core: a request begins with output, as if it had been preempted here."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from longboat_vllm.resume.carry import prior_of
from longboat_vllm.shapes import UnexpectedShapeError, expect

__all__ = ("check", "install")

_MARK = "_longboat_resume"


def check() -> None:
    """Raise UnexpectedShapeError where scheduler or grammars differ from vLLM 0.29 to 0.32."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager as Manager

    expect("num_preemptions" in inspect.getsource(Request.__init__), "requests do not count their preemptions")
    source = inspect.getsource(Scheduler.schedule)
    expect("request.num_preemptions <= 0" in source, "the scheduler does not spare preempted requests a check")
    expect("compile_grammar" in inspect.getsource(Manager._create_grammar), "grammars are compiled elsewhere")
    _grammar_start(Manager)


def install() -> None:
    """Wrap how the engine core takes a request, and how it compiles the request's grammar."""
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    if hasattr(StructuredOutputManager._create_grammar, _MARK):
        return
    Request.from_engine_core_request = classmethod(_begun(Request.from_engine_core_request.__func__))
    create = _advanced(StructuredOutputManager._create_grammar, _grammar_start(StructuredOutputManager))
    setattr(create, _MARK, True)
    StructuredOutputManager._create_grammar = create


def _begun(from_engine_core_request: Any) -> Any:
    @functools.wraps(from_engine_core_request)
    def from_engine_core_request_begun(cls: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        made = from_engine_core_request(cls, request, *args, **kwargs)
        if prior := prior_of(made.sampling_params):
            made.append_output_token_ids(prior)
            made.num_preemptions = 1
        return made

    return from_engine_core_request_begun


def _advanced(create_grammar: Any, grammar_start: Any) -> Any:
    """Wrap ``_create_grammar`` so that its grammar has accepted the carried tokens, from the end of reasoning."""

    @functools.wraps(create_grammar)
    def create_grammar_advanced(manager: Any, request: Any) -> Any:
        grammar = create_grammar(manager, request)
        prior = prior_of(request.sampling_params)
        start = grammar_start(manager, request, prior) if prior else None
        if start is not None and start < len(prior) and not grammar.accept_tokens(request.request_id, prior[start:]):
            raise ValueError("the grammar rejects the carried tokens")
        return grammar

    return create_grammar_advanced


def _grammar_start(manager_class: Any) -> Any:
    """Return this vLLM's way to find the index in new tokens where the grammar begins (None: nowhere)."""
    if hasattr(manager_class, "_get_constraint_bounds"):
        return _start_by_bounds
    if hasattr(manager_class, "should_advance") and hasattr(manager_class, "trim_reasoning_for_advance"):
        takes_ids = "new_token_ids" in inspect.signature(manager_class.should_advance).parameters
        return _start_by_trimming if takes_ids else _start_by_reasoner
    raise UnexpectedShapeError("nothing says where in a request's tokens its grammar begins")


def _start_by_bounds(manager: Any, request: Any, prior: list[int]) -> int | None:
    """Find it as ``StructuredOutputManager.accept_tokens`` of vLLM 0.32 does."""
    start, _ = manager._get_constraint_bounds(request, prior, spec_tokens_committed=True)
    if start > len(prior):
        return None
    request.structured_output_request.reasoning_ended = True
    return int(start)


def _start_by_trimming(manager: Any, request: Any, prior: list[int]) -> int | None:
    """Find it as the scheduler of vLLM 0.29 does after each step."""
    manager.should_fill_bitmask(request)  # this call finds out whether the prompt ended reasoning
    if not manager.should_advance(request, new_token_ids=prior):
        return None
    return len(prior) - len(manager.trim_reasoning_for_advance(request, prior))


def _start_by_reasoner(manager: Any, request: Any, prior: list[int]) -> int | None:
    """Find it as vLLM 0.26 does, step by step: its scheduler asks about a request, and not about new tokens."""
    reasoner = manager._get_reasoner(request)
    if reasoner is None or manager.should_fill_bitmask(request):  # this call finds out whether the prompt ended it
        return 0
    tokens = list(request.all_token_ids)
    begin = len(tokens) - len(prior)
    for place in range(begin, len(tokens)):
        if reasoner.is_reasoning_end_streaming(tokens[: place + 1], tokens[place : place + 1]):
            request.structured_output_request.reasoning_ended = True
            return place + 1 - begin
    return None
