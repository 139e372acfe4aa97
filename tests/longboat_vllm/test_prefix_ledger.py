"""What an engine tells of named prefixes, against the fake engine's KV memory."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat_fake.engine.blocks import BlockPool, BlockStored, KvEvent, Reservation
from longboat_fake.engine.prefixes import Prefixes
from longboat_vllm.prefixes.header import NamedPrompt, read_prefix_header
from longboat_vllm.prefixes.ledger import PrefixLedger

B = 4


class Engine:
    """The fake engine's KV memory with the ledger, and the set of names that a gateway would have."""

    def __init__(self, num_blocks: int) -> None:
        self.known: set[bytes] = set()
        self.ledger = PrefixLedger(B, self._changed)
        self.pool = BlockPool(num_blocks, B, self._event)

    def _changed(self, stored: bool, names: list[bytes]) -> None:
        self.known.update(names) if stored else self.known.difference_update(names)

    def _event(self, event: KvEvent) -> None:
        if isinstance(event, BlockStored):
            self.ledger.stored(event.hashes, event.parent, event.token_ids, event.block_tokens, event.extras)
        else:
            self.ledger.removed(event.hashes)

    def run(self, prompt: NamedPrompt, tokens: list[int], answer: list[int], salt: str = "") -> tuple[int, int]:
        """Return the tokens that were expected to be cached by what a gateway knows, and those that were."""
        depth = next((at for at, name in enumerate(prompt.names) if name not in self.known), len(prompt.names))
        named = NamedPrompt(prompt.tag, depth, prompt.names, prompt.ends)
        noted = self.ledger.note(named, tokens, lambda start, _end: (salt,) if salt and not start else None)
        taken = self.pool.reserve(tokens, len(tokens) + len(answer), salt=salt, report=self.ledger.unsure)
        assert taken is not None
        self.ledger.found(noted, taken.cached_tokens)
        self.pool.release(taken, tokens + answer)
        return noted.expected, taken.cached_tokens


def prompt_of(messages: list[list[int]], salt: str = "") -> tuple[NamedPrompt, list[int]]:
    """Name each message (a list of tokens of uneven lengths in bytes) as one block."""
    names, ends, end, tokens = [], array("I"), 0, []
    for at, message in enumerate(messages):
        tokens += message
        end += sum(1 + token % 7 for token in message)
        names.append(hash((salt, *map(tuple, messages[: at + 1]))).to_bytes(8, "little", signed=True))
        ends.append(end)
    return NamedPrompt(1, 0, tuple(names), ends), tokens


def conversation(rng: random.Random, system: list[int]) -> Iterator[list[list[int]]]:
    messages = [system]
    for _ in range(rng.randrange(1, 6)):
        messages.append([rng.randrange(1000) for _ in range(rng.randrange(1, 30))])
        yield list(messages)
        messages.append([rng.randrange(1000) for _ in range(rng.randrange(1, 12))])


@pytest.mark.parametrize("num_blocks", [60, 200, 5000])
def test_what_gateways_expect_is_what_requests_find(num_blocks: int) -> None:
    rng = random.Random(num_blocks)
    systems = [[rng.randrange(1000) for _ in range(40)] for _ in range(3)]
    engine, expected_sum, cached_sum, right_sum = Engine(num_blocks), 0, 0, 0
    live = [conversation(rng, rng.choice(systems)) for _ in range(6)]
    for _ in range(600):
        at = rng.randrange(len(live))
        messages = next(live[at], None)
        if messages is None:
            live[at] = conversation(rng, rng.choice(systems))
            continue
        prompt, tokens = prompt_of(messages)
        expected, cached = engine.run(prompt, tokens, [1] * rng.randrange(0, 9))
        expected_sum, cached_sum = expected_sum + expected, cached_sum + cached
        right_sum += min(expected, cached)
    assert cached_sum > 3000
    assert right_sum >= 0.98 * expected_sum
    assert right_sum >= 0.9 * cached_sum


def test_a_shared_beginning_is_placed_exactly_once_two_prompts_parted() -> None:
    engine = Engine(1000)
    system = [6] * 40  # 7 bytes a token, while the other messages have 1: in proportion, it would end much later
    for user in ([7] * 80, [14] * 80, [21] * 80):
        prompt, tokens = prompt_of([system, user])
        last = engine.run(prompt, tokens, [])
    assert last == (40, 40)


def test_a_template_that_changes_what_was_said_costs_the_end_only() -> None:
    engine = Engine(1000)
    first, tokens = prompt_of([[1] * 40, [2] * 10])
    engine.run(first, [*tokens, 998, 999], [])  # the template's last words, which the next turn does not have
    second, tokens = prompt_of([[1] * 40, [2] * 10, [3] * 20])
    engine.run(second, tokens, [])
    third, tokens = prompt_of([[1] * 40, [2] * 10, [3] * 20, [4] * 20])
    assert engine.run(third, tokens, []) == (68, 68)


