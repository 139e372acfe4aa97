from collections.abc import Callable
from typing import Any, Self, final

INTERFACE: int

def access_line(record: tuple[Any, ...], /) -> bytes | None: ...
def head_of(data: bytes, max_bytes: int, /) -> tuple[bytes, int, int] | None: ...
def whole_chunks(data: bytes, at: int, /) -> tuple[bytes, bool] | None: ...
def scan(
    body: bytes, completions: bool, keyed: bool, /
) -> tuple[str, bool, bool, int, int, int | None, int, str, bool] | None: ...

@final
class Gaps:
    def __new__(cls, bounds: tuple[float, ...], /) -> Self: ...
    def observe(self, seconds: float, /) -> None: ...
    def counts(self) -> list[float]: ...

@final
class TokenLog:
    sent: list[bytes]
    sent_bytes: int
    def __new__(cls, max_bytes: int, /) -> Self: ...

class ChunkPath:
    owner: Any
    direct: bool
    between_chunks: bool
    quiet: int
    write: Callable[[bytes], object] | None
    itl: Gaps | None
    journal: object
    last_s: float
    num_events: int
    bytes_out: int
    def __new__(cls, owner: Any, /) -> Self: ...
    def data_received(self, data: bytes, /) -> None: ...
    def reset(self) -> None: ...
