"""Fixtures that tests of the cluster share."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def engine_port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Port of an engine that answers as ``Engine`` of the test's own module says."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), request.module.Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()
