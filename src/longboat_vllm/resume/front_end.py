"""Resumes in vLLM's API server: notes each choice's token ids, passes prior tokens on, and reports them as output."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import AsyncIterator
from typing import Any

from longboat_vllm.resume.carry import CURRENT, FORCED_TOKENS, PRIOR_TOKENS, CarriedRequest
from longboat_vllm.resume.repeated import RepeatedTokens
from longboat_vllm.shapes import expect, expect_parameters
from longboat_vllm.steps import STEPS

__all__ = ("install",)

_MARK = "_longboat_resume"
_PRIVATE = (PRIOR_TOKENS, FORCED_TOKENS)
_TOLD_AT_ONCE = 16


def install() -> None:
    """Wrap the code that generates, splits into choices, registers and counts. Raises UnexpectedShapeError."""
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState
    from vllm.v1.engine.parallel_sampling import ParentRequest

    if hasattr(AsyncLLM.generate, _MARK):
        return
    expect_parameters(AsyncLLM.generate, ("self", "prompt", "sampling_params", "request_id"))
    expect_parameters(ParentRequest.get_child_info, ("self", "index"))
    expect_parameters(OutputProcessor.add_request, ("self", "request"))
    expect(hasattr(OutputProcessor, "get_num_unfinished_requests"), "unfinished requests are counted elsewhere")
    expect_parameters(OutputProcessor.update_scheduler_stats, ("self", "scheduler_stats"))
    names = ("self", "new_token_ids", "pooling_output", "finish_reason", "stop_reason")
    expect_parameters(RequestState.make_request_output, names)
    AsyncLLM.generate = _generating(AsyncLLM.generate)
    ParentRequest.get_child_info = _child_with_its_own(ParentRequest.get_child_info)
    OutputProcessor.add_request = _adding(OutputProcessor.add_request)
    OutputProcessor.update_scheduler_stats = _counting(OutputProcessor.update_scheduler_stats)


def _generating(generate: Any) -> Any:
    """Wrap ``AsyncLLM.generate`` so that it honours the current HTTP request's wishes; others pass unchanged."""

    @functools.wraps(generate)
    def generate_and_note(
        engine: Any, prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kw: Any
    ) -> Any:
        if any(name in (sampling_params.extra_args or ()) for name in _PRIVATE):
            raise ValueError("only the fleet's gateway can carry token ids over")
        request = CURRENT.get()
        if request is None:
            return generate(engine, prompt, sampling_params, request_id, *args, **kw)
        first = request.firsts[request_id] = request.num_choices
        request.num_choices += sampling_params.n
        params = _fitted(request, first, sampling_params)
        outputs = generate(engine, prompt, params, request_id, *args, **kw)
        return _noted(request, first, request_id, outputs, params)

    setattr(generate_and_note, _MARK, True)
    return generate_and_note


def _fitted(request: CarriedRequest, first: int, sampling_params: Any) -> Any:
    """Copy the parameters and add the gateway's seed and the tokens of the choices from ``first`` on."""
    params = copy.copy(sampling_params)
    params.__dict__.pop("sampling_type", None)  # cached; it depends on the seed
    if request.seed is not None and params.seed is None:
        params.seed = request.seed + first
    priors = [request.prior_of(first + index) for index in range(params.n)]
    if any(priors):
        longest = max(map(len, priors))
        if params.max_tokens is not None and longest >= params.max_tokens:
            raise ValueError(f"{longest} tokens are carried, but max_tokens is {params.max_tokens}")
        name = PRIOR_TOKENS if request.mode == "carried" else FORCED_TOKENS
        tokens = priors[0] if params.n == 1 else priors
        params.extra_args = {**(params.extra_args or {}), name: tokens}
    return params


def _child_with_its_own(get_child_info: Any) -> Any:
    """Wrap ``ParentRequest.get_child_info`` so that it gives each choice its own tokens."""

    @functools.wraps(get_child_info)
    def get_child_info_with_its_own(parent: Any, index: int) -> Any:
        request_id, params = get_child_info(parent, index)
        extra_args = params.extra_args or {}
        name = next((name for name in _PRIVATE if name in extra_args), None)
        if name is None:
            return request_id, params
        child_params = copy.copy(params)
        child_params.extra_args = {**extra_args, name: extra_args[name][index]}
        return request_id, child_params

    return get_child_info_with_its_own


