"""What is measured: the engine itself, the bare relay, Longboat, and peers where they are installed."""

from __future__ import annotations

import dataclasses
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway_bench.longboat_gateway import ALIAS, start_longboat
from gateway_bench.processes import Proxy, free_port, wait_for_url

__all__ = (
    "BARE", "DIRECT", "LONGBOAT", "PEERS", "TRACED", "Running", "Starter", "Target", "installed_version", "peer_folder",
    "start",
)  # fmt: skip

BENCHMARKS = Path(__file__).resolve().parent.parent
START_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A target that answers.

    keys: to be sent with requests, in turn; proxy None: nothing is between; folder: to be removed with it
    model: the name that its clients write
    """

    url: str
    proxy: Proxy | None
    keys: tuple[str, ...] = ()
    model: str = "mock"
    folder: str = ""

    def stop(self) -> None:
        if self.proxy is not None:
            self.proxy.stop()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


Starter = Callable[[Sequence[str], Path], Running]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing to measure.

    package: what `make bench-peers` installs; rust: one of those that Longboat's limits are ratios to
    heavy: started for its turn only, because it uses CPU when idle
    """

    name: str
    title: str
    starter: Starter = field(repr=False)
    package: str = ""
    rust: bool = False
    heavy: bool = False


def start(target: Target, upstreams: Sequence[str], folder: Path) -> Running:
    """Start it and wait until it answers. :raises RuntimeError, TimeoutError: with the end of its log."""
    return target.starter(upstreams, folder)


def peer_folder(name: str) -> Path:
    """The peer's own environment."""
    return BENCHMARKS.parent / ".longboat" / "peers" / name


def installed_version(target: Target) -> str | None:
    """Version of a peer's package; None where it is not installed."""
    python = peer_folder(target.name) / "bin" / "python"
    name = target.package.partition("==")[0].partition("[")[0]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _up(proxy: Proxy, port: int, keys: tuple[str, ...] = ()) -> Running:
    bearer = {"authorization": f"Bearer {keys[0]}"} if keys else {}
    try:
        wait_for_url(f"http://127.0.0.1:{port}/v1/models", START_DEADLINE_S, bearer, proxy.process)
    except (RuntimeError, TimeoutError) as error:
        proxy.stop()
        raise RuntimeError(f"{proxy.name}: {error}; its log ends:\n{proxy.last_lines()}") from error
    return Running(url=f"http://127.0.0.1:{port}", proxy=proxy, keys=keys)


def _direct(upstreams: Sequence[str], folder: Path) -> Running:
    return Running(url=upstreams[0], proxy=None)


def _bare(upstreams: Sequence[str], folder: Path) -> Running:
    port = free_port()
    argv = [sys.executable, str(BENCHMARKS / "bare_relay.py"), "--port", str(port), *upstreams]
    return _up(Proxy("bare", argv, folder), port)


def _longboat(upstreams: Sequence[str], folder: Path) -> Running:
    proxy, port, keys = start_longboat(upstreams, folder)
    return Running(url=f"http://127.0.0.1:{port}", proxy=proxy, keys=keys, model=ALIAS)


def _traced(upstreams: Sequence[str], folder: Path) -> Running:
    proxy, port, keys = start_longboat(upstreams, folder, traced=True)
    return Running(url=f"http://127.0.0.1:{port}", proxy=proxy, keys=keys, model=ALIAS)


def _router(name: str, *command: str, level: str = "warn") -> Starter:
    """The three Rust routers are of one family and take the same arguments."""

    def starter(upstreams: Sequence[str], folder: Path) -> Running:
        port = free_port()
        argv = [
            str(peer_folder(name) / "bin" / command[0]), *command[1:], "--host", "127.0.0.1", "--port", str(port),
            "--worker-urls", *upstreams, "--policy", "round_robin", "--prometheus-port", str(free_port()),
            "--log-level", level,
        ]  # fmt: skip
        return _up(Proxy(name, argv, folder), port)

    return starter


def _litellm(upstreams: Sequence[str], folder: Path) -> Running:
    port = free_port()
    models = [
        {"model_name": "mock", "litellm_params": {"model": "openai/mock", "api_base": f"{url}/v1", "api_key": "k"}}
        for url in upstreams
    ]
    config = folder / "litellm.yaml"
    config.write_text(json.dumps({"model_list": models}))  # JSON is YAML
    command = str(peer_folder("litellm") / "bin" / "litellm")
    argv = [command, "--host", "127.0.0.1", "--port", str(port), "--config", str(config), "--telemetry", "False"]
    key = f"sk-{secrets.token_hex(24)}"  # it does not start without one
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MASTER_KEY": key}
    return _up(Proxy("litellm", argv, folder, env), port, (key,))


def _ray_serve(upstreams: Sequence[str], folder: Path) -> Running:
    port = free_port()
    session = tempfile.mkdtemp(prefix="lb-ray-", dir="/tmp")  # Ray's sockets need a short path
    python = str(peer_folder("ray-serve") / "bin" / "python")
    argv = [python, str(BENCHMARKS / "gateway_bench" / "serve_relay.py"), str(port), session, *upstreams]
    low = free_port()
    env = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(free_port()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(low),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(min(low + 100, 65535)),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else Ray writes one into the user's home
    }
    try:
        return dataclasses.replace(_up(Proxy("ray-serve", argv, folder, env), port), folder=session)
    except RuntimeError:
        shutil.rmtree(session, ignore_errors=True)
        raise


DIRECT = Target(name="direct", title="no proxy", starter=_direct)
BARE = Target(name="bare", title="bare relay in Python (the floor)", starter=_bare)
LONGBOAT = Target(name="longboat", title="Longboat, all features on", starter=_longboat)
TRACED = Target(name="traced", title="Longboat, all features on, every request traced", starter=_traced)
PEERS = (
    Target(
        name="vllm-router",
        title="vllm-router (Rust)",
        starter=_router("vllm-router", "vllm-router", level="warning"),
        package="vllm-router==0.1.17",
        rust=True,
    ),
    Target(
        name="sglang-router",
        title="sglang-router (Rust)",
        starter=_router("sglang-router", "python", "-m", "sglang_router.launch_router"),
        package="sglang-router==0.3.2",
        rust=True,
    ),
    Target(
        name="smg",
        title="SMG (Rust)",
        starter=_router("smg", "smg", "launch"),
        package="smg==1.13.0",
        rust=True,
    ),
    Target(
        name="litellm",
        title="LiteLLM proxy",
        starter=_litellm,
        package="litellm[proxy]==1.106.2",
        heavy=True,
    ),
    Target(
        name="ray-serve",
        title="Ray Serve ingress, HAProxy",
        starter=_ray_serve,
        package="ray[serve]==2.60.0",
        heavy=True,
    ),
)