def test_after_a_loss_what_is_used_again_becomes_known_again() -> None:
    engine = Engine(1000)
    prompt, tokens = prompt_of([[1] * 40, [2] * 20])
    assert not engine.ledger.unsure
    engine.run(prompt, tokens, [])
    engine.known.clear()
    engine.ledger.reset()
    assert engine.run(prompt, tokens, []) == (0, 56)
    assert engine.run(prompt, tokens, []) == (56, 56)
    assert engine.ledger.unsure
    for _ in range(500):
        engine.run(prompt, tokens, [])
    assert not engine.ledger.unsure
    engine.pool.evict_idle()
    assert engine.known == set()


def test_many_prompts_with_a_short_end_of_their_own_keep_few_names_and_the_shared_one() -> None:
    """Their ends need the block that they share, which stays in the cache as long as it is used."""
    engine, system = Engine(100), list(range(4 * B))
    shared = prompt_of([system])[0].names[0]
    for number in range(1000):
        prompt, tokens = prompt_of([system, [1000 + number]])
        engine.run(prompt, tokens, [])
    assert engine.ledger.num_names < 100
    assert set(engine.ledger.held_names()) == engine.known
    assert {shared, prompt.names[-1]} <= engine.known


def test_tenants_with_other_salts_share_nothing() -> None:
    engine = Engine(1000)
    for salt in ("one", "two"):
        prompt, tokens = prompt_of([[1] * 40], salt)
        assert engine.run(prompt, tokens, [], salt) == (0, 0)
        assert engine.run(prompt, tokens, [], salt) == (36, 36)
    assert len(engine.known) == 2


def test_evicted_blocks_take_their_names_along_and_copies_count() -> None:
    said: list[tuple[bool, list[bytes]]] = []
    ledger = PrefixLedger(B, lambda stored, names: said.append((stored, names)))
    prompt, tokens = prompt_of([[1] * 8])
    ledger.note(prompt, tokens)
    for copy in (b"a", b"b"):  # two requests computed the same blocks at once
        ledger.stored([copy + b"1", copy + b"2"], None, tokens, B)
    ledger.removed([b"b2"])
    assert said == [(True, list(prompt.names))]
    ledger.removed([b"a2"])
    assert said[1:] == [(False, list(prompt.names))]
    assert ledger.held_names() == []
    assert ledger.num_names == 0


def test_blocks_of_an_unknown_parent_stay_unknown_and_another_block_size_starts_over() -> None:
    engine = Engine(10)
    prompt, tokens = prompt_of([[1] * 8])
    engine.ledger.note(prompt, tokens)
    engine.ledger.stored([b"x"], b"never seen", tokens[4:], B)
    assert engine.known == set()
    engine.ledger.stored([b"y"], None, tokens, 8)
    assert engine.ledger.block_tokens == 8
    engine.ledger.note(prompt, tokens)
    assert engine.known == set(prompt.names)


@given(st.data())
def test_no_order_of_requests_and_evictions_breaks_the_account(data: st.DataObject) -> None:
    engine = Engine(8)
    running: list[tuple[Reservation, list[int]]] = []
    for _ in range(data.draw(st.integers(1, 20))):
        if running and data.draw(st.booleans()):
            taken, tokens = running.pop()
            engine.pool.release(taken, [*tokens, 0, 0])
            continue
        messages = data.draw(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=3))
        prompt, tokens = prompt_of(messages)
        engine.ledger.note(prompt, tokens)
        reserved = engine.pool.reserve(tokens, len(tokens) + 2)
        if reserved is not None:
            running.append((reserved, tokens))
        assert engine.known == set(engine.ledger.held_names())
    for taken, tokens in running:
        engine.pool.release(taken, tokens)
    engine.pool.evict_idle()
    assert engine.known == set()
    assert engine.ledger.num_names <= 60


def test_the_fake_engine_forgets_what_it_lost() -> None:
    prefixes = Prefixes(100, B)
    pool = BlockPool(100, B, prefixes.take)
    prefixes.lose(1)
    for first in (1, 2, 3):
        prompt, tokens = prompt_of([[first] * 8])
        prefixes.book.note(prompt, tokens)
        assert pool.reserve(tokens, 8) is not None
    assert prefixes.book.ledger.held_names() == list(prompt.names)


def test_headers_are_read_or_refused() -> None:
    import base64

    body = base64.b64encode(b"a" * 16 + array("I", [10, 20]).tobytes())
    prompt = read_prefix_header(b"ff.9." + body)
    assert (prompt.tag, prompt.expected, prompt.names, list(prompt.ends)) == (255, 2, (b"a" * 8, b"a" * 8), [10, 20])
    for wrong in (b"", b"ff", b"zz.1." + body, b"ff.1.AAAA", b"ff.x." + body, b"f" * 17 + b".1." + body):
        with pytest.raises(ValueError):
            read_prefix_header(wrong)