async def _noted(request: CarriedRequest, first: int, request_id: str, outputs: Any, params: Any) -> AsyncIterator[Any]:
    """Yield the outputs, after those of carried tokens; note each choice's ids just before its output."""
    from vllm.sampling_params import RequestOutputKind

    is_delta = params.output_kind == RequestOutputKind.DELTA
    repeated = RepeatedTokens(request, first)
    try:
        async for output in outputs:
            repeated.check(output, is_delta=is_delta)
            for place, told in enumerate(request.told.pop(request_id, ())):
                if place % _TOLD_AT_ONCE == 0:
                    await asyncio.sleep(0)  # lets other streams run
                yield _note(request, first, told) if is_delta else told
            for single in _singles(output) if is_delta else (output,):
                yield _note(request, first, single) if is_delta else single
    finally:
        await outputs.aclose()


def _note(request: CarriedRequest, first: int, output: Any) -> Any:
    for choice in output.outputs:
        request.note(first + choice.index, choice.token_ids)
    return output


def _singles(output: Any) -> list[Any]:
    """Return one output per choice, so that each event follows the ids of its own choice."""
    if len(output.outputs) < 2:
        return [output]
    singles = []
    for choice in output.outputs:
        single = copy.copy(output)
        single.outputs = [choice]
        single.finished = output.finished and choice is output.outputs[-1]
        singles.append(single)
    return singles


def _adding(add_request: Any) -> Any:
    """Wrap ``OutputProcessor.add_request`` so that it reports carried tokens as if they had just been generated."""

    @functools.wraps(add_request)
    def add_request_and_tell(processor: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        add_request(processor, request, *args, **kwargs)
        STEPS.unfinished = processor.get_num_unfinished_requests
        params = getattr(request, "sampling_params", None)
        prior = (params.extra_args or {}).get(PRIOR_TOKENS) if params is not None else None
        current = CURRENT.get()
        if current is not None and current.whole:
            _watch(processor.request_states[request.request_id], current)
        if prior and current is not None:
            try:
                _tell(processor, request.request_id, prior, current)
            except ValueError:
                processor.abort_requests([request.request_id], internal=True)
                raise

    return add_request_and_tell


def _watch(state: Any, current: CarriedRequest) -> None:
    """Look up the tokens of a non-streaming response where they gather.

    vLLM reports nothing of such a response before its end.
    """
    first, index = current.firsts.get(state.external_req_id), getattr(state, "request_index", None)
    detokenizer = state.detokenizer
    if first is not None and index is not None and hasattr(detokenizer, "output_token_ids"):
        current.grown[first + index] = lambda: detokenizer.output_token_ids


def _tell(processor: Any, request_id: str, prior: list[int], current: CarriedRequest) -> None:
    state = processor.request_states[request_id]
    told = current.told.setdefault(state.external_req_id, [])
    for start in range(0, len(prior), current.told_at_once):
        told += _told(state, prior[start : start + current.told_at_once])


def _told(state: Any, token_ids: list[int]) -> list[Any]:
    """Return the output that the engine would have made for ``token_ids``; log-probabilities are placeholders."""
    if state.detokenizer.update(token_ids, False):
        raise ValueError("the carried tokens contain a stop string")
    if (num_logprobs := state.logprobs_processor.num_logprobs) is not None:
        state.logprobs_processor.update_from_output(_blank(state.request_id, token_ids, num_logprobs))
    output = state.make_request_output(token_ids, None, None, None)
    return [] if output is None else [output]


def _blank(request_id: str, token_ids: list[int], num_logprobs: int) -> Any:
    import numpy as np
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.outputs import LogprobsLists

    shape = (len(token_ids), max(num_logprobs, 0) + 1)
    ids = np.repeat(np.array(token_ids, dtype=np.int64)[:, None], shape[1], axis=1)
    rows = LogprobsLists(ids, np.zeros(shape, dtype=np.float32), np.ones(shape[0], dtype=np.int64))
    return EngineCoreOutput(request_id=request_id, new_token_ids=token_ids, new_logprobs=rows)


def _counting(update_scheduler_stats: Any) -> Any:
    """Wrap ``OutputProcessor.update_scheduler_stats``, which vLLM calls once per step of the engine."""

    @functools.wraps(update_scheduler_stats)
    def update_scheduler_stats_and_count(processor: Any, scheduler_stats: Any) -> None:
        update_scheduler_stats(processor, scheduler_stats)
        STEPS.num_steps += 1
        if scheduler_stats is not None:
            STEPS.num_waiting = scheduler_stats.num_waiting_reqs

    return update_scheduler_stats_and_count
