"""LoRA adapters in SGLang's API server: the supervisor says which ones there are, and each request says which contents.

The paths and headers are those of ``longboat_vllm.adapters``. SGLang loads an adapter under ``NAME@REVISION``, keeps
the most recently used ones, and reads the others from their paths again when a request asks for them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from contextvars import ContextVar
from typing import Any

from longboat_vllm.shapes import expect

__all__ = ("DESK", "AdapterDesk", "install", "name_adapter")

_WANTED: ContextVar[str] = ContextVar("longboat_sglang_adapter", default="")
"""``NAME@REVISION`` of the running request; empty: the model itself."""
_MARK = "_longboat_adapters"
_MARKER = "@"
_TRIES = 8


class AdapterDesk:
    """The adapters of one API server."""

    def __init__(self) -> None:
        self.manager: Any = None  # SGLang's ``TokenizerManager``; None until the server is set up
        self._known: set[str] = set()
        self._lock = asyncio.Lock()

    def has(self, wanted: str) -> bool:
        """Return whether this ``NAME@REVISION`` can be asked for."""
        return wanted in self._known

    def choose(self, wanted: str) -> Any:
        """Let the running request use this ``NAME@REVISION``. Return the token for ``forget``."""
        return _WANTED.set(wanted)

    def forget(self, token: Any) -> None:
        """Undo ``choose``."""
        _WANTED.reset(token)

    async def take(self, _app: Any, document: Any) -> tuple[int, dict[str, Any]]:
        """Make these adapters the known ones. Return status and document of the response."""
        if self.manager is None or not getattr(self.manager, "enable_lora", False):
            return 501, {"error": {"message": "this SGLang was started without adapters"}}
        try:
            asked = {f"{a['name']}{_MARKER}{a['revision']}": str(a["path"]) for a in document["adapters"]}
        except (KeyError, TypeError) as error:
            return 400, {"error": {"message": f"a list of adapters is expected: {error!r}"}}
        async with self._lock:
            return 200, await self._take(asked)

    async def _take(self, asked: dict[str, str]) -> dict[str, Any]:
        problems = {}
        for key, path in asked.items():
            if key not in self._known:
                problem = await self._load(key, path)
                if problem:
                    problems[key] = problem
                else:
                    self._known.add(key)
        for key in self._known - set(asked):
            self.manager.lora_ref_cache.pop(key, None)  # it leaves the memory when others need the room
        self._known &= set(asked)
        loaded = self.manager.lora_registry.get_all_adapters()
        return {"known": sorted(self._known), "held": sorted(self._known & set(loaded)), "problems": problems}

    async def _load(self, key: str, path: str) -> str:
        """Load an adapter; return what is wrong with it, empty where nothing is."""
        from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput

        loaded = self.manager.lora_registry.get_all_adapters()
        if key in loaded:
            self.manager.lora_ref_cache[key] = loaded[key]
            return ""
        try:
            result = await self.manager.load_lora_adapter(LoadLoRAAdapterReqInput(lora_name=key, lora_path=path))
        except Exception as error:  # SGLang's own words about a file that it cannot use
            return str(error) or type(error).__name__
        return "" if result.success else str(result.error_message)


DESK = AdapterDesk()
"""The desk of this process's API server."""


def name_adapter(obj: Any) -> None:
    """Let a request of SGLang use the adapter of its header, and never one that its body names."""
    if hasattr(obj, "lora_path"):
        obj.lora_path = _WANTED.get() or None


def install() -> None:
    """Wrap the search for a request's adapter. Raises UnexpectedShapeError."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    resolve = TokenizerManager._resolve_lora_path
    if hasattr(resolve, _MARK):
        return
    expect(inspect.iscoroutinefunction(resolve), "adapters are found elsewhere")
    TokenizerManager._resolve_lora_path = _resolving(resolve)


def _resolving(resolve: Any) -> Any:
    """Wrap ``TokenizerManager._resolve_lora_path``: an adapter that is given up in between is loaded once more."""

    @functools.wraps(resolve)
    async def resolve_again(manager: Any, obj: Any) -> Any:
        for left in reversed(range(_TRIES)):
            try:
                await resolve(manager, obj)
                return
            except ValueError as error:
                if not left or "are not loaded" not in str(error):
                    raise

    setattr(resolve_again, _MARK, True)
    return resolve_again
