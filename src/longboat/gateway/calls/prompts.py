"""What routing needs to know of a request, out of its body."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from longboat.gateway.api.prompt_blocks import NO_BLOCKS, prompt_blocks
from longboat.routing.prefixes.prompt import Prompt

if TYPE_CHECKING:
    from longboat.gateway.calls.model_request import Call

__all__ = ("prompt_of",)

_MAX_SESSION: Final = 64
"""Characters of ``user`` that are kept as they are. What a client sends may be as long as a body."""


def prompt_of(call: Call, key: str, *, hashed: bool) -> Prompt:
    """Return the request as routing sees it.

    key: differs from that of every other request of all gateways
    hashed: whether the names of its prefixes are needed
    """
    facts = call.facts
    assert facts is not None
    blocks, ends = prompt_blocks(call.body, facts.kind, _seed(call)) if hashed else NO_BLOCKS
    return Prompt(
        key,
        facts.num_prompt_tokens_estimate,
        blocks=blocks,
        ends=ends,
        max_output_tokens=facts.max_tokens,
        session=_session(facts.user),
    )


def _session(user: str) -> str:
    if len(user) <= _MAX_SESSION:
        return user
    return hashlib.blake2b(user.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _seed(call: Call) -> bytes:
    """Return what keeps the cache of its prompt apart: the model or adapter, and the salt of its tenant."""
    plan, pool = call.plan, call.pool
    if plan is None:
        return seed_of(pool, call.salt)
    if plan.seeded != pool:
        plan.seeded, plan.seed = pool, seed_of(pool, call.salt)
    return plan.seed


def seed_of(pool: str, salt: str | None) -> bytes:
    return f"{pool}\0{salt or ''}".encode()
