"""The hosts file: bare hosts that ``longboat cluster up`` turns into a cluster, strictly read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from longboat.core.errors import Problem, UserInputError
from longboat.spec.checks.mistakes import is_consequence
from longboat.spec.checks.plain_problem import plain_problem
from longboat.spec.checks.refusal import refusal
from longboat.spec.text.yaml_text import Plain, parse_yaml
from longboat.spec.types.section import Section, host_name, label_pairs, mistake, with_agreement

__all__ = ("Folders", "HostSection", "HostsFile", "InstallSection", "Role", "load_hosts_file", "nested_folders")

MAX_HOSTS = 512
MAX_CPUS = 4096
HINT = "docs/guides/bare-hosts.md shows a hosts file"
DESTINATION = re.compile(r"[A-Za-z0-9_.:\[\]%][A-Za-z0-9_.:\[\]%-]*")
USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\$?")
FOLDER = re.compile(r"(~|)(/\.?[A-Za-z0-9][A-Za-z0-9._@+-]*)+")
PYTHON = re.compile(r"3\.\d{1,2}")
SYSTEM_FOLDERS = frozenset(("/usr/local", "/var/cache", "/var/lib", "/var/log", "/var/tmp"))  # noqa: S108

Role = Literal["head", "worker"]


def _destination(value: str) -> str:
    if not DESTINATION.fullmatch(value):
        raise mistake(f"{value!r} is not a host for ssh", "write its name, its address, or a Host of your ssh config")
    return value


def _user(value: str) -> str:
    if value and not USER.fullmatch(value):
        raise mistake(f"{value!r} is not a user's name", "write user: deploy")
    return value


def _folder(value: str) -> str:
    if not FOLDER.fullmatch(value):
        hint = "write it whole, as /srv/longboat or ~/longboat, with letters, digits and . _ @ + -"
        raise mistake(f"{value!r} is not the path of a folder on the hosts", hint)
    if (value.count("/") == 1 and not value.startswith("~")) or value in SYSTEM_FOLDERS:
        raise mistake(f"{value!r} belongs to the system", f"write a folder in it: {value}/longboat")
    return value


def _python(value: str) -> str:
    if not PYTHON.fullmatch(value):
        raise mistake(f"{value!r} is not a version of Python", 'write python: "3.11"')
    return value


def _card(value: str) -> str:
    return host_name(value) if value else value


Folder = Annotated[str, AfterValidator(_folder)]


def nested_folders(software: str, data: str, run: str) -> str:
    """Return which folder of two that `remove` deletes would take another one with it; empty where none would."""
    pairs = (("data", data, "software", software), ("data", data, "run", run), ("software", software, "run", run))
    for inner_name, inner, outer_name, outer in pairs:
        if outer and f"{inner}/".startswith(f"{outer}/"):
            return f"{inner_name} {inner!r} lies in {outer_name} {outer!r}, which longboat cluster remove deletes"
    return ""


class Folders(Section):
    """Where things lie on the hosts; ``~`` is the home folder of the SSH user."""

    software: Folder = "~/.longboat"
    """Longboat itself: its releases, its launcher, the token, the record of what was installed. `remove` deletes it."""

    data: Folder = "~/.local/share/longboat"
    """What lasts: engine environments, weights, usage, the head's state. `remove` leaves it."""

    run: Annotated[str, AfterValidator(lambda value: _folder(value) if value else value)] = ""
    """Sockets and logs of running processes; `run` in the folder of the software when left out."""

    @model_validator(mode="wrap")
    @classmethod
    def _apart(cls, values: Any, handler: ModelWrapValidatorHandler[Folders]) -> Folders:
        return with_agreement(values, handler, cls, _nested)


