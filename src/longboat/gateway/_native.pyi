INTERFACE: int

def scan(
    body: bytes, completions: bool, keyed: bool, /
) -> tuple[str, bool, bool, int, int, int | None, int, str, bool] | None: ...
