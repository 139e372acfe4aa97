INTERFACE: int

def span_field(
    trace_id: bytes,
    span_id: int,
    parent_id: int,
    tracestate: bytes,
    name: str,
    kind: int,
    flags: int,
    since_s: float,
    times_s: tuple[float, float],
    names: tuple[tuple[bytes, ...], tuple[bytes, ...]],
    values: tuple[str | int | None, ...],
    moments_s: tuple[float | None, ...],
    error: str,
    /,
) -> bytes: ...
