"""What SGLang's radix tree notes, translated into names of prefixes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longboat_sglang import metrics_folder
from longboat_sglang.prefixes.front_end import Account, apply, space_of
from longboat_sglang.prefixes.tree import FOLLOWED, Sender, endpoint
from longboat_vllm.prefixes.book import PrefixBook
from longboat_vllm.prefixes.current import PREFIXES
from longboat_vllm.prefixes.header import NamedPrompt

PAGE = 4
Space = tuple[str | None, str | None]  # adapter and salt
PLAIN: Space = (None, None)


class Tree:
    """A radix tree's notes in SGLang's form. Its hashes contain the salt and not the adapter."""

    def __init__(self) -> None:
        self.book = PrefixBook(PAGE, 400)

    @staticmethod
    def hashes(tokens: list[int], salt: str | None) -> list[int]:
        return [hash((salt, *tokens[:end])) for end in range(PAGE, len(tokens) + 1, PAGE)]

    def store(self, tokens: list[int], space: Space = PLAIN, start: int = 0, medium: str = "GPU") -> None:
        """Note a node that begins at a page: ``start`` pages of the tokens are in nodes above it."""
        key, salt = space
        pages = self.hashes(tokens, salt)
        parent = pages[start - 1] if start else None
        event = ["block_stored", pages[start:], parent, tokens[start * PAGE :], PAGE, medium, salt, None, key]
        apply(self.book, [event])

    def remove(self, tokens: list[int], space: Space = PLAIN, start: int = 0, medium: str = "GPU") -> None:
        key, salt = space
        apply(self.book, [["block_removed", self.hashes(tokens, salt)[start:], medium, key]])

    def name(self, name: int, tokens: list[int], space: Space = PLAIN) -> None:
        """Note a request whose whole prompt has one name."""
        request = SimpleNamespace(extra_key=None, lora_id=space[0], cache_salt=space[1])
        extra = space_of(request)
        prompt = NamedPrompt(1, 0, (bytes([name] * 8),), array("I", [10]))
        self.book.note(prompt, tokens, (lambda _start, _end: extra) if extra else None)

    @property
    def held(self) -> set[int]:
        return {name[0] for name in self.book.ledger.held_names()}


def tokens(first: int, pages: int) -> list[int]:
    return list(range(first, first + pages * PAGE))


def test_prompt_is_held_from_its_last_page_until_that_is_evicted() -> None:
    tree, prompt = Tree(), tokens(100, 3)
    tree.name(1, prompt)
    assert tree.held == set()
    tree.store(prompt[: 2 * PAGE])
    assert tree.held == set()
    tree.store(prompt, start=2)
    assert tree.held == {1}
    tree.remove(prompt, start=2)
    assert tree.held == set()


def test_node_that_was_split_is_removed_in_parts() -> None:
    tree, long = Tree(), tokens(100, 4)
    short = long[: 2 * PAGE]
    tree.name(1, short)
    tree.name(2, long)
    tree.store(long)
    assert tree.held == {1, 2}
    tree.remove(long, start=2)
    assert tree.held == {1}


@pytest.mark.parametrize("other", [("lora", None), (None, "salt"), ("lora", "salt")])
def test_adapters_and_salts_are_kept_apart(other: Space) -> None:
    tree, prompt = Tree(), tokens(100, 2)
    tree.name(1, prompt)
    tree.name(2, prompt, other)
    tree.store(prompt, other)
    assert tree.held == {2}
    tree.store(prompt)
    assert tree.held == {1, 2}
    tree.remove(prompt, other)
    assert tree.held == {1}


def test_only_the_engines_own_memory_counts() -> None:
    tree, prompt = Tree(), tokens(100, 2)
    tree.name(1, prompt)
    tree.store(prompt)
    tree.store(prompt, medium="CPU")
    tree.remove(prompt, medium="CPU")
    assert tree.held == {1}
    tree.remove(prompt)
    tree.store(prompt, medium="CPU")
    assert tree.held == set()


def test_cleared_cache_holds_nothing_and_fills_again() -> None:
    tree, prompt = Tree(), tokens(100, 2)
    tree.name(1, prompt)
    tree.store(prompt)
    apply(tree.book, [["all_blocks_cleared"]])
    assert tree.held == set()
    tree.store(prompt)
    assert tree.held == {1}


def test_key_of_a_request_is_that_of_its_nodes() -> None:
    def space(**fields: Any) -> Any:
        return space_of(SimpleNamespace(**{"extra_key": None, "lora_id": None, "cache_salt": None, **fields}))

    assert space() is None
    assert space(extra_key="own", lora_id="abc", cache_salt="tenant") == ("ownabc", "tenant")
    assert space(cache_salt="") is None
    assert space_of(SimpleNamespace(lora_id=None)) is None  # a request for embeddings


class Pair:
    """A scheduler's sender and an API server's account, with a real socket between them."""

    def __init__(self) -> None:
        self.notes: list[Any] = []
        self.sender = Sender(self._taken, endpoint())
        self.account = Account()
        manager = SimpleNamespace(rid_to_state={}, load_snapshot_reader=None)
        self.account.offer(manager, {FOLLOWED: {"block_tokens": PAGE, "capacity_tokens": 400}})

    def _taken(self) -> list[Any]:
        taken, self.notes = self.notes, []
        return taken

    def store(self, prompt: list[int]) -> None:
        self.notes.append(("block_stored", Tree.hashes(prompt, None), None, prompt, PAGE, "GPU", None, None, None))
        self.sender.send()

    def request(self, rid: str) -> SimpleNamespace:
        return SimpleNamespace(rid=rid, input_ids=tokens(100, 2), mm_inputs=None, lora_id=None)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    folder = tempfile.mkdtemp()  # short, as the path of a socket must be
    monkeypatch.setenv(metrics_folder.VARIABLE, folder)
    pair = Pair()
    yield pair
    pair.sender._socket.close(linger=0)
    if pair.account._reading is not None:
        pair.account._reading.cancel()
    PREFIXES.book = None
    shutil.rmtree(folder)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 a test's patience
            await asyncio.sleep(0.01)


async def test_notes_from_before_the_first_request_arrive(pair: Pair) -> None:
    book = pair.account.book
    assert book is not None
    book.note(NamedPrompt(1, 0, (b"prompt-1",), array("I", [10])), tokens(100, 2))
    pair.store(tokens(100, 2))
    PREFIXES.begin()
    await until(lambda: book.ledger.held_names() == [b"prompt-1"])


async def test_what_cannot_be_sent_withdraws_all_names_and_no_request_fails(pair: Pair) -> None:
    book = pair.account.book
    assert book is not None
    book.note(NamedPrompt(1, 0, (b"prompt-1",), array("I", [10])), tokens(100, 2))
    PREFIXES.begin()
    pair.store(tokens(100, 2))
    await until(lambda: book.ledger.held_names())
    for note in (object(), "next", "later"):
        pair.notes.append(note)
        pair.sender.send()
    await until(lambda: not book.ledger.held_names())
    assert pair.account.book is PREFIXES.book is None
    pair.account.guarded(pair.account.note, pair.request("a"))


async def test_prompts_count_as_to_be_computed_until_their_first_output(pair: Pair) -> None:
    states, account = pair.account._manager.rid_to_state, pair.account
    snapshot = SimpleNamespace(num_waiting_reqs=1, token_usage=0.25)
    account._manager.load_snapshot_reader = SimpleNamespace(read=lambda _rank: snapshot)
    for rid in ("a", "b", "aborted"):
        states[rid] = None
        account.note(pair.request(rid))
    assert account.load() == (2, 1, 6 * PAGE, 0.25)
    del states["aborted"]
    account.look(SimpleNamespace(rids=["a"], prompt_tokens=[2 * PAGE], cached_tokens=[0]))
    assert account.load() == (1, 1, 2 * PAGE, 0.25)
    assert account._prefills.keys() == {"b"}


def test_engine_without_a_fitting_folder_has_no_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(metrics_folder.VARIABLE, raising=False)
    assert endpoint() == ""
    monkeypatch.setenv(metrics_folder.VARIABLE, str(tmp_path / ("deep" * 30)))
    assert endpoint() == ""
