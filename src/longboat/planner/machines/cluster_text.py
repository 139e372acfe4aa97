"""Machines as people write them: ``4x(2xRTX4090), net=10GbE`` or ``A5000 + A4000, net=1GbE``.

    machines := nodes { "," nodes | "," setting }        nodes := node { "+" node }
    node     := [ count "x" ] "(" cards ")" | cards of one kind       cards := [ count "x" ] name { "+" ... }
    setting  := net=NAME | bus=NAME | os=NAME | engine=NAME

Cards without brackets are one node (``2xRTX4090``); complete machines and processors are a node each (``2xDGX Spark``).
A size after a name is the memory of one (``EPYC9004 512GB``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from longboat.catalog.entries import Accelerator, Link
from longboat.catalog.library import Library
from longboat.catalog.names import find_name, nearest_names
from longboat.core.errors import UserInputError
from longboat.planner.machines.cluster import OS_NAMES, Cards, Cluster, NodeKind, OsName, merged

__all__ = (
    "Settings",
    "bus_of",
    "check_number",
    "find_engine",
    "find_os",
    "parse_cards",
    "parse_cluster",
    "parse_nodes",
    "parse_one",
    "setting_of",
    "split_parts",
)

EXAMPLE = 'write machines as "4x(2xRTX4090), net=10GbE"'
DEFAULT_NETWORK, DEFAULT_BUS, SOCKET_BUS = "1GbE", "PCIe 4 x16", "Shared memory"
COUNTED = re.compile(r"(-?\d{1,9})\s*[x×*]\s*(.+)", re.DOTALL)
SPACED = re.compile(r"(\d{1,2})\s+([A-Za-z].+)", re.DOTALL)
BEHIND = re.compile(r"(.*[A-Za-z].*?)\s*[x×*]\s*(\d{1,2})", re.DOTALL)
SIZED = re.compile(r"(.+?)[\s-]*(\d+(?:\.\d+)?)[\s-]*(g|gb|gib|t|tb|tib)", re.IGNORECASE)
SETTING = re.compile(r"\s*(\w+)\s*=\s*(.+?)\s*")
SETTINGS = ("net", "bus", "os", "engine")
GIB = 1024**3
MAX_NODES, MAX_CARDS, RACK_CARDS = 4096, 16, 72
# A size that is this near to the catalog's is the same card: a box says 24 GB where the driver reports 23.99 GiB.
SAME_MEMORY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of all machines; None: not given."""

    network: Link | None = None
    bus: Link | None = None
    os: OsName | None = None
    engine: str = ""


def parse_cluster(text: str, library: Library) -> Cluster:
    """Return the machines that ``text`` describes.

    Raises UserInputError that names the part which is not understood, with the nearest names.
    """
    parts = [part.strip() for part in split_parts(text, ",")]
    written: dict[str, str] = {}
    nodes: list[str] = []
    for part in parts:
        found = SETTING.fullmatch(part)
        if found and found[1].lower() in written:
            raise UserInputError(f"{found[1]} is written twice in {text!r}", hint="keep one of them")
        if found:
            written[_setting_name(found[1])] = found[2]
        else:
            nodes.append(part)
    if not any(nodes):
        raise UserInputError(f"{text!r} names no machine", hint=EXAMPLE)
    settings = Settings(
        network=_network(written.get("net", ""), library),
        bus=_link(written.get("bus", ""), library),
        os=find_os(written["os"]) if "os" in written else None,
        engine=find_engine(written["engine"], library) if "engine" in written else "",
    )
    kinds = [kind for part in nodes for kind in parse_nodes(part, library, settings)]
    return Cluster(kinds=merged(kinds), engine=settings.engine)


def _setting_name(name: str) -> str:
    synonyms = {"network": "net", "runtime": "engine", "link": "bus", "platform": "os"}
    found = synonyms.get(name.lower(), name.lower())
    if found in SETTINGS:
        return found
    near = nearest_names(name, SETTINGS)
    hint = f"did you mean {near[0]}=?" if near else f"one of {', '.join(SETTINGS)}"
    raise UserInputError(f"there is no setting {name!r} of machines", hint=hint)


def parse_nodes(text: str, library: Library, settings: Settings) -> Iterator[NodeKind]:
    """Yield the nodes of one part, joined by ``+``."""
    for piece in split_parts(text, "+"):
        yield _node(piece.strip(), library, settings)


