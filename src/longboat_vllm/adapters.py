"""LoRA adapters in vLLM's API server: the supervisor says which ones there are, and each request says which contents.

``POST /longboat/v1/adapters`` takes the whole list, ``{"adapters": [{"name", "revision", "path"}]}``, and answers with
what is known afterwards. An adapter is known by name and revision together, so that two contents of one name can serve
side by side while requests on the older one end. vLLM itself keeps the most recently used ones, and reads the others
from their paths again when a request asks for them; the bytes at a path therefore never change.

A request of the gateway carries ``x-longboat-adapter: NAME@REVISION`` beside its body.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from contextvars import ContextVar
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("PATH", "AdapterDesk", "mend_plain_rows_on_cpu", "mend_prompt_logprobs_on_cpu")

PATH = "/longboat/v1/adapters"

_WANTED: ContextVar[str] = ContextVar("longboat_adapter", default="")
"""``NAME@REVISION`` of the running request; empty: any revision will do."""
_MARK = "_longboat_adapters"
_MARKER = "@"


class _Requests(dict[str, Any]):
    """vLLM's own table of adapters by name; a request that names a revision finds exactly that one."""

    def __init__(self) -> None:
        super().__init__()
        self.by_revision: dict[str, Any] = {}  # ``NAME@REVISION`` → vLLM's request for it

    def __contains__(self, name: object) -> bool:
        return self.get(str(name)) is not None

    def __getitem__(self, name: str) -> Any:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        wanted = _WANTED.get()
        if wanted.rpartition(_MARKER)[0] == name:
            return self.by_revision.get(wanted, default)
        return super().get(name, default)


class AdapterDesk:
    """The adapters of one API server."""

    def __init__(self) -> None:
        self._known: _Requests | None = None
        self._lock = asyncio.Lock()

    def has(self, wanted: str) -> bool:
        """Return whether this ``NAME@REVISION`` can be asked for."""
        return self._known is not None and wanted in self._known.by_revision

    def choose(self, wanted: str) -> Any:
        """Let the running request use this ``NAME@REVISION``. Return the token for ``forget``."""
        return _WANTED.set(wanted)

    def forget(self, token: Any) -> None:
        """Undo ``choose``."""
        _WANTED.reset(token)

    async def take(self, app: Any, document: Any) -> tuple[int, dict[str, Any]]:
        """Make these adapters the known ones. Return status and document of the response."""
        models = getattr(getattr(app, "state", None), "openai_serving_models", None)
        if models is None or not hasattr(models, "lora_requests"):
            return 501, {"error": {"message": "this vLLM keeps its adapters elsewhere"}}
        try:
            asked = {f"{a['name']}{_MARKER}{a['revision']}": a for a in document["adapters"]}
        except (KeyError, TypeError) as error:
            return 400, {"error": {"message": f"a list of adapters is expected: {error!r}"}}
        async with self._lock:
            return 200, await self._take(models, asked)

    async def _take(self, models: Any, asked: dict[str, Any]) -> dict[str, Any]:
        known = self._known_of(models)
        problems = {}
        for key, entry in asked.items():
            if key not in known.by_revision:
                try:
                    known.by_revision[key] = await _added(models, key, str(entry["path"]))
                except Exception as error:  # vLLM's own words about a file that it cannot use
                    problems[key] = str(error) or type(error).__name__
        for key in set(known.by_revision) - set(asked):
            del known.by_revision[key]
        dict.clear(known)
        for key in asked:  # a later entry of the same name is the newer one
            if key in known.by_revision:
                dict.__setitem__(known, key.rpartition(_MARKER)[0], known.by_revision[key])
        return {"known": sorted(known.by_revision), "held": await _held(models, known), "problems": problems}

    def _known_of(self, models: Any) -> _Requests:
        if self._known is None or models.lora_requests is not self._known:
            self._known = models.lora_requests = _Requests()
            models.model_name = _plain_names(models.model_name)
        return self._known


async def _added(models: Any, key: str, path: str) -> Any:
    """Let the engine load an adapter: it refuses here what would end it in the middle of a step."""
    from vllm.lora.request import LoRARequest

    request = LoRARequest(lora_name=key, lora_int_id=models.lora_id_counter.inc(1), lora_path=path)
    await models.engine_client.add_lora(request)
    return request


async def _held(models: Any, known: _Requests) -> list[str]:
    """Return the keys of the adapters that the engine has in memory now."""
    numbers = set(await models.engine_client.list_loras())
    return sorted(key for key, request in known.by_revision.items() if request.lora_int_id in numbers)


def _plain_names(model_name: Any) -> Any:
    """Wrap ``model_name`` so that answers carry the adapter's name without its revision."""

    @functools.wraps(model_name)
    def plain_model_name(lora_request: Any = None) -> str:
        name = str(model_name(lora_request))
        return name.rpartition(_MARKER)[0] if lora_request is not None and _MARKER in name else name

    return plain_model_name


def mend_plain_rows_on_cpu() -> None:
    """Let rows without an adapter be computed without one, also beside rows that have one.

    Such rows have the index -1, by which vLLM 0.32 on CPU takes the last slot: a request for the model itself was
    answered by another request's adapter. Can be dropped when ``bgmv_shrink`` leaves these rows out.
    """
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    shrink = lora_ops.bgmv_shrink
    if hasattr(shrink, _MARK):
        return
    expect("lora_b_weights[lora_indices_tensor]" in inspect.getsource(shrink), "adapters are looked up otherwise")
    expect(punica_cpu.bgmv_shrink is shrink, "the CPU's layers multiply elsewhere")

    @functools.wraps(shrink)
    def shrink_with_adapters_only(inputs: Any, weights: Any, output: Any, indices: Any, scaling: float = 1.0) -> None:
        shrink(inputs, weights, output, indices, scaling)
        output[indices < 0] = 0.0

    setattr(shrink_with_adapters_only, _MARK, True)
    lora_ops.bgmv_shrink = punica_cpu.bgmv_shrink = shrink_with_adapters_only


def mend_prompt_logprobs_on_cpu() -> None:
    """Refuse log-probabilities of prompts where adapters are enabled: vLLM's engine core would end.

    vLLM 0.32 on CPU applies an adapter to the head for as many rows as requests are sampled, and a prompt's
    log-probabilities have a row for each of its tokens. Can be dropped when vLLM maps those rows too.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    generate = AsyncLLM.generate
    if hasattr(generate, _MARK):
        return

    @functools.wraps(generate)
    def generate_unless_fatal(engine: Any, prompt: Any, sampling_params: Any, *args: Any, **kw: Any) -> Any:
        if getattr(sampling_params, "prompt_logprobs", None) is not None and _has_adapters(engine):
            raise ValueError(
                "prompt_logprobs (and echo with logprobs) cannot be computed by an engine that serves adapters on "
                "CPUs: leave it out, or ask a model without adapters"
            )
        return generate(engine, prompt, sampling_params, *args, **kw)

    setattr(generate_unless_fatal, _MARK, True)
    AsyncLLM.generate = generate_unless_fatal


def _has_adapters(engine: Any) -> bool:
    return getattr(getattr(engine, "vllm_config", None), "lora_config", None) is not None
