"""Reads pip's configuration on this machine and passes it on to uv, which does not read it.

Imports the standard library only: the bootstrap of a checkout uses it before anything is installed.
"""

from __future__ import annotations

import os
import shlex
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ("PackageSources", "package_sources", "parse_pip_config")

_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSources:
    """Indexes and folders in which packages are looked for. Empty: the package client's default."""

    index_url: str = ""  # replaces the default index
    extra_index_urls: tuple[str, ...] = ()  # used in addition
    find_links: tuple[str, ...] = ()  # folders or pages with files
    trusted_hosts: tuple[str, ...] = ()
    no_index: bool = False
    certificate: str = ""

    @property
    def has_addresses(self) -> bool:
        """Whether packages are looked for on pages of servers, whose addresses may hold passwords."""
        return any("://" in place for place in self.find_links)

    def uv_arguments(self) -> list[str]:
        """Return what ``uv_variables`` leaves out, as arguments of ``uv pip`` commands."""
        words = ["--no-index"] if self.no_index else []
        folders = () if self.has_addresses else self.find_links
        for flag, values in (("--find-links", folders), ("--allow-insecure-host", self.trusted_hosts)):
            words += [word for value in values for word in (flag, value)]
        # pip takes the best match of all its indexes; uv would stop at the first index that knows the name.
        return [*words, "--index-strategy", "unsafe-best-match"] if self.extra_index_urls else words

    def uv_variables(self, env: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return variables for uv: its indexes, and that it trusts the certificates that pip trusts; ``env`` wins.

        The address of an index may hold a password, and every user of a machine can read the arguments of a process.
        uv brings its own list of authorities. pip uses the system's, which a site's own mirror may need.
        """
        trust = {"SSL_CERT_FILE": self.certificate} if self.certificate else {}
        if not trust and _system_has_certificates():
            trust = {"UV_SYSTEM_CERTS": "1"}
        found = {**trust, "UV_DEFAULT_INDEX": self.index_url} if self.index_url else trust
        ours = {name: value for name, value in found.items() if name not in env}
        indexes = (*env.get("UV_INDEX", "").split(), *self.extra_index_urls)
        ours |= {"UV_INDEX": " ".join(indexes)} if self.extra_index_urls else {}
        pages = (*filter(None, env.get("UV_FIND_LINKS", "").split(",")), *self.find_links)
        return ours | ({"UV_FIND_LINKS": ",".join(pages)} if self.has_addresses else {})


def package_sources(env: Mapping[str, str] = os.environ, python: str = sys.executable) -> PackageSources:
    """Read pip's settings on this machine: its files (where ``python`` has pip) and environment variables."""
    return _sources({**parse_pip_config(_pip_config(python, env)), **_pip_variables(env)})


def parse_pip_config(text: str) -> dict[str, str]:
    """Parse ``pip config list`` into option → value; environment over ``[install]`` over ``[global]``, as in pip."""
    found: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in text.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(section):
                found[name.removeprefix(section)] = " ".join(shlex.split(value))
    return found


def _system_has_certificates() -> bool:
    paths = ssl.get_default_verify_paths()
    return bool(paths.cafile or (paths.capath and os.listdir(paths.capath)))


def _pip_config(python: str, env: Mapping[str, str]) -> str:
    command = [python, "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False, env=dict(env))
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _pip_variables(env: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix("PIP_").lower().replace("_", "-"): env[key] for key in env if key.startswith("PIP_")}


def _sources(options: Mapping[str, str]) -> PackageSources:
    return PackageSources(
        index_url=options.get("index-url", ""),
        extra_index_urls=_words(options, "extra-index-url"),
        find_links=_words(options, "find-links"),
        trusted_hosts=_words(options, "trusted-host"),
        no_index=options.get("no-index", "").lower() in ("1", "true", "yes", "on"),
        certificate=options.get("cert", ""),
    )


def _words(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    words: Sequence[str] = options.get(name, "").split()
    return tuple(dict.fromkeys(words))
