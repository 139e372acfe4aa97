"""Makes conversations: turns that each send all that was said before, below system prompts that many share."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields

from longboat.core.errors import UserInputError
from longboat.simulator.traces.block_names import chained, mix
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("PREFIX", "Sessions", "generate_sessions", "parse_sessions")

PREFIX = "sessions:"


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """The load to make. Lengths and pauses are means of exponential distributions, but for the system prompts'.

    Turns are the mean of a geometric one; ``longest`` ends some conversations before.
    """

    rate: float = 1.0  # conversations that begin each second
    systems: int = 4  # system prompts, of which each conversation has one
    system: int = 1000  # tokens of a system prompt
    turns: float = 5.0  # of a conversation
    user: float = 150.0  # tokens that a turn adds
    output: float = 200.0  # tokens of a response
    think: float = 10.0  # seconds from a response's end to the next turn
    token: float = 0.02  # seconds that a token of the response is taken to need
    block: int = 64  # tokens of a block
    hours: float = 1.0  # in which conversations begin
    longest: int = 32_000  # tokens of a prompt; a conversation ends before it would be longer


def parse_sessions(text: str) -> Sessions:
    """Read ``sessions:rate=4,system=2000,turns=6``. Raises UserInputError that names the mistake."""
    kinds = {one.name: float if isinstance(one.default, float) else int for one in fields(Sessions)}
    known = ", ".join(f"{one.name}={one.default:g}" for one in fields(Sessions))
    values: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.removeprefix(PREFIX).split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        if name not in kinds:
            raise UserInputError(f"sessions have no setting {name!r}", hint=f"they have {known}")
        try:
            values[name] = kinds[name](value)
        except ValueError:
            what = "a number" if kinds[name] is float else "a whole number"
            raise UserInputError(f"{part!r}: {value!r} is not {what}", hint=f"they have {known}") from None
        if not 0 < values[name] < 1e9 and not (name in ("system", "think", "token") and values[name] == 0):
            raise UserInputError(f"{part!r} is not above 0 and below 1e9", hint=f"they have {known}")
    return Sessions(**values)  # type: ignore[arg-type]


class _Conversation:
    """One conversation under way."""

    __slots__ = ("name", "number", "said", "system", "turns_left", "whole")

    def __init__(self, number: int, system: int, turns: int) -> None:
        self.number = number
        self.name = f"s{number}"
        self.system = system
        self.turns_left = turns
        self.said = 0  # tokens of all turns so far, with the system prompt
        self.whole: list[bytes] = []  # names of its whole blocks so far


def generate_sessions(load: Sessions, seed: int) -> Iterator[TraceRequest]:
    """Yield the requests of all conversations in the order of their times. The same seed gives the same ones."""
    draw = random.Random(seed)
    under_way: list[tuple[float, int, _Conversation]] = []
    started, start_s = 0, draw.expovariate(load.rate)
    while under_way or start_s <= load.hours * 3600:
        if start_s <= load.hours * 3600 and (not under_way or start_s <= under_way[0][0]):
            turns = _turns(load.turns, draw)
            talk = _Conversation(started, draw.randrange(load.systems), turns)
            heapq.heappush(under_way, (start_s, started, talk))
            started += 1
            start_s += draw.expovariate(load.rate)
            continue
        now_s, number, talk = heapq.heappop(under_way)
        request = _turn(talk, load, now_s, draw, seed)
        if request is None:
            continue
        yield request
        talk.turns_left -= 1
        if talk.turns_left:
            pause_s = load.token * request.output_tokens + (draw.expovariate(1.0 / load.think) if load.think else 0.0)
            heapq.heappush(under_way, (now_s + pause_s, number, talk))


def _turns(mean: float, draw: random.Random) -> int:
    """Draw a number of turns by the geometric distribution: after each turn, the next comes by the same chance."""
    return 1 + int(draw.expovariate(-math.log1p(-1.0 / mean))) if mean > 1.0 else 1


def _turn(talk: _Conversation, load: Sessions, now_s: float, draw: random.Random, seed: int) -> TraceRequest | None:
    prompt = max(talk.said, load.system) + 1 + int(draw.expovariate(1.0 / load.user))
    output = 1 + int(draw.expovariate(1.0 / load.output))
    if prompt + output > load.longest:
        return None
    block = load.block
    _grow(talk, load, prompt // block, seed)
    names, ends = list(talk.whole), list(range(block, prompt + 1, block))
    if prompt % block:
        last = names[-1] if names else b"\0" * 8
        names.append(chained(int.from_bytes(last, "little"), talk.number + 1 << 24 ^ prompt).to_bytes(8, "little"))
        ends.append(prompt)
    request = TraceRequest(now_s, prompt, output, blocks=b"".join(names), ends=ends, session=talk.name)
    _grow(talk, load, (prompt + output) // block, seed)
    request.answer_blocks = b"".join(talk.whole[prompt // block :])
    request.answer_ends = range((prompt // block + 1) * block, prompt + output + 1, block)
    talk.said = prompt + output
    return request


def _grow(talk: _Conversation, load: Sessions, blocks: int, seed: int) -> None:
    """Name the conversation's whole blocks up to a count: those of the system prompt are the same for all."""
    for at in range(len(talk.whole), blocks):
        own = 0 if (at + 1) * load.block <= load.system else talk.number + 1
        before = int.from_bytes(talk.whole[-1], "little") if talk.whole else mix(seed ^ talk.system << 32)
        talk.whole.append(chained(before, own << 24 ^ at).to_bytes(8, "little"))
