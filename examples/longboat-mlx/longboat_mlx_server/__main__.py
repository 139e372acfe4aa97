"""Starts MLX's server for one model only, behind the key in LONGBOAT_ENGINE_API_KEY.

By itself, the server loads whatever model, draft model or adapter a request names, and answers everyone.
"""

from __future__ import annotations

import hmac
import os
from typing import Any

from mlx_lm import server

KEY = os.environ.pop("LONGBOAT_ENGINE_API_KEY", "")
load, parse_request = server.ModelProvider.load, server.APIHandler.parse_request


def load_the_only_model(provider: Any, *_: Any, **__: Any) -> Any:
    """Load the model of the command line, whatever the request names."""
    return load(provider, "default_model", None, "default_model")


def parse_allowed_request(handler: Any) -> bool:
    """Read a request's head. Return whether it may be answered: it carries the key, or asks for health."""
    if not parse_request(handler):
        return False
    shown = handler.headers.get("Authorization", "").encode()
    if KEY and handler.path != "/health" and not hmac.compare_digest(shown, f"Bearer {KEY}".encode()):
        handler.send_error(401)
        return False
    return True


server.ModelProvider.load = load_the_only_model
server.APIHandler.parse_request = parse_allowed_request
server.main()
