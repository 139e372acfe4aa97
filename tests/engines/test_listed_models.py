"""What engines say of their models at ``/v1/models``, in the forms of the engines that are served."""

from __future__ import annotations

import json

import pytest

from longboat.engines.listed_models import listed_models


@pytest.mark.parametrize(
    ("card", "context_tokens"),
    [
        ({"id": "m", "object": "model", "max_model_len": 4096}, 4096),  # vLLM, SGLang
        ({"id": "m", "meta": {"n_ctx": 2048, "n_ctx_train": 4096}}, 2048),  # llama.cpp
        ({"id": "m", "max_model_len": None, "meta": None}, 0),
        ({"id": "m", "max_model_len": True}, 0),
        ({"id": "m", "max_model_len": "4096"}, 0),
        ({"id": "m"}, 0),
    ],
)
def test_a_model_is_listed_with_the_length_of_its_context(card: dict[str, object], context_tokens: int) -> None:
    assert listed_models(json.dumps({"data": [card]}).encode()) == {"m": context_tokens}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": null}', b'{"data": [1]}', b'{"data": [{}]}', b"\xff"])
def test_a_body_of_another_form_lists_no_models(body: bytes) -> None:
    assert listed_models(body) == {}
