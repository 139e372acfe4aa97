"""``python -m longboat.gateway``: reads one JSON document from stdin, serves until it is stopped."""

from __future__ import annotations

import gc
import os
import sys

import orjson
import uvloop

from longboat.core.errors import LongboatError
from longboat.gateway.config import GatewayConfig, decode_config
from longboat.gateway.process.open_files import raise_open_files
from longboat.gateway.process.server import serve_until_stopped
from longboat.gateway.process.time_slice import request_short_time_slice
from longboat.gateway.process.worker import follow_parent
from longboat.gateway.process.workers import supervise_workers
from longboat.telemetry import log_to_stderr, logger

__all__ = ("main",)

log = logger("gateway")


def main() -> int:
    """Run; return 0 after a stop, 2 where the configuration or the port cannot be used."""
    log_to_stderr("longboat gateway")
    try:
        config = decode_config(sys.stdin.buffer.read())
        _calm_collector()
        request_short_time_slice()
        raise_open_files()
        if config.parent_pid is not None:
            follow_parent(config.parent_pid)
        run = supervise_workers if config.processes > 1 and config.worker_index is None else serve_until_stopped
        uvloop.run(run(config, lambda port: _announce(config, port)))
    except LongboatError as error:
        log.error("%s; %s", error.message, error.hint)
        return error.exit_code
    return 0


def _announce(config: GatewayConfig, port: int) -> None:
    line = {"event": "listening", "host": config.host, "port": port, "pid": os.getpid()}
    print(orjson.dumps(line).decode(), flush=True)


def _calm_collector() -> None:
    """Let the cycle collector run rarely: a request's objects are freed by reference counts."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


if __name__ == "__main__":
    sys.exit(main())
