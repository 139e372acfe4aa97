"""Checks the options and the files of a gateway by itself, and puts them together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from longboat.core.errors import Problem, UserInputError
from longboat.core.policy import Policy
from longboat.core.states import Endpoint
from longboat.gateway.config import GatewayConfig
from longboat.gateway.sign_in.client_secret import why_unready
from longboat.spec.checks.refusal import refusal
from longboat.spec.files.keys_file import KeyBook, load_keys
from longboat.spec.files.standalone_gateway import AloneSpec, HealthSpec, alone_from, endpoints_of, parse_alone
from longboat.spec.policy import policy_of, tenant_names
from longboat.spec.secrets import admin_credentials, read_secret
from longboat.spec.text.yaml_text import Plain
from longboat.spec.types.gateway import GatewaySpec
from longboat.spec.types.section import host_name, is_loopback

__all__ = ("AloneOptions", "Stamp", "Wanted", "notes_of_keys", "read_wanted", "stamp_of", "with_new_keys")

COMMAND = "longboat gateway run"
OVERRIDES = ("host", "port", "processes", "auth")
MIN_LOG_BYTES = 4096
Stamp = tuple[int, ...]
"""What changes with a file; empty where the file is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneOptions:
    """The command's options; None is not given. port 0: any."""

    upstreams: tuple[str, ...] = ()
    port: int | None = None
    host: str | None = None
    processes: int | None = None
    config: Path | None = None
    keys: Path | None = None
    auth: str | None = None
    api_key_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A gateway as the files and options want it.

    endpoints: none is ready yet; files: what to watch, each as it was before it was read
    fixed: settings that only a new start changes, by their place
    """

    gateway: GatewaySpec
    endpoints: tuple[Endpoint, ...]
    models: tuple[str, ...]
    health: HealthSpec
    policy: Policy
    port: int
    redis_url: str | None = field(repr=False)
    files: Mapping[Path, Stamp]
    fixed: Mapping[str, object] = field(repr=False)

    @property
    def is_open(self) -> bool:
        """Whether the gateway serves requests without a key."""
        return self.policy.auth == "none"

    def config(self, *, socket: str, token: str, logs: Path, state: Path) -> GatewayConfig:
        """Return the configuration that the gateway process starts with; it ends with this process.

        logs, state: folders that exist
        """
        gateway = self.gateway
        tls, tracing = gateway.tls, gateway.tracing
        return GatewayConfig(
            host=gateway.host,
            port=self.port,
            processes=gateway.processes,
            control_socket=socket,
            control_token=token,
            orphan_grace_s=None,
            parent_pid=os.getpid(),
            tls_certificate=tls.certificate if tls else None,
            tls_key=tls.key if tls else None,
            access_log=str(logs / "access.log") if gateway.logs.access else None,
            access_log_max_bytes=max(gateway.logs.size_bytes, MIN_LOG_BYTES),
            access_log_keep=gateway.logs.keep,
            tracing_endpoint=tracing.endpoint if tracing else None,
            tracing_sample_ratio=tracing.sample_ratio if tracing else 1.0,
            redis_url=self.redis_url,
            state_folder=str(state),
            policy=self.policy,
        )


def read_wanted(options: AloneOptions, *, salt: str, env: Mapping[str, str] = os.environ) -> Wanted:
    """Read and check everything. salt: for tenants' caches, where the keys file has none.

    Raises UserInputError with every mistake, each with its place.
    """
    stamps = {path: stamp_of(path) for path in (options.config, options.keys) if path is not None}
    spec = _spec(options)
    endpoints = endpoints_of(spec.upstreams, _engine_keys(spec, env))
    gateway = spec.gateway
    stamps |= {
        Path(admin.secret_file): stamp_of(Path(admin.secret_file)) for admin in gateway.admin if admin.secret_file
    }
    book, keys_path = _keys(options, gateway)
    admins = admin_credentials(gateway.admin, env)
    _check_sign_in(gateway)
    policy = policy_of(gateway, book.keys, salt=book.salt or salt, admins=admins, external=spec.models)
    port = gateway.port if options.port is None else options.port
    return Wanted(
        gateway=gateway,
        endpoints=endpoints,
        models=spec.models_of_engines,
        health=spec.health,
        policy=policy,
        port=port,
        redis_url=_redis_url(gateway, env),
        files={path: stamp for path, stamp in stamps.items() if path != options.keys or keys_path},
        fixed=_fixed(gateway, port),
    )


def with_new_keys(wanted: Wanted, options: AloneOptions) -> Wanted:
    """Return the same settings with the keys that their file has now. Raises UserInputError if it cannot be read."""
    book, _ = _keys(options, wanted.gateway)
    return replace(wanted, policy=replace(wanted.policy, keys=book.keys))


def notes_of_keys(wanted: Wanted) -> tuple[str, ...]:
    """Return a line for each key that opens nothing, because the settings name no such tenant."""
    names = tenant_names(wanted.gateway)
    known = ", ".join(names)
    idle = (key for key in wanted.policy.keys if key.tenant not in names)
    return tuple(f"key {key.key_id} opens nothing: there is no tenant {key.tenant} (there is {known})" for key in idle)


def stamp_of(path: Path) -> Stamp:
    """Return what changes when a file does."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _spec(options: AloneOptions) -> AloneSpec:
    origin = str(options.config or COMMAND)
    data = parse_alone(_text(options.config), origin) if options.config else {}
    written: dict[str, str] = {}
    problems = [*_add_upstreams(data, options, written), *_override(data, options, written)]
    return alone_from(data, origin, written=written, more=problems)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UserInputError(f"--config: {path} cannot be read: {error.strerror}", hint="give a YAML file") from None
    except UnicodeDecodeError:
        raise UserInputError(f"--config: {path} is not text", hint="give a YAML file in UTF-8") from None


