"""Turns KV events on in vLLM, and notes in its API server what each named request finds cached.

The events go over Unix sockets in a folder that only this user can enter. ``LONGBOAT_VLLM_PREFIXES=0`` turns all of
this off, and so does a ``--kv-events-config`` of the user, or data parallelism; ``drop=20`` loses every 20th batch of
events, for tests.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import functools
import inspect
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from longboat_vllm.prefixes.book import PrefixBook
from longboat_vllm.prefixes.current import PREFIXES
from longboat_vllm.prefixes.events import EventReader, hashable
from longboat_vllm.prefixes.header import NamedPrompt
from longboat_vllm.prefixes.held_blocks import Extra
from longboat_vllm.prefixes.ledger import Noted
from longboat_vllm.shapes import expect

__all__ = ("SWITCH", "install")

SWITCH = "LONGBOAT_VLLM_PREFIXES"
_LOG = logging.getLogger("vllm.longboat")
_MARK = "_longboat_prefixes"
_SOCKET = "longboat-kv"  # begins the folder's name, which tells our settings from those of a user
_REPORT_MODE = "kv_cache_report_mode"


def install() -> None:
    """Wrap the code that makes the settings, starts the engine, registers requests and counts. May be called again.

    Raises UnexpectedShapeError.
    """
    if os.environ.get(SWITCH) == "0":
        return
    from vllm.config.kv_events import KVEventsConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.output_processor import OutputProcessor, RequestState

    if hasattr(EngineArgs.create_engine_config, _MARK):
        return
    names = ["request", "start_token_idx", "end_token_idx", "start_mm_idx"]
    expect(list(inspect.signature(generate_block_hash_extra_keys).parameters) == names, "blocks have other extra keys")
    expect("endpoint" in KVEventsConfig.__annotations__, "KV events have other settings")
    expect("is_prefilling" in inspect.getsource(RequestState), "requests tell nothing of their prefill")
    expect(list(inspect.signature(OutputProcessor.add_request).parameters)[:2] == ["self", "request"], "add_request")
    EngineArgs.create_engine_config = _with_events(EngineArgs.create_engine_config)
    AsyncLLM.__init__ = _with_book(AsyncLLM.__init__)
    OutputProcessor.add_request = _noting(OutputProcessor.add_request)
    OutputProcessor.update_scheduler_stats = _finding(OutputProcessor.update_scheduler_stats)


def _with_events(create_engine_config: Any) -> Any:
    @functools.wraps(create_engine_config)
    def create_with_events(*args: Any, **kwargs: Any) -> Any:
        from vllm.config.kv_events import KVEventsConfig

        config = create_engine_config(*args, **kwargs)
        if config.kv_events_config is None and _may_tell(config):
            # mode 0700; in the rank's own folder, where it has one, whatever was cached before the fork
            folder = tempfile.mkdtemp(prefix=f"{_SOCKET}-", dir=os.environ.get("TMPDIR"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            config.kv_events_config = KVEventsConfig(
                enable_kv_cache_events=True,
                publisher="zmq",
                endpoint=f"ipc://{folder}/events",
                replay_endpoint=f"ipc://{folder}/replay",
            )
        return config

    setattr(create_with_events, _MARK, True)
    return create_with_events


def _may_tell(config: Any) -> bool:
    caches = bool(getattr(config.cache_config, "enable_prefix_caching", False))
    return caches and config.parallel_config.data_parallel_size == 1


def _with_book(start: Any) -> Any:
    """Wrap ``AsyncLLM.__init__`` so that the book begins with the engine."""

    @functools.wraps(start)
    def start_with_book(engine: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        start(engine, vllm_config, *args, **kwargs)
        events = vllm_config.kv_events_config
        if events is not None and _SOCKET in events.endpoint:
            cache = vllm_config.cache_config
            block_tokens = int(cache.block_size)
            book = PrefixBook(block_tokens, block_tokens * int(cache.num_gpu_blocks or 0))
            _ACCOUNT.book = book
            book.load = _ACCOUNT.load
            reader = EventReader(book, events.endpoint, events.replay_endpoint, _drop_every())
            PREFIXES.offer(book, lambda: _read_events(reader))

    return start_with_book


def _drop_every() -> int:
    word, _, number = os.environ.get(SWITCH, "").partition("=")
    return int(number) if word == "drop" and number.isdecimal() else 0


_READING: set[asyncio.Task[None]] = set()


def _read_events(reader: EventReader) -> None:
    _READING.add(asyncio.get_running_loop().create_task(reader.run()))


class _Prefill(NamedTuple):
    """A named request whose first token has not come."""

    state: Any  # vLLM's own record
    named: NamedPrompt
    noted: Noted


class _Account:
    """The requests of this API server, and the load that they are."""

    def __init__(self) -> None:
        self.book: PrefixBook | None = None
        self.prefills: dict[str, _Prefill] = {}
        self.processor: Any = None
        self.stats: Any = None  # of the last step

    def note(self, processor: Any, request: Any) -> None:
        """Note a request that is registered and not sent to the core yet."""
        named = PREFIXES.take_named()
        token_ids = request.prompt_token_ids
        if self.book is None or named is None or not token_ids or request.prompt_embeds is not None:
            return
        noted = self.book.note(named, token_ids, _extra_of(request))
        self.prefills[request.request_id] = _Prefill(processor.request_states[request.request_id], named, noted)
        if self.book.ledger.unsure and request.sampling_params is not None:
            params = request.sampling_params = copy.copy(request.sampling_params)
            params.extra_args = {**(params.extra_args or {}), _REPORT_MODE: "full"}

    def look(self, processor: Any, stats: Any) -> None:
        """Tell what requests found cached whose first token came with this step."""
        self.processor = processor
        self.stats = stats if stats is not None else self.stats
        for request_id, (state, named, noted) in tuple(self.prefills.items()):
            if not state.is_prefilling:
                del self.prefills[request_id]
                if self.book is not None:
                    self.book.found(named, noted, state.prompt_len, state.num_cached_tokens)
            elif request_id not in processor.request_states:
                del self.prefills[request_id]  # aborted

    def load(self) -> tuple[int, int, int, float]:
        """Return running and waiting requests, prompt tokens to compute, and the used part of the KV cache."""
        if self.processor is None:
            return 0, 0, 0, 0.0
        states = self.processor.request_states
        waiting = min(int(getattr(self.stats, "num_waiting_reqs", 0) or 0), len(states))
        queued = sum(int(state.prompt_len or 0) for state in states.values() if state.is_prefilling)
        cached = sum(prefill.noted.held for prefill in self.prefills.values() if prefill.state.is_prefilling)
        usage = float(getattr(self.stats, "kv_cache_usage", 0.0) or 0.0) if states else 0.0
        return len(states) - waiting, waiting, max(0, queued - cached), round(usage, 3)


_ACCOUNT = _Account()


def _extra_of(request: Any) -> Extra | None:
    """Return what makes the blocks of this request differ from those of others with equal tokens."""
    if not (request.mm_features or request.lora_request or request.cache_salt):
        return None
    from vllm.v1.core import kv_cache_utils

    as_told = getattr(kv_cache_utils, "to_event_extra_keys", None)  # before 0.30, events have the keys as they are

    def extra(start: int, end: int) -> Any:
        keys, _ = kv_cache_utils.generate_block_hash_extra_keys(request, start, end, 0)
        return hashable(keys if as_told is None else (as_told([keys]) or [None])[0])

    return extra


def _guarded(step: Callable[[Any, Any], None], processor: Any, what: Any) -> None:
    """Take a step of the account. A defect ends the account, and no request."""
    if _ACCOUNT.book is None:
        return
    try:
        step(processor, what)
    except Exception:
        _LOG.exception("Longboat: prefixes are not reported any more")
        _ACCOUNT.book.lose()
        _ACCOUNT.book = None


def _noting(add_request: Any) -> Any:
    @functools.wraps(add_request)
    def add_request_and_note(processor: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        add_request(processor, request, *args, **kwargs)
        _guarded(_ACCOUNT.note, processor, request)

    return add_request_and_note


def _finding(update_scheduler_stats: Any) -> Any:
    @functools.wraps(update_scheduler_stats)
    def update_scheduler_stats_and_look(processor: Any, scheduler_stats: Any) -> None:
        update_scheduler_stats(processor, scheduler_stats)
        _guarded(_ACCOUNT.look, processor, scheduler_stats)

    return update_scheduler_stats_and_look
