"""One request of a trace."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ("TraceRequest",)


class TraceRequest:  # size: a plain record
    """What a trace tells of a request: when it came, how long it was, and which prefixes it began with."""

    __slots__ = (
        "answer_blocks", "answer_ends", "at_s", "blocks", "ends", "max_tokens", "model", "output_tokens",
        "prompt_tokens", "session", "tenant",
    )  # fmt: skip

    def __init__(
        self, at_s: float, prompt_tokens: int, output_tokens: int, *, blocks: bytes = b"", ends: Sequence[int] = (),
        session: str = "", tenant: str = "", model: str = "", max_tokens: int | None = None,
    ) -> None:  # fmt: skip
        self.at_s = at_s  # since the trace began
        self.prompt_tokens = prompt_tokens  # at least 1
        self.output_tokens = output_tokens  # at least 1
        self.blocks = blocks  # names of the prompt's blocks as in ``Prompt``
        self.ends = ends  # tokens from the prompt's start to the end of each block
        self.session = session  # what its conversation is called; empty: unknown
        self.tenant = tenant
        self.model = model
        self.max_tokens = max_tokens  # that the client allowed
        self.answer_blocks = b""  # names of the blocks that end within its output, as the next turn has them
        self.answer_ends: Sequence[int] = ()