def _nested(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    software, data, run = (values.get(name, Folders.model_fields[name].default) for name in ("software", "data", "run"))
    if told := nested_folders(software, data, run):
        yield mistake(told, "write folders beside each other, as /srv/longboat, /srv/longboat-data and /run/longboat")


class InstallSection(Section):
    """Where Longboat comes from: one of the three."""

    wheel: str = ""
    """A wheel on this machine; its dependencies come from the hosts' package index."""

    index: str = ""
    """A requirement: `longboat==0.1.0`; the hosts' package index has it."""

    bundle: str = ""
    """A folder that `longboat bundle` made; the hosts need no network."""

    index_url: str = ""
    """Package index that the hosts use; their own setting when left out."""

    @model_validator(mode="wrap")
    @classmethod
    def _one_source(cls, values: Any, handler: ModelWrapValidatorHandler[InstallSection]) -> InstallSection:
        return with_agreement(values, handler, cls, _sources)


def _sources(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    given = [name for name in ("wheel", "index", "bundle") if values.get(name)]
    if len(given) != 1:
        told = f"{' and '.join(given)} are given" if given else "no source is given"
        yield mistake(told, "write one of wheel:, index: and bundle:")


class HostSection(Section):
    """One host."""

    host: Annotated[str, AfterValidator(_destination)]
    """Its name for ssh: an address, a name, or a `Host` of your ssh config."""

    role: Role = "worker"
    """head or worker; the first host is the head where no host says so."""

    user: Annotated[str, AfterValidator(_user)] = ""
    """SSH user; that of all hosts when left out."""

    port: int | None = Field(default=None, ge=1, le=65535)
    """SSH port; that of your ssh config when left out."""

    sudo: bool | None = None
    """Whether the user may use sudo; that of all hosts when left out."""

    address: Annotated[str, AfterValidator(_card)] = ""
    """Address by which the other hosts reach this one."""

    labels: Annotated[dict[str, str], AfterValidator(label_pairs)] = Field(default_factory=dict, max_length=50)
    """Labels that `placement` in a fleet file can ask for."""

    cpus: int | None = Field(default=None, ge=0, le=MAX_CPUS)
    """CPUs to offer to the cluster, as Ray counts them: whole ones; all when left out."""

    gpus: int | None = Field(default=None, ge=0, le=64)
    """GPUs to offer to the cluster; all when left out. A host with GPUs needs NVIDIA's driver."""


class HostsFile(Section):
    """The whole file."""

    hosts: tuple[HostSection, ...] = Field(min_length=1, max_length=MAX_HOSTS)
    """The hosts."""

    user: Annotated[str, AfterValidator(_user)] = ""
    """SSH user of all hosts; that of your ssh config when left out."""

    sudo: bool = False
    """Whether to write a unit of the system, by sudo; else each host gets a unit of the SSH user."""

    card: str = Field(default="", max_length=64)
    """Network card or network of the cluster on every host: `eth1`, `10.0.0.0/24`."""

    port: int = Field(default=6379, ge=1024, le=65535)
    """Port of the head."""

    folders: Folders = Folders()
    """Where things lie on the hosts."""

    install: InstallSection
    """Where Longboat comes from."""

    engines: tuple[str, ...] = Field(default=(), max_length=16)
    """Engines that every host gets: `vllm`, `vllm@0.32.0`."""

    python: Annotated[str, AfterValidator(_python)] = "3.11"
    """Python of Longboat; uv brings it where a host has another one."""

    fleet: str = ""
    """Fleet file to serve when the cluster is up."""

    ssh_config: str = ""
    """Configuration file for ssh; your own when left out."""

    @property
    def head(self) -> HostSection:
        """The host that leads the cluster."""
        return next(host for host in self.hosts if host.role == "head")


FIELDS = {
    (): list(HostsFile.model_fields),
    ("hosts",): list(HostSection.model_fields),
    ("folders",): list(Folders.model_fields),
    ("install",): list(InstallSection.model_fields),
}
MISSING = {
    "hosts": "write hosts: [first-host, second-host]",
    "install": "write install: {wheel: dist/longboat-0.1.0-cp311-cp311-linux_x86_64.whl}",
    "host": "write host: NAME",
}


def load_hosts_file(text: str, origin: str) -> HostsFile:
    """Read the file's contents. A host may be written as its name alone.

    Raises UserInputError with every mistake and its path.
    """
    try:
        plain = _spelled_out(parse_yaml(text))
    except UserInputError as error:
        raise refusal(list(error.problems), origin) from None
    between = _between_hosts(plain.get("hosts") if isinstance(plain, dict) else None)
    try:
        file = HostsFile.model_validate(plain)
    except ValidationError as error:
        errors = [item for item in error.errors(include_url=False) if not is_consequence(item)]
        found = [plain_problem(item, FIELDS, MISSING, HINT) for item in errors]
        raise refusal([*found, *between], origin) from None
    if between:
        raise refusal(between, origin)
    return file


def _spelled_out(data: Plain) -> Any:
    """Spell out ``- name`` as ``- host: name``, and the head where no host is one; lists become tuples."""
    if not isinstance(data, dict):
        return data if data is not None else {}
    told: dict[str, Any] = dict(data)
    if isinstance(hosts := data.get("hosts"), list):
        sections: list[Any] = [{"host": host} if isinstance(host, str) else host for host in hosts]
        if sections and isinstance(sections[0], dict) and not any(_is_head(section) for section in sections):
            sections[0] = {"role": "head"} | sections[0]
        told["hosts"] = tuple(sections)
    if isinstance(engines := data.get("engines"), list):
        told["engines"] = tuple(engines)
    return told


def _is_head(section: object) -> bool:
    return isinstance(section, dict) and section.get("role") == "head"


def _between_hosts(hosts: object) -> list[Problem]:
    """Return what no host shows by itself: hosts that stand twice, no head, and second heads."""
    sections = list(enumerate(hosts)) if isinstance(hosts, tuple) else []
    problems = []
    first: dict[str, int] = {}
    for index, section in sections:
        name = section.get("host") if isinstance(section, dict) else None
        if isinstance(name, str) and (earlier := first.setdefault(name, index)) != index:
            what = f"{name!r} is hosts[{earlier}] already"
            problems.append(Problem(where=f"hosts[{index}].host", what=what, hint="a host is one node: write it once"))
    heads = [index for index, section in sections if _is_head(section)]
    if not heads and sections and all(isinstance(section, dict) for _, section in sections):
        hint = "write role: head for one of them"
        problems.append(Problem(where="hosts", what="no host is the head", hint=hint))
    for index in heads[1:]:
        what = f"hosts[{heads[0]}] is the head already"
        problems.append(Problem(where=f"hosts[{index}].role", what=what, hint="write role: worker"))
    return problems