def _node(text: str, library: Library, settings: Settings) -> NodeKind:
    text = _count_first(text, library)
    counted = COUNTED.fullmatch(text)
    count, inside = (int(counted[1]), counted[2].strip()) if counted else (1, text)
    if inside.startswith("("):
        if not inside.endswith(")"):
            raise UserInputError(f"{text!r} opens a bracket that is not closed", hint=EXAMPLE)
        if "=" in inside:
            raise UserInputError(f"{text!r} has a setting inside the brackets of a node", hint=EXAMPLE)
        held = parse_cards(inside[1:-1], library)
        check_number(held, text)
        return setting_of(held, _counted(count, MAX_NODES, text), settings, library)
    (cards,) = parse_cards(text, library)
    if cards.entry.kind == "gpu":
        check_number((cards,), text)
        return setting_of((cards,), 1, settings, library)
    one = Cards(entry=cards.entry, count=1, memory_bytes=cards.memory_bytes)
    return setting_of((one,), cards.count, settings, library)


def _count_first(text: str, library: Library) -> str:
    """Return ``8 H100`` and ``H100x8`` as ``8xH100``; a name of the catalog stays as it is."""
    if "(" in text or COUNTED.fullmatch(text) or find_name(text, library.accelerators.known):
        return text
    if found := SPACED.fullmatch(text):
        return f"{found[1]}x{found[2]}"
    if found := BEHIND.fullmatch(text):
        return f"{found[2]}x{found[1]}"
    return text


def setting_of(cards: tuple[Cards, ...], count: int, settings: Settings, library: Library) -> NodeKind:
    """Return nodes of these accelerators, with what was said of all, and what is usual where nothing was."""
    apple = any(one.entry.vendor == "apple" for one in cards)
    os = settings.os or ("macos" if apple else "linux")
    if apple != (os == "macos"):
        raise UserInputError(
            f"{cards[0].entry.name} does not run under {os}", hint=f"os={'macos' if apple else 'linux'}"
        )
    return NodeKind(
        count=count,
        cards=cards,
        bus=settings.bus or bus_of(cards, library),
        network=settings.network or library.links.find(DEFAULT_NETWORK),
        os=os,
    )


def bus_of(cards: tuple[Cards, ...], library: Library) -> Link:
    """Return how the accelerators of one node usually reach each other: the vendor's link, else the slowest PCIe.

    A bridge joins two cards only; more of them use PCIe.
    """
    entries = [one.entry for one in cards]
    num_cards = sum(one.count for one in cards)
    if any(entry.kind == "cpu" for entry in entries):
        return library.links.find(SOCKET_BUS)
    own = entries[0].link.split(",")[0]
    if len(entries) == 1 and own and not (own == "NVLink bridge" and (num_cards > 2 or not _bridged(entries[0]))):
        name = find_name(own, library.links.known)
        if name is not None and library.links[name].kind == "bus":
            return library.links[name]
    buses = [_pcie(entry, library) for entry in entries]
    return min(buses, key=lambda link: link.bandwidth_bytes_per_s)


def _bridged(entry: Accelerator) -> bool:
    """Return whether cards come with their bridge: those of data centres do, those on a desk seldom."""
    return entry.name.startswith(("A30", "A100", "H100"))


def _pcie(entry: Accelerator, library: Library) -> Link:
    name = find_name(f"PCIe {entry.pcie.replace('x', ' x')}", library.links.known) if entry.pcie else None
    return library.links[name or DEFAULT_BUS]


def parse_cards(text: str, library: Library) -> tuple[Cards, ...]:
    """Return the accelerators of one node. A name may have a plus (``Ryzen AI Max+ 395``)."""
    whole = find_name(text, library.accelerators.known) is not None
    pieces = [text.strip()] if whole else [piece.strip() for piece in text.split("+")]
    if not all(pieces):
        raise UserInputError(
            f"{text!r} names no accelerator" if not text.strip() else f"{text!r}: a name is missing beside +",
            hint=EXAMPLE,
        )
    found = tuple(_cards(piece, library) for piece in pieces)
    return found


