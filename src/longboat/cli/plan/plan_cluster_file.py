"""From a cluster file to the machines that are planned for."""

from __future__ import annotations

from dataclasses import replace

from longboat.catalog.library import Library
from longboat.core.errors import Problem, UserInputError
from longboat.planner.machines.cluster import Cluster, NodeKind, merged
from longboat.planner.machines.cluster_text import (
    Settings,
    find_engine,
    find_os,
    parse_cards,
    parse_cluster,
    setting_of,
)
from longboat.spec.files.cluster_file import ClusterFile, NodeSection

__all__ = ("cluster_of_file",)


def cluster_of_file(file: ClusterFile, library: Library, origin: str) -> Cluster:
    """Return the machines of a cluster file. Raises UserInputError with the path of each unknown name."""
    problems: list[Problem] = []
    kinds: list[NodeKind] = []
    for index, section in enumerate(file.nodes):
        try:
            kinds.append(_kind(section, file, library))
        except UserInputError as error:
            problems += [replace(found, where=f"nodes[{index}]") for found in error.problems]
    engine = ""
    try:
        engine = find_engine(file.engine, library) if file.engine else ""
    except UserInputError as error:
        problems += [replace(found, where="engine") for found in error.problems]
    if problems:
        raise UserInputError(f"{origin}: {problems[0]}", hint=problems[0].hint, problems=tuple(problems))
    return Cluster(kinds=merged(kinds), engine=engine)


def _kind(section: NodeSection, file: ClusterFile, library: Library) -> NodeKind:
    links = ", ".join(f"{name}={value}" for name, value in (("net", section.net or file.net),) if value)
    network = parse_cluster(f"RTX 4090, {links}", library).kinds[0].network if links else None
    settings = Settings(
        network=network,
        bus=library.links.find(section.bus) if section.bus else None,
        os=find_os(section.os) if section.os else None,
    )
    return setting_of(parse_cards(section.cards, library), section.count, settings, library)
