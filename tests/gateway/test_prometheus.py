"""A real Prometheus finds its targets through the gateway, and scrapes them; it is Debian's package ``prometheus``."""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from fake_upstream import FakeUpstream
from gateway_lab import started_gateway

from free_ports import free_port
from longboat.core.policy import Policy
from longboat.dashboards.files import all_files
from longboat.gateway.limits.keys import new_admin_key
from longboat.gateway.process.server import Gateway

PROMETHEUS = shutil.which("prometheus") or ""


def asked(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)["data"]
    except OSError:
        return {}


async def targets_of(gateway: Gateway, key_file: Path, folder: Path) -> dict[str, Any]:
    """Run Prometheus until it scraped a gateway and knows an engine; return its targets by their job."""
    files = all_files((f"127.0.0.1:{gateway.port}",), key_file=str(key_file), discover=True)
    for name in ("prometheus.yaml", "longboat-alerts.yaml"):
        (folder / name).write_text(files[name].replace("scrape_interval: 15s", "scrape_interval: 1s"))
    port = free_port()
    words = (f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data")
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS, *words, f"--web.listen-address=127.0.0.1:{port}", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(90):
            while True:
                data = await asyncio.to_thread(asked, f"http://127.0.0.1:{port}/api/v1/targets")
                found = {target["labels"]["job"]: target for target in data.get("activeTargets", ())}
                engine = found.get("longboat-engines", {"lastScrape": "0001"})
                if found.get("longboat", {}).get("health") == "up" and not engine["lastScrape"].startswith("0001"):
                    return found
                await asyncio.sleep(0.5)
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.skipif(not PROMETHEUS, reason="Prometheus is not installed: apt-get install prometheus")
async def test_prometheus_discovers_and_scrapes_gateways_and_engines(tmp_path: Path) -> None:
    key, admin = new_admin_key("prometheus", "viewer")
    (tmp_path / "key").write_text(key)
    engine = FakeUpstream(has_metrics=True)
    await engine.start()
    url = engine.url
    gateway = await started_gateway(engine, policy=Policy(auth="keys", admins=(admin,)))
    try:
        found = await targets_of(gateway, tmp_path / "key", tmp_path)
    finally:
        gateway.stop(0.0)
        engine.close()
    assert found["longboat"]["scrapeUrl"] == f"http://127.0.0.1:{gateway.port}/metrics"
    assert found["longboat-engines"]["scrapeUrl"] == f"{url}/metrics"
    assert found["longboat-engines"]["labels"]["replica"] == "r0"
    scrapes = [seen.head for seen in engine.seen if b"Prometheus/" in seen.head]
    assert scrapes
    assert not [head for head in scrapes if b"uthorization" in head]