def parse_one(text: str, library: Library) -> Cards:
    """Return accelerators of one kind. Raises UserInputError for several kinds."""
    first, *others = parse_cards(text, library)
    if others:
        raise UserInputError(
            f"{text!r} names {len(others) + 1} kinds of accelerators, where one is needed",
            hint=f"name one of them: {first.entry.name}",
        )
    return first


def _cards(text: str, library: Library) -> Cards:
    """Read cards; the whole text counts first as a name: ``7900XT`` is not 7900 cards."""
    text = _count_first(text, library)
    if text in library.accelerators or find_name(text, library.accelerators.known):
        entry = library.accelerators.find(text)
        return Cards(entry=entry, count=1, memory_bytes=entry.memory_bytes)
    if counted := COUNTED.fullmatch(text):
        entry, memory_bytes = _accelerator(counted[2].strip(), library)
        return Cards(entry=entry, count=_counted(int(counted[1]), MAX_NODES, text), memory_bytes=memory_bytes)
    entry, memory_bytes = _accelerator(text, library)
    return Cards(entry=entry, count=1, memory_bytes=memory_bytes)


def _accelerator(name: str, library: Library) -> tuple[Accelerator, int]:
    known = find_name(name, library.accelerators.known)
    sized = SIZED.fullmatch(name)
    if known is None and sized:
        entry = library.accelerators.find(sized[1])
        memory_bytes = int(float(sized[2]) * GIB * (1024 if sized[3].lower().startswith("t") else 1))
        same = abs(memory_bytes - entry.memory_bytes) <= SAME_MEMORY * entry.memory_bytes
        return entry, entry.memory_bytes if same else memory_bytes
    entry = library.accelerators.find(name)
    return entry, entry.memory_bytes


def check_number(cards: tuple[Cards, ...], text: str) -> None:
    """Refuse nodes with more accelerators than nodes have: racks that are one domain have up to 72."""
    num_cards = sum(one.count for one in cards)
    most = RACK_CARDS if all("72" in one.entry.link for one in cards) else MAX_CARDS
    if num_cards > most:
        name = cards[0].entry.name
        raise UserInputError(
            f"{text!r} is one node with {num_cards} accelerators, more than {most}",
            hint=f'write nodes in brackets: "{-(-num_cards // 8)}x(8x{name})"',
        )


def _counted(count: int, most: int, text: str) -> int:
    if not 1 <= count <= most:
        raise UserInputError(f"{text!r} is {count} of them", hint=f"between 1 and {most} can be planned")
    return count


def _network(name: str, library: Library) -> Link | None:
    link = _link(name, library)
    if link is not None and link.kind != "network":
        networks = [entry.name for entry in library.links.values() if entry.kind == "network"]
        raise UserInputError(
            f"{link.name} is a bus within a node, no network", hint=f"one of {', '.join(networks[:8])}, …"
        )
    return link


def _link(name: str, library: Library) -> Link | None:
    if name.startswith("-"):  # a name of the catalog is found without its punctuation
        raise UserInputError(f"{name!r} is below 0, and a link has a speed", hint=f"did you mean {name.lstrip('-')}?")
    return library.links.find(name) if name else None


def find_os(name: str) -> OsName:
    """Return the system with that name. Raises UserInputError with the nearest names."""
    plain = {"wsl": "wsl2", "mac": "macos", "darwin": "macos", "win": "windows", "ubuntu": "linux"}
    wanted = plain.get(name.strip().lower(), name.strip().lower())
    for known in OS_NAMES:
        if wanted == known:
            return known
    near = nearest_names(name, OS_NAMES)
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(OS_NAMES)}"
    raise UserInputError(f"no operating system is known by the name {name!r}", hint=hint)


def find_engine(name: str, library: Library) -> str:
    """Return the engine's name in the catalog. Raises UserInputError with the nearest names."""
    return library.engines.find(name).name


def split_parts(text: str, mark: str) -> Iterator[str]:
    """Yield the parts of ``text`` between each ``mark`` outside brackets."""
    depth, start = 0, 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            raise UserInputError(f"{text!r} closes a bracket that was not opened", hint=EXAMPLE)
        if letter == mark and depth == 0:
            yield text[start:index]
            start = index + 1
    if depth:
        raise UserInputError(f"{text!r} opens a bracket that is not closed", hint=EXAMPLE)
    yield text[start:]
