"""What a node says before anything is started on it: are the models, the engines and the gateway's port there?"""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.catalog.formats.hf_config import read_config
from longboat.catalog.read_model import read_gguf
from longboat.catalog.shape.model_shape import ModelShape
from longboat.cluster.host.hardware import accelerator_name, node_memory_bytes, shared_memory_bytes
from longboat.cluster.preflight.adapters import AdapterFinding, find_adapter
from longboat.cluster.protocol.model import EngineSettings
from longboat.core.errors import LongboatError, TransferError, UserInputError
from longboat.engines.load_formats import packages_for
from longboat.engines.registry import adapter_for
from longboat.gateway.sign_in.client_secret import why_unready
from longboat.spec.secrets import read_secret
from longboat.spec.types.source import is_gguf
from longboat.spec.types.weights import WeightsSpec

if TYPE_CHECKING:
    from longboat.weights.sources.open_store import StorageOptions

__all__ = (
    "EngineFinding",
    "NodeFindings",
    "PathFinding",
    "PreflightRequest",
    "inspect_node",
    "listening_problems",
    "options_in_preflight",
)

CONNECT_TIMEOUT_S = 2.0
STALL_S = 5.0
"""A storage that sends nothing for this long is asked once more, and then given up."""
REQUEST_S = 15.0
"""The longest for one request to a storage, of a small file or a list."""
ASKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """paths: local model folders; engines: model → its ``engine`` entry; gateway: (host, port) or None.

    tls: (certificate, key), files; redis_url: (file, environment variable), of which one is named; None: not asked for
    """

    paths: tuple[str, ...]
    engines: Mapping[str, EngineSettings]
    gateway: tuple[str, int] | None
    tls: tuple[str, str] | None = None
    redis_url: tuple[str | None, str | None] | None = None
    sign_in: tuple[str | None, str | None] | None = None  # (file, environment variable) of the client's secret
    adapters: tuple[str, ...] = ()  # folders of LoRA adapters
    fetched: tuple[str, ...] = ()  # sources that nodes fetch into their store of weights
    weights: WeightsSpec = field(default_factory=WeightsSpec)  # how they are fetched


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFinding:
    """What a local source is on a node."""

    exists: bool  # the folder, or the GGUF file, is there
    config: str = ""  # text of the folder's config.json
    shape: ModelShape | None = None  # of a GGUF file
    detail: str = ""  # why no model can be read from it
    hint: str = ""  # what to do about that, where it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinding:
    """platform and version of the engine a model would get here; problem and hint where there is none."""

    platform: str = ""
    version: str = ""
    problem: str = ""
    hint: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)  # ability → what to do so that this environment has it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFindings:
    """One node's answer.

    host_problem, port_problem: why the gateway could not listen (empty: it could, or it does already)
    tls_problem, redis_problem: why it could not serve HTTPS, or find its Redis (empty: it could, or need not)
    memory_bytes: that engines may have in all (0: not told); accelerator: name of the first one (empty: none is seen)
    """

    hostname: str
    paths: Mapping[str, PathFinding] = field(default_factory=dict)
    engines: Mapping[str, EngineFinding] = field(default_factory=dict)
    host_problem: str = ""
    port_problem: str = ""
    tls_problem: str = ""
    redis_problem: str = ""
    sign_in_problem: str = ""  # why it could not sign people in through the provider
    memory_bytes: int = 0
    shared_memory_bytes: int | None = None  # size of /dev/shm; None: not known
    accelerator: str = ""
    adapters: Mapping[str, AdapterFinding] = field(default_factory=dict)  # by folder
    weights: frozenset[str] = frozenset()  # fetched sources that its store has whole


FORMAT = tuple(
    f"{kind.__name__}.{one.name}"
    for kind in (PreflightRequest, PathFinding, EngineFinding, AdapterFinding, NodeFindings)
    for one in fields(kind)
)
"""Names the fields of requests and findings: a daemon keeps the code of its start, and Ray pickles fields by place."""


def inspect_node(request: PreflightRequest) -> NodeFindings:
    """Look around on this node; starts nothing, changes nothing."""
    host_problem, port_problem = listening_problems(*request.gateway) if request.gateway else ("", "")
    return NodeFindings(
        hostname=socket.gethostname(),
        paths={
            **{path: _path(path) for path in request.paths},
            **_in_storages(request.fetched, options_in_preflight(request.weights)),
        },
        engines={model: _engine(engine) for model, engine in request.engines.items()},
        host_problem=host_problem,
        port_problem=port_problem,
        tls_problem=_tls_problem(*request.tls) if request.tls else "",
        redis_problem=_redis_problem(*request.redis_url) if request.redis_url else "",
        sign_in_problem=why_unready(*request.sign_in) if request.sign_in else "",
        memory_bytes=node_memory_bytes(),
        shared_memory_bytes=shared_memory_bytes(),
        accelerator=accelerator_name(),
        adapters={path: find_adapter(path) for path in request.adapters},
        weights=_whole_sources() if request.fetched else frozenset(),
    )


def _whole_sources() -> frozenset[str]:
    from longboat.folders import home_folder
    from longboat.weights.store.store import Store

    return frozenset(stored.source for stored in Store(home_folder()).list() if stored.is_whole)


def _tls_problem(certificate: str, key: str) -> str:
    for path in (certificate, key):
        try:
            Path(path).open("rb").close()
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
    try:
        # The password: without one, an encrypted key would ask a terminal for it.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        return f"{certificate} and {key} are not a certificate and its unencrypted key: {reason}"
    return ""


