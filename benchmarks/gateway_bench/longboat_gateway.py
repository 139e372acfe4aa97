"""Longboat's gateway by itself, ``longboat gateway run``, with all that it does for tenants turned on."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gateway_bench.processes import Proxy, ask, free_port, wait_for_url
from longboat.gateway.limits.keys import new_key
from longboat.spec.files.keys_file import KeyBook, save_keys

__all__ = ("ALIAS", "LIMITS", "PLENTY", "TENANTS", "missing_features", "start_longboat")

LONGBOAT = (sys.executable, "-c", "from longboat.cli.app import main; main()")
TENANTS = ("research", "support", "batch", "web")
LIMITS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrent_requests", "max_context_tokens")
PLENTY = 10**12
ALIAS = "assistant"
"""The name that clients write; the engines call the model ``mock``."""
FALLBACK = "spare"
DEADLINE_S = 60.0


def start_longboat(
    upstreams: Sequence[str], folder: Path, *, capacity: int = 256, max_waiting: int = 2000, traced: bool = False
) -> tuple[Proxy, int, tuple[str, ...]]:
    """Start the command and its gateway; return it, its port, and a key of each of TENANTS.

    Every tenant has limits of each kind, too high to be met, so that all of them are counted. Every model has a
    fallback, and rules are evaluated for every request.

    capacity: answers that an engine gives at once; max_waiting: requests that may wait
    traced: every request is traced, and its spans are exported
    :raises RuntimeError: it does not start; the message holds the end of its log
    """
    port = free_port()
    folder = folder / f"longboat-{port}"
    folder.mkdir(mode=0o700)
    keys, records = zip(*(new_key(tenant, now_s=time.time()) for tenant in TENANTS), strict=True)
    save_keys(folder / "keys.json", KeyBook(salt="benchmark", keys=records))
    config = folder / "gateway.yaml"
    document = settings(upstreams, capacity, max_waiting, traced=traced)
    config.write_text(json.dumps(document))  # JSON is YAML
    argv = [*LONGBOAT, "gateway", "run", "--config", str(config), "--keys", str(folder / "keys.json")]
    homes = {"LONGBOAT_RUN": str(folder / "run"), "LONGBOAT_HOME": str(folder / "home")}
    proxy = Proxy("longboat", [*argv, "--port", str(port)], folder, homes)
    try:
        bearer = {"authorization": f"Bearer {keys[0]}"}
        wait_for_url(f"http://127.0.0.1:{port}/readyz", DEADLINE_S, bearer, proxy.process)
        wait_for_url(f"http://127.0.0.1:{port}/v1/models", DEADLINE_S, bearer, proxy.process)
    except (RuntimeError, TimeoutError) as error:
        proxy.stop()
        raise RuntimeError(f"longboat: {error}; its log ends:\n{proxy.last_lines()}") from error
    return proxy, port, keys


def settings(upstreams: Sequence[str], capacity: int, max_waiting: int, *, traced: bool) -> dict[str, object]:
    """Return the file for ``--config``."""
    tenants = [{"name": name, **dict.fromkeys(LIMITS, PLENTY)} for name in TENANTS]
    engines = [{"model": "mock", "url": url, "capacity": capacity} for url in upstreams]
    engines.append({"model": FALLBACK, "url": upstreams[0], "capacity": capacity})
    gateway = {
        "auth": "keys",
        "tenants": tenants,
        "logs": {"access": True},
        "queue": {"max_waiting": max_waiting},
        "aliases": [{"name": ALIAS, "model": "mock"}],
        "fallbacks": {"mock": [FALLBACK]},
        "rules": [
            {"to": FALLBACK, "headers": {"x-batch": "*"}},
            {"to": FALLBACK, "min_context_tokens": PLENTY},
        ],
    }
    if traced:
        gateway["tracing"] = {"endpoint": upstreams[0]}  # a mock engine takes whatever is posted
    return {"upstreams": engines, "gateway": gateway}


def missing_features(url: str, key: str, upstreams: Sequence[str], folder: Path) -> list[str]:
    """Return what is not on, though the claim is that all is: ask the gateway, and the engines what reaches them."""
    before = what_engines_saw(upstreams)
    document = {"model": ALIAS, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "stream": True}
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    body = json.dumps(document).encode()
    statuses = [ask(f"{url}/v1/chat/completions", {**headers, **more}, body=body)[0] for more in ({}, {"x-batch": "1"})]
    saw = what_engines_saw(upstreams) - before
    metrics = ask(f"{url}/metrics", {})[1]
    is_on = {
        "keys": ask(f"{url}/v1/models", {})[0] == 401,
        "metrics": b"longboat" in metrics,
        "access log": any(path.stat().st_size for path in folder.glob("longboat-*/run/logs/*/access*")),
        "cache_salt": saw["cache_salt"] == saw["requests"],
        "usage counting": saw["include_usage"] == saw["requests"],
        "aliases": statuses[0] == 200,
        "rules": f'model="{FALLBACK}"'.encode() in metrics,
    }
    return [name for name, on in is_on.items() if not on]


def what_engines_saw(upstreams: Sequence[str]) -> Counter[str]:
    """Counts of all mock engines together."""
    return sum((Counter(json.loads(ask(f"{upstream}/stats", {})[1])) for upstream in upstreams), Counter[str]())
