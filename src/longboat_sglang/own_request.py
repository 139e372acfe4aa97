"""The one request that SGLang sends to itself, with the engine's key."""

from __future__ import annotations

import contextlib
import os
from typing import Any

__all__ = ("freeze_garbage",)

_KEY = "LONGBOAT_ENGINE_API_KEY"
_DEADLINE_S = 10.0


def freeze_garbage(server_args: Any) -> None:
    """Let SGLang's processes leave what they loaded out of garbage collection, as SGLang does after its start."""
    import requests

    headers = {"Authorization": f"Bearer {os.environ.get(_KEY, '')}"}
    with contextlib.suppress(requests.RequestException):  # it only saves time
        requests.post(f"{server_args.url()}/freeze_gc", headers=headers, timeout=_DEADLINE_S)