def _add_upstreams(data: dict[str, Plain], options: AloneOptions, written: dict[str, str]) -> Iterator[Problem]:
    """Upstreams of the command come after those of the file, so that places in the file stay what they are."""
    listed = data.get("upstreams", [])
    if not isinstance(listed, list):
        return
    upstreams = list(listed)
    for text in options.upstreams:
        model, equals, url = text.partition("=")
        if not (equals and model and url) or "://" in model:
            hint = "write MODEL=URL: --upstream llama=http://127.0.0.1:8001"
            yield Problem(where=f"--upstream {text}", what="this is not MODEL=URL", hint=hint)
            continue
        written[f"upstreams[{len(upstreams)}]"] = f"--upstream {text}"
        written[f"upstreams[{len(upstreams)}].api_key_env"] = "--api-key-env"
        upstreams.append({"model": model, "url": url, "api_key_env": options.api_key_env})
    data["upstreams"] = upstreams
    if options.api_key_env and not options.upstreams:
        hint = "write api_key_env: beside the url, in the file"
        yield Problem(where="--api-key-env", what="it belongs to --upstream, which is not given", hint=hint)


def _override(data: dict[str, Plain], options: AloneOptions, written: dict[str, str]) -> Iterator[Problem]:
    section = data.get("gateway") or {}
    if not isinstance(section, dict):
        return
    section = dict(section)
    for name in OVERRIDES:
        value = getattr(options, name)
        if value is not None and (name, value) != ("port", 0):  # "any" is for this command only
            section[name] = value
            written[f"gateway.{name}"] = f"--{name}"
    if options.keys and section.setdefault("auth", "keys") == "none":
        hint = "leave one of them out"
        yield Problem(where="--keys", what="a key file is given, but auth: none asks for no keys", hint=hint)
    host = section.get("host", "127.0.0.1")
    if section.get("auth") is None and isinstance(host, str) and _is_open(host):
        what = f"{host} is open to other machines, and no keys are required"
        hint = "--keys FILE asks for keys; --auth none admits every client; --host 127.0.0.1 keeps it here"
        yield Problem(where=written.get("gateway.host", "gateway.host"), what=what, hint=hint)
        section["auth"] = "none"  # one problem: ``gateway_problems`` would list it in the words of the file too
    data["gateway"] = section


def _is_open(host: str) -> bool:
    try:
        return not is_loopback(host_name(host))
    except ValueError:
        return False  # told where the section is checked


def _engine_keys(spec: AloneSpec, env: Mapping[str, str]) -> dict[str, str]:
    keys = {}
    for variable in dict.fromkeys(upstream.api_key_env for upstream in spec.upstreams):
        if variable is not None:
            where = f"the key of {_first_with(spec, variable)}"
            keys[variable] = _plain(read_secret(file=None, variable=variable, where=where, env=env), where)
    return keys


def _plain(key: str, where: str) -> str:
    """Check that a key can be part of a header line."""
    if not key.isascii() or not key.isprintable():
        raise UserInputError(
            f"{where}: the key has characters that an HTTP header cannot carry", hint="check the variable's value"
        )
    return key


def _first_with(spec: AloneSpec, variable: str) -> str:
    return next(upstream.url for upstream in spec.upstreams if upstream.api_key_env == variable)


def _keys(options: AloneOptions, gateway: GatewaySpec) -> tuple[KeyBook, Path | None]:
    """Read the keys, and name the file they came from; no keys where none are asked for."""
    if gateway.auth != "keys":
        return KeyBook(), None
    path = options.keys
    if path is None:
        hint = "--keys FILE; longboat keys create --file FILE --tenant NAME makes one"
        raise refusal(
            [Problem(where="gateway.auth", what="auth: keys needs a key file, and none is given", hint=hint)], COMMAND
        )
    book = load_keys(path)
    if book is None:
        hint = f"longboat keys create --file {path} --tenant {tenant_names(gateway)[0]} makes it"
        raise refusal([Problem(where="--keys", what=f"there is no key file {path}", hint=hint)], COMMAND)
    return book, path


def _redis_url(gateway: GatewaySpec, env: Mapping[str, str]) -> str | None:
    redis = gateway.redis
    if redis is None or redis.url is not None:
        return redis.url if redis else None
    return read_secret(file=redis.url_file, variable=redis.url_env, where="gateway.redis", env=env)


def _check_sign_in(gateway: GatewaySpec) -> None:
    sign_in = gateway.sign_in
    if sign_in is not None and (what := why_unready(sign_in.client_secret_file, sign_in.client_secret_env)):
        hint = "give it to this command, or leave gateway.sign_in out"
        raise refusal([Problem(where="gateway.sign_in", what=what, hint=hint)], COMMAND)


def _fixed(gateway: GatewaySpec, port: int) -> dict[str, object]:
    names = ("host", "processes", "tls", "logs", "tracing", "redis")
    return {**{f"gateway.{name}": getattr(gateway, name) for name in names}, "gateway.port": port}
