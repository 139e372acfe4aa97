"""Small fleets for tests of policies: a router with replicas, and prompts of chained blocks."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from longboat.routing.policies.contract import Choice, RoutingPolicy
from longboat.routing.prefixes.index import DictIndex, PrefixIndex
from longboat.routing.prefixes.prompt import Prompt
from longboat.routing.router import Router
from longboat.simulator.fleet.gateway import Endpoint

BLOCK_TOKENS = 512


def prompt(key: str, words: str, *, tokens: int | None = None, session: str = "") -> Prompt:
    """Make a prompt whose blocks are the letters of ``words``: prompts share the blocks of their common beginning."""
    names = b"".join(blake2b(words[: at + 1].encode(), digest_size=8).digest() for at in range(len(words)))
    ends = [BLOCK_TOKENS * (at + 1) for at in range(len(words))]
    return Prompt(key, tokens or BLOCK_TOKENS * len(words), blocks=names, ends=ends, session=session)


def endpoint(key: str) -> Endpoint:
    """Make an endpoint without requests that takes any number."""
    made = Endpoint(0, key, None, 0)
    made.ready = True
    return made


class Fleet:
    """A router and its replicas."""

    def __init__(self, policy: RoutingPolicy, count: int, index: PrefixIndex | None = None) -> None:
        self.router = Router(policy, DictIndex() if index is None else index)
        self.endpoints = [endpoint(f"replica-{number}") for number in range(count)]
        self.turn = 0
        for each in self.endpoints:
            self.router.load_of(each.key)

    def choose(self, wanted: Prompt, *, now_s: float = 0.0, extra_s: Sequence[float] = ()) -> tuple[str, Choice]:
        self.turn += 1
        if extra_s:
            loads = [self.router.load_of(each.key) for each in self.endpoints]
            choice = self.router.policy.choose(
                wanted, loads, self.router, now_s=now_s, turn=self.turn - 1, extra_s=extra_s
            )
            return loads[choice.at].key, choice
        found = self.router.choose(wanted, self.endpoints, turn=self.turn - 1, now_s=now_s)
        assert found is not None
        return found[0].key, found[1]

    def send(self, wanted: Prompt, *, now_s: float = 0.0) -> str:
        key, choice = self.choose(wanted, now_s=now_s)
        self.router.sent(wanted, key, cached_tokens=choice.cached_tokens, now_s=now_s)
        return key

    def serve(self, wanted: Prompt, *, now_s: float = 0.0, prefill_s: float = 0.1) -> str:
        """Send a request and end it."""
        key = self.send(wanted, now_s=now_s)
        self.router.first_token(wanted, cached_tokens=None, now_s=now_s + prefill_s)
        self.router.ended(wanted, output_tokens=10, now_s=now_s + prefill_s)
        return key
