"""Resumes in SGLang's API server: notes each choice's token ids, and passes seeds and prior tokens on."""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator
from typing import Any

from longboat_sglang.adapters import name_adapter
from longboat_sglang.salts import BODY
from longboat_vllm.resume.carry import CURRENT, FORCED_TOKENS, CarriedRequest
from longboat_vllm.shapes import expect_parameters
from longboat_vllm.steps import STEPS

__all__ = ("fit", "install", "noted", "sending")

_MARK = "_longboat_resume"
_PRIVATE = ("custom_logit_processor", "custom_params")
_OTHERS = "longboat_others"
"""Parameter of sampling beside the forced tokens: those of the choices after this one."""
_NOT_SINGLE = "only a request with one prompt can be continued"
_SEEDS = 2**31
_MOST_SEED = 2**63 - 1
"""Largest seed that SGLang takes: a larger one ends its scheduler."""


def install() -> None:
    """Wrap the code that generates, that sends and that receives output. Raises UnexpectedShapeError."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    if hasattr(TokenizerManager.generate_request, _MARK):
        return
    expect_parameters(TokenizerManager.generate_request, ("self", "obj", "request"))
    expect_parameters(TokenizerManager._handle_batch_output, ("self", "recv_obj"))
    expect_parameters(TokenizerManager._send_one_request, ("self", "tokenized_obj"))
    TokenizerManager.generate_request = _generating(TokenizerManager.generate_request)
    TokenizerManager._send_one_request = sending(TokenizerManager._send_one_request)
    TokenizerManager._handle_batch_output = _counting(TokenizerManager._handle_batch_output)


def _generating(generate: Any) -> Any:
    """Wrap ``TokenizerManager.generate_request`` so that it honours the current HTTP request's wishes."""

    @functools.wraps(generate)
    def generate_and_note(manager: Any, obj: Any, request: Any = None) -> Any:
        _refuse_code(obj)
        name_adapter(obj)
        current = CURRENT.get()
        fit(current or CarriedRequest(), obj)
        if (body := BODY.get()) is not None and getattr(obj, "cache_salt", "") is None:
            obj.cache_salt = body.salt()
        if current is None:
            return generate(manager, obj, request)
        return noted(current, manager, obj, generate(manager, obj, request))

    setattr(generate_and_note, _MARK, True)
    return generate_and_note


def _refuse_code(obj: Any) -> None:
    """Refuse code and parameters of clients for the sampler."""
    params = getattr(obj, "sampling_params", None)
    several = params if isinstance(params, list) else [params or {}]
    if getattr(obj, "custom_logit_processor", None) or any(own.get("custom_params") for own in several):
        raise ValueError(f"{' and '.join(_PRIVATE)} are not offered")


def fit(current: CarriedRequest, obj: Any) -> None:
    """Add a seed where the request names none, and the tokens of a stream that began elsewhere.

    Raises ValueError where those tokens cannot be taken.
    """
    if not hasattr(obj, "return_hidden_states"):
        return  # it asks for embeddings, which draw nothing
    num_prompts, has_prior = _num_prompts(obj), any(current.prior)
    if has_prior and (isinstance(obj.sampling_params, list) or num_prompts):
        raise ValueError(_NOT_SINGLE)
    if isinstance(obj.sampling_params, list):
        return
    params = dict(obj.sampling_params or {})
    names_seed = params.get("sampling_seed") is not None
    if not names_seed:
        params["sampling_seed"] = random.randrange(_SEEDS) if current.seed is None else current.seed
    if has_prior:
        limit, longest = params.get("max_new_tokens"), max(map(len, current.prior))
        if limit is not None and longest > limit:  # a choice may have all its tokens, and lack its end
            raise ValueError(f"{longest} tokens are carried, but max_tokens is {limit}")
        first, *others = current.prior
        params["custom_params"] = {FORCED_TOKENS: first, _OTHERS: others}
    obj.sampling_params = params
    if num_prompts and not names_seed:  # equal prompts get different answers, as from two requests
        first_seed, num_choices = params["sampling_seed"], params.get("n") or 1
        seeds = range(first_seed, first_seed + num_prompts * num_choices, num_choices)
        obj.sampling_params = [{**params, "sampling_seed": seed} for seed in seeds]


