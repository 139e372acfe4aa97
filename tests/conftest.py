"""Fixtures that every room's tests may use, and how thoroughly properties are tried."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ("netlab.plugin", "engines.sglang_node", "engines.vllm_node")

# A shell ignores SIGINT for what it starts in the background, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure: no deadline for an example. Where CI is set, every run tries the same examples.
settings.register_profile(
    "longboat",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("longboat")
