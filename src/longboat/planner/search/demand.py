"""What is asked of all machines together: lengths, users, and how quick answers must be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from longboat.catalog.names import nearest_names
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError
from longboat.core.plan import EngineMemory
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.split_shape import ANY_SPLIT, AskedSplit, EngineKind, Load
from longboat.planner.predict.load import Load as Traffic

__all__ = ("Demand", "Slo", "parse_slo")

SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|)")
BETWEEN = re.compile(r",|\s+(?=[A-Za-z]+\s*=)")  # limits of --slo
SLO_NAMES = {"ttft": "ttft_s", "itl": "itl_s", "tpot": "itl_s"}
ENGINE_DEFAULTS = EngineMemory()
EXAMPLE = "write --slo ttft=500ms,itl=50ms"


@dataclass(frozen=True, kw_only=True)
class Slo:
    """Seconds that the mean request may take; None: no limit."""

    ttft_s: float | None = None
    itl_s: float | None = None

    def missed(self, ttft_s: float, itl_s: float) -> str:
        """Return what is too slow, in words; ``""`` where nothing is."""
        parts = [
            f"{name} {value_s * 1e3:.4g} ms > {limit_s * 1e3:.4g} ms"
            for name, value_s, limit_s in (("ttft", ttft_s, self.ttft_s), ("itl", itl_s, self.itl_s))
            if limit_s is not None and value_s > limit_s
        ]
        return ", ".join(parts)

    def excess(self, ttft_s: float, itl_s: float) -> float:
        """Return how many times the limit the worst of both takes; 1 where both are within."""
        pairs = ((ttft_s, self.ttft_s), (itl_s, self.itl_s))
        return max(1.0, *(value_s / limit_s for value_s, limit_s in pairs if limit_s is not None), 1.0)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The load that all machines together are to serve, and how replicas may be made."""

    users: int = 1  # requests under way at any moment, over all replicas
    prompt_tokens: int = 1024
    output_tokens: int = 256
    prefix_share: float = 0.0  # of the prompts' tokens, that the prefix cache has already
    context_tokens: int = 0  # longest request that must be possible; 0: prompt and output
    settings: EngineMemory = ENGINE_DEFAULTS  # of the engine, as far as the user set them
    slo: Slo = Slo()
    split: AskedSplit = ANY_SPLIT  # of a replica, as far as the user asks for one
    expert_parallel: bool = True  # whether replicas may divide experts by copies (``Split.expert_parallel``)
    draft: ModelShape | None = None  # model that proposes tokens
    as_set: bool = False  # as of ``Load``
    data_attention: bool = False  # and requests for attention, not heads (``Split.data``)

    @property
    def context(self) -> int:
        return max(self.context_tokens, self.prompt_tokens + self.output_tokens)

    def load(self, engine: EngineKind, sequences: int) -> Load:
        """Return what one replica must hold."""
        told = self.settings
        most = told.sequences or engine_traits(engine).most_sequences
        if told.fixed and told.sequences and engine_traits(engine).slots:
            sequences = most  # a command makes all of its slots, however many are used
        return Load(
            context_tokens=self.context,
            num_sequences=max(1, min(sequences, most)),
            batched_tokens=told.batched_tokens,
            engine_sequences=told.sequences,
            weight_bits=told.weight_bits,
            kv_bits=told.kv_bits,
            memory_ratio=told.memory_ratio,
            adapters=told.adapters,
            draft=self.draft,
            cache_bytes=told.cache_bytes,
            cache_tokens=told.cache_tokens,
            graphs=told.graphs,
            version=told.version,
            fixed=told.fixed,
            as_set=self.as_set,
            engine=engine,
        )

    def traffic(self, concurrency: float) -> Traffic:
        """Return what one replica is sent."""
        return Traffic(
            concurrency=concurrency,
            prompt_tokens=float(self.prompt_tokens),
            output_tokens=float(self.output_tokens),
            cached=self.prefix_share,
        )


def parse_slo(text: str) -> Slo:
    """Read ``ttft=500ms,itl=50ms``; each time has a unit, ``ms`` or ``s``, as durations of a fleet file have one.

    Raises UserInputError that names the part which is not understood.
    """
    found: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in BETWEEN.split(text))):
        name, _, value = (word.strip().lower() for word in part.partition("="))
        if name not in SLO_NAMES:
            near = nearest_names(name, SLO_NAMES)
            raise UserInputError(
                f"no limit is known by the name {name!r}", hint=f"did you mean {near[0]}?" if near else EXAMPLE
            )
        seconds = SECONDS.fullmatch(value)
        if seconds is None or float(seconds[1]) <= 0:
            raise UserInputError(f"{part!r} does not give a time above 0", hint=EXAMPLE)
        if not seconds[2]:
            raise UserInputError(
                f"{part!r} is a time without a unit",
                hint=f"write --slo {name}={seconds[1]}ms, or {name}={seconds[1]}s",
            )
        found[SLO_NAMES[name]] = float(seconds[1]) * (1.0 if seconds[2] == "s" else 1e-3)
    return Slo(**found)
