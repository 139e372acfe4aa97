"""Follows the radix tree of SGLang's scheduler, and sends to the API server which pages of tokens come and go.

SGLang's tree (its core in Rust) notes this itself, as plain tuples, where its KV events are on. They are on here
without SGLang's publisher: the tuples of a step go in one message over a Unix socket, in a folder that only this user
can enter. Nothing is lost unless the API server takes no message for ``_MOST_WAITING`` steps, or a defect shows; the
feed then ends.

Pages of fewer than ``LEAST_PAGE`` tokens are not followed: with pages of one token, SGLang hashes each token.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from longboat_sglang import metrics_folder
from longboat_vllm.shapes import expect

__all__ = ("FOLLOWED", "LEAST_PAGE", "SWITCH", "Sender", "endpoint", "install")

SWITCH = "LONGBOAT_SGLANG_PREFIXES"
FOLLOWED = "longboat_prefixes"
"""What the scheduler says of itself when it is ready, where its tree is followed."""
LEAST_PAGE = 8
_MOST_WAITING = 10_000
_MOST_PATH = 107  # bytes of the path of a Unix socket
_MARK = "_longboat_prefixes"
_LOG = logging.getLogger("sglang.srt.longboat")


def endpoint() -> str:
    """Return the address of the API server's socket; empty where this engine has no folder, or one that is too deep."""
    folder = os.environ.get(metrics_folder.VARIABLE, "")
    path = f"{folder}/kv"
    return f"ipc://{path}" if folder and len(os.fsencode(path)) <= _MOST_PATH else ""


class Sender:
    """Sends what a tree noted since the last time."""

    def __init__(self, take: Callable[[], Sequence[Any]], address: str) -> None:
        import zmq
        from msgspec import msgpack

        self._take = take
        self._encode = msgpack.Encoder().encode
        self._socket: Any = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.set_hwm(_MOST_WAITING)
        self._socket.connect(address)
        self._at_once = zmq.NOBLOCK
        self._fails = self._has_ended = False

    def send(self) -> None:
        """Send what is new. What cannot be sent ends the feed, and no request: an empty message says so."""
        try:
            events = self._take()
            if not events or self._has_ended:
                return
            self._socket.send(b"" if self._fails else self._encode(events), self._at_once)
            self._has_ended = self._fails
        except Exception:
            if not self._fails:
                _LOG.exception("Longboat: prefixes are not reported any more")
            self._fails = True


_SENDERS: list[Sender] = []
"""The sender of this process's scheduler, where it has one."""


def install() -> None:
    """Wrap the making of the tree, and the places where SGLang publishes events. Raises UnexpectedShapeError."""
    if os.environ.get(SWITCH) == "0":
        return
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.scheduler_components.kv_events_publisher import SchedulerKvEventsPublisher
    from sglang.srt.mem_cache import unified_radix_cache
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

    if hasattr(unified_radix_cache.create_tree_core, _MARK):
        return
    fields = CacheInitParams.__dataclass_fields__
    known = ("disable", "page_size", "is_eagle", "enable_kv_cache_events", "tree_components")
    expect(all(name in fields for name in known), "trees are made with other settings")
    unified_radix_cache.create_tree_core = _following(unified_radix_cache.create_tree_core)
    SchedulerKvEventsPublisher.publish_kv_events = _publishing(SchedulerKvEventsPublisher.publish_kv_events)
    Scheduler.get_init_info = _telling(Scheduler.get_init_info)


def _following(create: Any) -> Any:
    """Wrap ``create_tree_core`` so that the tree notes what comes and goes."""

    @functools.wraps(create)
    def create_and_follow(name: str, params: Any, components: Any) -> Any:
        try:
            core = _followed(create, params, components) if name == "rust" and _may_follow(params) else None
        except Exception:  # the engine starts without a feed
            _LOG.exception("Longboat: prefixes are not reported")
            core = None
        return create(name, params, components) if core is None else core

    setattr(create_and_follow, _MARK, True)
    return create_and_follow


def _followed(create: Any, params: Any, components: Any) -> Any:
    """Return a tree whose notes are sent; None where they cannot be taken, as they would fill the memory."""
    core = create("rust", replace(params, enable_kv_cache_events=True), components)
    take = getattr(getattr(core, "_binding", None), "take_events", None)
    if take is None:
        return None
    _SENDERS.append(Sender(take, endpoint()))
    return core


def _may_follow(params: Any) -> bool:
    """Return whether this tree's pages are blocks of a prompt, and this rank speaks for the engine."""
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.runtime_context import get_parallel

    told = not params.disable and not params.enable_kv_cache_events and bool(endpoint()) and not _SENDERS
    plain = tuple(params.tree_components or ()) == (ComponentType.FULL,) and not params.is_eagle
    if not (told and plain and params.page_size >= LEAST_PAGE):
        return False
    ranks = get_parallel()
    is_whole = (ranks.dp_size or 1) == 1 and (ranks.attn_dp_size or 1) == 1
    return is_whole and ranks.pp_rank == ranks.attn_tp_rank == ranks.attn_cp_rank == 0


def _publishing(publish: Any) -> Any:
    """Wrap ``publish_kv_events``, which runs after each prefill, after some steps, and where nothing is to be done."""

    @functools.wraps(publish)
    def publish_and_send(publisher: Any) -> None:
        publish(publisher)
        for sender in _SENDERS:
            sender.send()

    return publish_and_send


def _telling(get_init_info: Any) -> Any:
    """Wrap ``Scheduler.get_init_info``, by which the API server learns that the scheduler is ready."""

    @functools.wraps(get_init_info)
    def get_init_info_and_tell(scheduler: Any) -> dict[str, Any]:
        info: dict[str, Any] = get_init_info(scheduler)
        if _SENDERS:
            info[FOLLOWED] = {
                "block_tokens": int(scheduler.tree_cache.page_size),
                "capacity_tokens": int(scheduler.max_total_num_tokens),
            }
        return info

    return get_init_info_and_tell
