"""Keeps the ledger of prefixes in SGLang's API server: notes named requests, and reads what the tree tells."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from longboat_sglang.prefixes.tree import FOLLOWED, SWITCH, endpoint
from longboat_vllm.prefixes.book import PrefixBook
from longboat_vllm.prefixes.current import PREFIXES
from longboat_vllm.prefixes.header import NamedPrompt
from longboat_vllm.prefixes.ledger import Noted
from longboat_vllm.shapes import expect

__all__ = ("ACCOUNT", "Account", "apply", "install", "space_of")

_MARK = "_longboat_prefixes"
_LOG = logging.getLogger("sglang.srt.longboat")
_ON_DEVICE = "GPU"  # SGLang's word for the engine's own memory, on CPUs too


def apply(book: PrefixBook, events: Sequence[Sequence[Any]]) -> None:
    """Take the events of a step, as SGLang's tree notes them.

    SGLang's hashes of pages contain the tenant's salt, but not the adapter (``extra_key``).
    """
    for kind, *rest in events:
        if kind == "block_stored":
            hashes, parent, token_ids, page_tokens, medium, salt, _session, key = rest
            if medium == _ON_DEVICE:
                space = (key or None, salt or None)
                extras = [space] * len(hashes) if any(space) else None
                first = None if parent is None else (parent, key)
                book.ledger.stored([(page, key) for page in hashes], first, token_ids, page_tokens, extras)
        elif kind == "block_removed":
            hashes, medium, key = rest
            if medium == _ON_DEVICE:
                book.ledger.removed([(page, key) for page in hashes])
        elif kind == "all_blocks_cleared":
            book.clear()


def space_of(request: Any) -> tuple[str | None, str | None] | None:
    """Return what makes the pages of this request differ from those of others with equal tokens: adapter and salt."""
    key, salt = getattr(request, "extra_key", None), getattr(request, "cache_salt", None)
    if request.lora_id is not None:
        key = (key or "") + request.lora_id  # as SGLang's scheduler does
    space = (key or None, salt or None)
    return space if any(space) else None


class _Prefill(NamedTuple):
    """A request whose first output has not come."""

    tokens: int
    named: NamedPrompt | None
    noted: Noted


class Account:
    """The requests of this API server, and the load that they are."""

    def __init__(self) -> None:
        self.book: PrefixBook | None = None
        self._manager: Any = None  # SGLang's ``TokenizerManager``
        self._prefills: dict[str, _Prefill] = {}
        self._reading: asyncio.Task[None] | None = None

    def offer(self, manager: Any, told: Mapping[str, Any]) -> None:
        """Begin the book, where the scheduler's tree is followed. told: what the scheduler says of itself"""
        if FOLLOWED not in told:
            return
        self._manager, self.book = manager, PrefixBook(**told[FOLLOWED])
        self.book.load = self.load
        PREFIXES.offer(self.book, self._read)

    def note(self, request: Any) -> None:
        """Note a request that is not sent to the scheduler yet."""
        named, token_ids = PREFIXES.take_named(), request.input_ids
        if self.book is None or not token_ids:
            return
        if request.mm_inputs is not None:
            named = None  # the tree knows other tokens in the places of images
        noted, space = Noted(0, 0), space_of(request)
        if named is not None:
            noted = self.book.note(named, token_ids, (lambda _start, _end: space) if space else None)
        self._prefills[request.rid] = _Prefill(len(token_ids), named, noted)

    def look(self, output: Any) -> None:
        """Tell what requests found cached whose first output came."""
        for at, rid in enumerate(output.rids):
            prefill = self._prefills.pop(rid, None)
            if self.book is not None and prefill is not None and prefill.named is not None:
                self.book.found(prefill.named, prefill.noted, output.prompt_tokens[at], output.cached_tokens[at])
        for rid in self._prefills.keys() - self._manager.rid_to_state.keys():
            del self._prefills[rid]  # aborted

    def load(self) -> tuple[int, int, int, float]:
        """Return running and waiting requests, prompt tokens to compute, and the used part of the cache."""
        states, snapshot = self._manager.rid_to_state, self._manager.load_snapshot_reader.read(0)
        waiting = min(snapshot.num_waiting_reqs if snapshot else 0, len(states))
        queued = sum(p.tokens - p.noted.held for rid, p in self._prefills.items() if rid in states)
        usage = snapshot.token_usage if snapshot and states else 0.0
        return len(states) - waiting, waiting, queued, round(usage, 3)

    def guarded(self, step: Callable[[Any], object], what: Any) -> None:
        """Take a step of the account. A defect ends the account, and no request."""
        if self.book is None:
            return
        try:
            step(what)
        except Exception:
            _LOG.exception("Longboat: prefixes are not reported any more")
            book, self.book = self.book, None
            PREFIXES.book = None
            with contextlib.suppress(Exception):
                book.lose()

    def _read(self) -> None:
        if self.book is not None:
            self._reading = asyncio.get_running_loop().create_task(self._take(self.book))

    async def _take(self, book: PrefixBook) -> None:
        """Take what the tree tells, until the server ends. What comes after a defect is thrown away."""
        import zmq
        import zmq.asyncio
        from msgspec import msgpack

        socket = zmq.asyncio.Context.instance().socket(zmq.PULL)
        decode = msgpack.Decoder().decode
        try:
            self.guarded(socket.bind, endpoint())
            while True:
                message = await socket.recv()
                if self.book is book:
                    self.guarded(lambda data: apply(book, decode(data)), message)
        finally:
            socket.close(linger=0)


ACCOUNT = Account()
"""The account of this process's API server."""


def install() -> None:
    """Wrap the code that sends requests and receives their output. Raises UnexpectedShapeError."""
    if os.environ.get(SWITCH) == "0":
        return
    from sglang.srt.managers.io_struct import BatchTokenIDOutput, TokenizedGenerateReqInput
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    if hasattr(TokenizerManager._send_one_request, _MARK):
        return
    _expect_fields(TokenizedGenerateReqInput, ("rid", "input_ids", "mm_inputs", "lora_id", "extra_key", "cache_salt"))
    _expect_fields(BatchTokenIDOutput, ("rids", "prompt_tokens", "cached_tokens"))
    expect("load_snapshot_reader" in inspect.getsource(TokenizerManager), "the scheduler's load is elsewhere")
    TokenizerManager._send_one_request = _noting(TokenizerManager._send_one_request)
    TokenizerManager._handle_batch_output = _finding(TokenizerManager._handle_batch_output)


def _expect_fields(kind: Any, names: tuple[str, ...]) -> None:
    known = inspect.signature(kind).parameters
    missing = [name for name in names if name not in known]
    expect(not missing, f"{kind.__name__} has no {', '.join(missing)}")


def _noting(send: Any) -> Any:
    @functools.wraps(send)
    async def note_and_send(manager: Any, tokenized_obj: Any) -> None:
        ACCOUNT.guarded(ACCOUNT.note, tokenized_obj)
        await send(manager, tokenized_obj)

    setattr(note_and_send, _MARK, True)
    return note_and_send


def _finding(handle: Any) -> Any:
    @functools.wraps(handle)
    async def look_and_handle(manager: Any, recv_obj: Any) -> None:
        ACCOUNT.guarded(ACCOUNT.look, recv_obj)
        await handle(manager, recv_obj)

    return look_and_handle