def _redis_problem(file: str | None, variable: str | None) -> str:
    try:
        read_secret(file=file, variable=variable, where="the URL")
    except UserInputError as error:
        return error.message
    return ""


def _path(path: str) -> PathFinding:
    folder = Path(path)
    if is_gguf(path):
        return _gguf(folder)
    if not folder.is_dir():
        return PathFinding(exists=False)
    try:
        config = (folder / "config.json").read_text(encoding="utf-8")
        read_config(config, "config.json")
    except FileNotFoundError:
        return PathFinding(exists=True, detail="it has no config.json")
    except OSError as error:
        return PathFinding(exists=True, detail=f"config.json cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return PathFinding(exists=True, detail=f"config.json is not UTF-8 text: {error}")
    except UserInputError as error:
        return PathFinding(exists=True, detail=error.message)
    return PathFinding(exists=True, config=config)


def options_in_preflight(spec: WeightsSpec) -> StorageOptions:
    """Return how a look around asks the storage: it gives up in time for the weights that the node has."""
    from longboat.weights.fetch.options_from import options_from

    return replace(options_from(spec).storage, stall_s=STALL_S, request_s=REQUEST_S, retries=1)


def _in_storages(sources: tuple[str, ...], options: StorageOptions) -> dict[str, PathFinding]:
    """Ask for all sources at once: a storage that hangs takes as long for all as for one."""
    if not sources:
        return {}
    with ThreadPoolExecutor(min(ASKED_AT_ONCE, len(sources)), thread_name_prefix="sources") as pool:
        return dict(zip(sources, pool.map(lambda source: _in_storage(source, options), sources), strict=True))


def _in_storage(source: str, options: StorageOptions) -> PathFinding:
    """Ask the storage with this node's keys. Of a GGUF file only its presence is known before it is fetched.

    Where the storage cannot be asked, the weights that this node has are taken, as a fetch does.
    """
    from longboat.weights.sources.storage import Storage

    storage = Storage(source, options)
    try:
        if is_gguf(source):
            storage.manifest()
            return PathFinding(exists=True)
        config = storage.read_small("config.json").decode()
        read_config(config, "config.json")
    except TransferError as error:
        return _in_store(source) or PathFinding(exists=True, detail=error.message, hint=error.hint)
    except LongboatError as error:
        return PathFinding(exists=True, detail=error.message, hint=error.hint)
    except UnicodeDecodeError as error:
        return PathFinding(exists=True, detail=f"config.json is not UTF-8 text: {error}")
    return PathFinding(exists=True, config=config)


def _in_store(source: str) -> PathFinding | None:
    """Return what this node has of a source; None where it has no whole model of it."""
    from longboat.folders import home_folder
    from longboat.weights.store.store import Store

    store = Store(home_folder())
    key = next(iter(store.whole(source)), None)
    if key is None or is_gguf(source):
        return PathFinding(exists=True) if key else None
    found = _path(str(store.engine_path(key)))
    return found if found.config else None


def _gguf(path: Path) -> PathFinding:
    if not path.is_file():
        return PathFinding(exists=False)
    try:
        return PathFinding(exists=True, shape=read_gguf(path))
    except UserInputError as error:
        return PathFinding(exists=True, detail=error.message)
    except OSError as error:
        return PathFinding(exists=True, detail=f"{error.filename or path.name} cannot be read: {error.strerror}")


def _engine(engine: EngineSettings) -> EngineFinding:
    from longboat.cluster.host.launch import engine_environment
    from longboat.engines.environments.environment import missing_packages

    try:
        environment = engine_environment(engine)
    except LongboatError as error:
        return EngineFinding(problem=error.message, hint=error.hint)
    if environment is None:
        return EngineFinding(platform="cpu")
    adapter = adapter_for(engine.kind)
    packages = packages_for(engine.args)
    if absent := missing_packages(environment, packages):
        problem = f"{packages[absent[0]]} needs the package {absent[0]}, which {environment.python} does not have"
        hint = f"on every node: python -m pip --python {environment.python} install {' '.join(absent)}"
        return EngineFinding(problem=problem, hint=hint)
    missing = {**adapter.unable_on.get(environment.platform, {}), **adapter.lacking(environment)}
    lacks = {str(ability): hint for ability, hint in missing.items()}
    return EngineFinding(platform=environment.platform, version=environment.version, lacks=lacks)


def listening_problems(host: str, port: int) -> tuple[str, str]:
    """Return what is wrong with the host, and with the port, for a gateway that is to listen there."""
    if _is_our_gateway(port):
        return "", ""
    node = socket.gethostname()
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        return f"{node} cannot resolve the host {host!r}: {getattr(error, 'strerror', error)}", ""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "", f"port {port} is in use on {node}"
            if error.errno == errno.EADDRNOTAVAIL:
                return f"{host} is not an address of {node}", ""
            return "", f"{host}:{port} cannot be listened on at {node}: {os.strerror(error.errno or 0)}"
    return "", ""


def _is_our_gateway(port: int) -> bool:
    """Return whether the gateway of this node's record listens on ``port``: a record alone may be a leftover."""
    from longboat.folders import run_folder

    try:
        record = json.loads((run_folder() / "gateway" / "gateway.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(record.get("port") == port and _answers(str(record["socket"])))


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
