"""Real SGLang as a model that makes embeddings: by an encoder, and by a language model that is converted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from engines.sglang_node import SGLANG_PYTHON, SglangNode
from engines.test_vllm_serves import plan_on_loopback
from longboat.builtin.models import ensure

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not SGLANG_PYTHON, reason="LONGBOAT_TEST_SGLANG_PYTHON names no environment of SGLang"),
]
TEXTS = ["text about ships", "another about oars", "text about ships"]


@pytest.mark.parametrize(("source", "size"), [("builtin:tiny-embed", 64), ("builtin:tiny", 128)])
def test_texts_get_vectors(sglang_node: SglangNode, tmp_path: Path, source: str, size: int) -> None:
    folder = ensure(source, sglang_node.folder)
    plan = replace(plan_on_loopback(folder, pipeline=1, num_nodes=1), source=source, task="embed")
    with sglang_node.running(plan, tmp_path / "replica.log") as url:
        body = {"model": "tiny", "input": TEXTS}
        headers = {"authorization": "Bearer a-secret"}
        found = httpx.post(f"{url}/v1/embeddings", json=body, headers=headers, timeout=60)
        assert found.status_code == 200, found.text
        one, other, again = (entry["embedding"] for entry in found.json()["data"])
        assert httpx.post(f"{url}/v1/embeddings", json=body, timeout=60).status_code in (401, 403)
    assert len(one) == len(other) == size
    assert one == pytest.approx(again, abs=1e-4)
    assert one != pytest.approx(other, abs=1e-3)
    assert found.json()["usage"]["prompt_tokens"] > 6
