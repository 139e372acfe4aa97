"""Where the conformance suite sends its requests: each engine, straight and through a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anthropic
import openai
import pytest
from conformance_lab import Engines, Place, Target, gateway_before
from engine_processes import EngineProcess, fake, vllm

from engines.vllm_node import ENGINE_PYTHON, VllmNode

_OPTIONAL_PATHS = ("--enable-scale-out", "--enable-tokenizer-info-endpoint")
_VLLM = pytest.param(
    "vllm",
    marks=[
        pytest.mark.engine,
        pytest.mark.timeout(500),
        pytest.mark.skipif(
            not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"
        ),
    ],
)


@pytest.fixture(scope="session", params=["fake", _VLLM])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    folder: Path = tmp_path_factory.mktemp("engines")
    with ExitStack() as stack:
        if request.param == "fake":
            chat, pooling = (stack.enter_context(fake(name, folder)) for name in ("tiny", "tiny-embed"))
            audio: EngineProcess | None = chat
        else:
            node: VllmNode = request.getfixturevalue("vllm_node")
            chat = stack.enter_context(vllm(node, "tiny", folder, *_OPTIONAL_PATHS))
            pooling = stack.enter_context(vllm(node, "tiny-embed", folder, "--runner", "pooling", "--convert", "embed"))
            source = "builtin:tiny-audio"
            audio = stack.enter_context(vllm(node, "tiny-audio", folder, source=source)) if _decodes_audio() else None
        yield Engines(kind=request.param, chat=chat, pooling=pooling, audio=audio)


def _decodes_audio() -> bool:
    return any(Path(ENGINE_PYTHON).parent.parent.glob("lib/python3*/site-packages/av"))


@pytest.fixture(scope="session", params=["direct", "gateway"])
def target(request: pytest.FixtureRequest, engines: Engines) -> Iterator[Target]:
    if request.param == "direct":
        yield _target(engines, "")
        return
    with gateway_before(*engines.all()) as url:
        yield _target(engines, url)


def _target(engines: Engines, gateway: str) -> Target:
    """Return what tests talk to: the engines themselves, or a gateway in front of them."""
    chat, pooling, audio = (
        engine and Place(url=gateway or engine.url, model=engine.model)
        for engine in (engines.chat, engines.pooling, engines.audio)
    )
    assert chat
    assert pooling
    return Target(engine=engines.kind, through_gateway=bool(gateway), chat=chat, pooling=pooling, audio=audio)


@pytest.fixture
def chat(target: Target) -> Place:
    return target.chat


@pytest.fixture
def pooling(target: Target) -> Place:
    return target.pooling


@pytest.fixture
def audio(target: Target) -> Place:
    if target.audio is None:
        pytest.skip("the engine's environment has no PyAV: longboat engines install vllm")
    return target.audio


@pytest.fixture
def client(chat: Place) -> Iterator[openai.OpenAI]:
    with chat.openai() as made:
        yield made


@pytest.fixture
def claude(chat: Place) -> Iterator[anthropic.Anthropic]:
    with chat.anthropic() as made:
        yield made