def _num_prompts(obj: Any) -> int:
    """Return the number of prompts in a list; 0 where there is one prompt without a list."""
    several = obj.text or obj.input_ids or ()
    return len(several) if isinstance(several, list) and isinstance(several[0], (str, list)) else 0


def sending(send: Any) -> Any:
    """Wrap ``TokenizerManager._send_one_request``, which sends the choices of a request in turn with one object of
    parameters, so that each choice gets a seed and forced tokens of its own.
    """

    @functools.wraps(send)
    async def send_and_advance(manager: Any, tokenized_obj: Any) -> None:
        await send(manager, tokenized_obj)
        params = getattr(tokenized_obj, "sampling_params", None)
        if params is None or params.n == 1 or params.max_new_tokens == 0:
            return  # SGLang computes the prompt alone before several choices, with a limit of 0 tokens
        if params.sampling_seed is not None:
            params.sampling_seed = params.sampling_seed + 1 if params.sampling_seed < _MOST_SEED else -_MOST_SEED - 1
        if FORCED_TOKENS in (params.custom_params or {}):
            first, *others = params.custom_params[_OTHERS] or [[]]
            params.custom_params = {FORCED_TOKENS: first, _OTHERS: others}

    return send_and_advance


async def noted(current: CarriedRequest, manager: Any, obj: Any, outputs: Any) -> AsyncIterator[Any]:
    """Yield the outputs under one id; note each choice's new ids just before its output.

    SGLang's list of a choice's tokens grows while its output waits for its turn, and the output's words do not. So the
    output's own count says how many of them it has.

    The token that ends a choice has no words. It is noted after its output, so that it comes with the event of the end,
    also where a busy engine sends it together with words.
    """
    seen: dict[int, int] = {}
    first = ""
    if current.whole:
        current.grown[0] = lambda: _output_ids(manager, obj)
    try:
        async for output in outputs:
            ends: list[tuple[int, Any]] = []
            for place, own in enumerate(output if isinstance(output, list) else (output,)):
                choice, ids = own.get("index", place), own.get("output_ids") or ()
                count = min(len(ids), own["meta_info"].get("completion_tokens", len(ids)))
                new = ids[seen.get(choice, 0) : count]
                num_worded = len(new) - (isinstance(output, dict) and _is_ended_by_token(own))
                current.note(choice, new[:num_worded])
                ends.append((choice, new[num_worded:]))
                seen[choice] = count
                current.num_choices = max(current.num_choices, choice + 1)
            if isinstance(output, dict):  # a part of a stream, of one choice
                first = first or output["meta_info"]["id"]
                if output["meta_info"]["id"] != first:
                    output = {**output, "meta_info": {**output["meta_info"], "id": first}}
            yield output
            for choice, ids in ends:
                current.note(choice, ids)
    finally:
        await outputs.aclose()


def _is_ended_by_token(output: Any) -> bool:
    """Return whether a part of a stream is the last, and its last token is one that ends an answer."""
    reason = output["meta_info"].get("finish_reason")
    return isinstance(reason, dict) and reason.get("type") == "stop" and isinstance(reason.get("matched"), int)


def _output_ids(manager: Any, obj: Any) -> list[int]:
    """Return SGLang's own list of a request's tokens so far; empty when it has ended."""
    state = manager.rid_to_state.get(obj.rid) if isinstance(obj.rid, str) else None
    return state.output_ids if state is not None else []


def _counting(handle: Any) -> Any:
    """Wrap ``TokenizerManager._handle_batch_output``, which runs once for each step that has output."""

    @functools.wraps(handle)
    async def handle_and_count(manager: Any, recv_obj: Any) -> None:
        STEPS.num_steps += 1
        await handle(manager, recv_obj)

    return handle_and_count
