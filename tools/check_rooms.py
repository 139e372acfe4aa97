"""Checks the shape of the source tree: ``python tools/check_rooms.py``.

- no circle of imports between modules, nor between the folders of a room; imports for types and inside functions count
- at most 15 modules in a folder
- at most 15 methods and 12 attributes in a class, unless a comment ``# size: REASON`` stands on its ``class`` line

Exits with 1 and one line for each violation.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
MAX_MODULES = 15
MAX_METHODS = 15
MAX_ATTRIBUTES = 12
REASON = "# size: "

Graph = dict[str, set[str]]


def main() -> int:
    """Print every violation; the exit status."""
    modules = find_modules(SRC)
    problems = [*circles(modules), *large_folders(modules), *large_classes(modules)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def find_modules(src: Path) -> dict[str, Path]:
    """Map dotted names to files; a package has the name of its folder."""
    files = (path for path in src.rglob("*.py") if "_compiled" not in path.parts)
    return {".".join(path.relative_to(src).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def circles(modules: Mapping[str, Path]) -> Iterator[str]:
    """Describe every circle between modules, and between the folders of one room."""
    imports = {name: imported(name, path, modules) for name, path in modules.items()}
    for circle in strongly_connected(imports):
        yield f"circle of modules: {' '.join(sorted(circle))}"
    for circle in strongly_connected(folders_of(imports)):
        yield f"circle of folders: {' '.join(sorted(circle))}"


def imported(name: str, path: Path, modules: Mapping[str, Path]) -> set[str]:
    """List the modules of ours that a module imports anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            wholes = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {whole if whole in modules else node.module for whole in wholes}
    return {other for other in found if other in modules and other != name}


def folders_of(imports: Graph) -> Graph:
    """Join the modules of each second-level folder (``longboat.gateway.http``); modules beside folders stay."""
    joined: Graph = defaultdict(set)
    for name, others in imports.items():
        joined[folder(name)] |= {folder(other) for other in others if folder(other) != folder(name)}
    for others in list(joined.values()):
        for other in others:
            joined.setdefault(other, set())
    return joined


def folder(name: str) -> str:
    return ".".join(name.split(".")[:3])


def strongly_connected(graph: Graph) -> list[set[str]]:
    """Find the groups of nodes that reach each other (Tarjan 1972), larger than one."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            groups.append(set(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10_000)
    for node in graph:
        if node not in index:
            visit(node)
    return [group for group in groups if len(group) > 1]


def large_folders(modules: Mapping[str, Path]) -> Iterator[str]:
    """Name the folders with too many modules; ``__init__`` and ``__main__`` do not count."""
    number = Counter(path.parent for path in modules.values() if not path.stem.startswith("__"))
    for place, count in sorted(number.items()):
        if count > MAX_MODULES:
            yield f"{place.relative_to(SRC)}: {count} modules, more than {MAX_MODULES}"


def large_classes(modules: Mapping[str, Path]) -> Iterator[str]:
    """Name the classes with too many methods or attributes that give no reason."""
    for path in modules.values():
        text = path.read_text("utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and REASON not in lines[node.lineno - 1]:
                yield from too_large(node, f"{path.relative_to(SRC)}:{node.lineno}")


def too_large(node: ast.ClassDef, place: str) -> Iterator[str]:
    """Compare one class with the limits. The fields of a record are not counted: only what ``__init__`` sets."""
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    if len(methods) > MAX_METHODS:
        yield f"{place}: class {node.name} has {len(methods)} methods, more than {MAX_METHODS}"
    attributes = set(assigned(item for item in methods if item.name == "__init__"))
    if len(attributes) > MAX_ATTRIBUTES:
        yield f"{place}: class {node.name} has {len(attributes)} attributes, more than {MAX_ATTRIBUTES}"


def assigned(methods: Iterable[ast.AST]) -> Iterator[str]:
    """Name the attributes of ``self`` that methods set."""
    for method in methods:
        for node in ast.walk(method):
            if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)):
                continue
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr


if __name__ == "__main__":
    sys.exit(main())
