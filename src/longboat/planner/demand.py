"""What is asked of all machines together: lengths, users, and how quick answers must be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from longboat.catalog.names import nearest_names
from longboat.core.errors import UserInputError
from longboat.planner.predict.load import Load as Traffic
from longboat.planner.split_shape import ANY_SPLIT, AskedSplit, EngineKind, Load

__all__ = ("Demand", "Slo", "parse_slo")

SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|)")
SLO_NAMES = {"ttft": "ttft_s", "itl": "itl_s", "tpot": "itl_s"}
# That vLLM and SGLang take into one step at most by default, on large cards; who comes beside them waits.
MAX_SEQUENCES = 1024
EXAMPLE = "write --slo ttft=500ms,itl=50ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Seconds that the mean request may take; None: no limit."""

    ttft_s: float | None = None
    itl_s: float | None = None

    def missed(self, ttft_s: float, itl_s: float) -> str:
        """What is too slow, in words; ``""`` where nothing is."""
        parts = [
            f"{name} {value_s * 1e3:.4g} ms > {limit_s * 1e3:.4g} ms"
            for name, value_s, limit_s in (("ttft", ttft_s, self.ttft_s), ("itl", itl_s, self.itl_s))
            if limit_s is not None and value_s > limit_s
        ]
        return ", ".join(parts)

    def excess(self, ttft_s: float, itl_s: float) -> float:
        """How many times the limit the worst of both takes; 1 where both are within."""
        pairs = ((ttft_s, self.ttft_s), (itl_s, self.itl_s))
        return max(1.0, *(value_s / limit_s for value_s, limit_s in pairs if limit_s is not None), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """users: that each wait for one answer at any moment, over all replicas

    context_tokens: the longest request that must be possible; 0: prompt and output
    split: of a replica, as far as somebody wants one
    data_attention: whether replicas may divide requests for attention, not heads (``Split.data_attention``)
    """

    users: int = 1
    prompt_tokens: int = 1024
    output_tokens: int = 256
    context_tokens: int = 0
    kv_bits: int = 16
    memory_ratio: float = 0.0
    slo: Slo = Slo()
    split: AskedSplit = ANY_SPLIT
    data_attention: bool = False

    @property
    def context(self) -> int:
        return max(self.context_tokens, self.prompt_tokens + self.output_tokens)

    def load(self, engine: EngineKind, sequences: int) -> Load:
        """What one replica must hold."""
        ratio = self.memory_ratio if engine != "llama.cpp" else 0.0
        return Load(
            context_tokens=self.context,
            num_sequences=max(1, sequences if engine == "llama.cpp" else min(sequences, MAX_SEQUENCES)),
            kv_bits=self.kv_bits,
            memory_ratio=ratio,
            engine=engine,
        )

    def traffic(self, concurrency: float) -> Traffic:
        """What one replica is sent."""
        return Traffic(
            concurrency=concurrency, prompt_tokens=float(self.prompt_tokens), output_tokens=float(self.output_tokens)
        )


def parse_slo(text: str) -> Slo:
    """``ttft=500ms,itl=50ms``. Raises UserInputError that names the part which is not understood."""
    found: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = (word.strip().lower() for word in part.partition("="))
        if name not in SLO_NAMES:
            near = nearest_names(name, SLO_NAMES)
            raise UserInputError(
                f"no limit is known by the name {name!r}", hint=f"did you mean {near[0]}?" if near else EXAMPLE
            )
        seconds = SECONDS.fullmatch(value)
        if seconds is None or float(seconds[1]) <= 0:
            raise UserInputError(f"{part!r} is no time", hint=EXAMPLE)
        found[SLO_NAMES[name]] = float(seconds[1]) * (1.0 if seconds[2] == "s" else 1e-3)
    return Slo(**found)
