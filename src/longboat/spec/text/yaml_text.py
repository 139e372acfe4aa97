"""YAML text to plain values, strictly: YAML 1.2 scalars, no duplicate keys, bounded size, mistakes with their lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from longboat.core.errors import Problem, UserInputError
from longboat.spec.text.location import Path, show
from longboat.spec.text.variables import MARK, filled

if TYPE_CHECKING:
    from yaml import SafeLoader as BaseLoader
elif hasattr(yaml, "CSafeLoader"):
    from yaml import CSafeLoader as BaseLoader
else:
    from yaml import SafeLoader as BaseLoader

__all__ = ("MAX_FILE_BYTES", "RESOLVERS", "Plain", "YamlFile", "parse_yaml", "read_yaml")

Plain = str | int | float | bool | list["Plain"] | dict[str, "Plain"] | None

MAX_FILE_BYTES = 1_000_000
MAX_VALUES = 50_000
MAX_DEPTH = 50
MAX_DIGITS = 30

TAG = "tag:yaml.org,2002:"
INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")

# What an unquoted scalar is: tag, pattern, first characters.
RESOLVERS: tuple[tuple[str, re.Pattern[str], list[str]], ...] = (
    (TAG + "null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    (TAG + "bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    (TAG + "int", re.compile(rf"(?:{INT.pattern})\Z"), list("-+0123456789")),
    (TAG + "float", re.compile(rf"(?:{FLOAT.pattern})\Z"), list("-+.0123456789")),
    (TAG + "merge", re.compile(r"<<\Z"), ["<"]),
)


class StrictLoader(BaseLoader):
    """PyYAML's safe loader with YAML 1.2's idea of a scalar: ``yes``, ``1:30``, ``010`` and dates are just text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for resolver_tag, resolver_pattern, resolver_first in RESOLVERS:
    StrictLoader.add_implicit_resolver(resolver_tag, resolver_pattern, resolver_first)


class StopReadingError(Exception):
    """The text cannot be read any further."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlFile:
    """What a file holds, with the mistakes that do not keep the rest from being read."""

    value: Plain = None
    """Plain values; None where the file is empty."""
    problems: tuple[Problem, ...] = ()
    """Keys that are written twice, and variables that are missing."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """Place of a value (``models[0].name``) → its line, from 1."""


def parse_yaml(text: str) -> Plain:
    """Read the one document in ``text`` as plain values; None where it is empty.

    Raises UserInputError with every duplicate key, or with the first error of syntax, each with line and column.
    """
    found = read_yaml(text)
    if found.problems:
        first = found.problems[0]
        raise UserInputError(first.what, hint=first.hint, problems=found.problems)
    return found.value


def read_yaml(text: str, variables: Mapping[str, str] | None = None) -> YamlFile:
    """Read the one document in ``text``, and continue after mistakes where that is possible.

    variables: what ``${NAME}`` stands for; None: it stands for itself
    Raises UserInputError with the first error of syntax.
    """
    reader = _Reader(variables=variables)
    try:
        node = _compose(text)
        value = reader.value(node, ()) if node is not None else None
    except StopReadingError as stop:
        raise UserInputError(stop.problem.what, hint=stop.problem.hint, problems=(stop.problem,)) from None
    return YamlFile(value=value, problems=tuple(reader.problems), lines=reader.lines)


def _compose(text: str) -> yaml.Node | None:
    _check_text(text)
    try:
        _check_depth(text)
        node: yaml.Node | None = yaml.compose(text, Loader=StrictLoader)
    except yaml.MarkedYAMLError as error:
        raise StopReadingError(_syntax_problem(error, text)) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise StopReadingError(_problem(f"not YAML: {error}", "write the file as plain UTF-8 text")) from None
    return node


def _check_text(text: str) -> None:
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise StopReadingError(
            _problem("the text is not valid Unicode", "write the file as plain UTF-8 text")
        ) from None
    if num_bytes > MAX_FILE_BYTES:
        what = f"the file has {num_bytes} bytes, the limit is {MAX_FILE_BYTES}"
        raise StopReadingError(_problem(what, "is this the right file? A fleet file has a few kilobytes"))


def _check_depth(text: str) -> None:
    """Refuse deep nesting from the flat event stream: the composer recurses in C and would end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=StrictLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else 0
            what = f"line {line}: nested deeper than {MAX_DEPTH} levels"
            raise StopReadingError(_problem(what, "is this the right file? A fleet file has about five levels"))


def _problem(what: str, hint: str, where: str = "") -> Problem:
    return Problem(where=where, what=what, hint=hint)


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
    what = f"not YAML, {place}: {error.problem or error.context}"
    lines = text.splitlines()
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return _problem(what, "indent with spaces: YAML does not take tabs")
    if "another document" in what:
        return _problem(what, "write one fleet a file, without --- in the middle")
    if "${" in line:
        return _problem(what, 'inside brackets and braces, write "${NAME}" in quotes')
    return _problem(what, "look at this line and the one above: indentation, brackets, quotes, a space after ':'")


@dataclass(slots=True)
class _Reader:
    """Turns nodes into values and collects duplicate keys and missing variables."""

    variables: Mapping[str, str] | None = None
    problems: list[Problem] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    num_values: int = 0

    def value(self, node: yaml.Node, path: Path) -> Plain:
        self.num_values += 1
        if self.num_values > MAX_VALUES or len(path) > MAX_DEPTH:
            hint = "write less, or use fewer anchors inside anchors"
            raise StopReadingError(_problem(f"more than {MAX_VALUES} values, or nested deeper than {MAX_DEPTH}", hint))
        self.lines.setdefault(show(path), node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode) and node.tag == TAG + "seq":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == TAG + "map":
            return self.mapping(node, path)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(self.filled(node, path), path)
        raise _unknown_tag(node, path)

    def filled(self, node: yaml.ScalarNode, path: Path) -> yaml.ScalarNode:
        """Return the node with its variables replaced; without quotes, its kind follows from the text it has then."""
        if self.variables is None or MARK not in node.value or node.tag != TAG + "str":
            return node
        text, missing = filled(node.value, self.variables)
        line = node.start_mark.line + 1
        self.problems += [_missing(name, line, path) for name in dict.fromkeys(missing)]
        tag = _kind_of(text) if node.style in (None, "") and not missing else node.tag
        return yaml.ScalarNode(tag, text, node.start_mark, node.end_mark, node.style)

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Plain]:
        own: dict[str, Plain] = {}
        merged: dict[str, Plain] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == TAG + "merge":
                merged = self.merged(value_node, path) | merged
                continue
            key = _key(key_node, path)
            if key in lines:
                what = f"{key!r} is written twice, in lines {lines[key]} and {line}"
                self.problems.append(_problem(what, "keep one of them", show((*path, key))))
            lines[key] = line
            own[key] = self.value(value_node, (*path, key))
        return merged | own

    def merged(self, node: yaml.Node, path: Path) -> dict[str, Plain]:
        """Return what ``<<: *anchor`` or ``<<: [*first, *second]`` brings; the earlier one wins."""
        value = self.value(node, (*path, "<<"))
        found: dict[str, Plain] = {}
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                what = f"line {node.start_mark.line + 1}: << takes a mapping"
                raise StopReadingError(
                    _problem(what, "write <<: *anchor, where the anchor names a mapping", show(path))
                )
            found = part | found
        return found


def _missing(name: str, line: int, path: Path) -> Problem:
    if name == MARK:
        what = f"line {line}: ${{ begins no variable here"
        return _problem(what, "write ${NAME}, or $${ for the two characters themselves", show(path))
    what = f"line {line}: the environment variable {name} is not set"
    return _problem(what, f"export {name}=…, or write a default: ${{{name}:-value}}", show(path))


def _kind_of(text: str) -> str:
    """Return the tag of a number or a truth value; everything else is text."""
    kinds = (TAG + "bool", TAG + "int", TAG + "float")
    return next((tag for tag, pattern, _ in RESOLVERS if tag in kinds and pattern.match(text)), TAG + "str")


def _key(node: yaml.Node, path: Path) -> str:
    if isinstance(node, yaml.ScalarNode) and node.tag == TAG + "str":
        return str(node.value)
    line = node.start_mark.line + 1
    written = node.value if isinstance(node, yaml.ScalarNode) else "a list or mapping"
    what = f"line {line}: the key {written} is not text"
    raise StopReadingError(_problem(what, f'put the key in quotes: "{written}"', show(path)))


def _scalar(node: yaml.ScalarNode, path: Path) -> Plain:
    kind = node.tag.removeprefix(TAG)
    text = str(node.value)
    if kind == "str":
        return text
    if kind == "null" and text in ("", "~", "null", "Null", "NULL"):
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and INT.fullmatch(text) and len(text) <= MAX_DIGITS:
        return int(text)
    if kind == "float" and FLOAT.fullmatch(text):
        return float(text)
    raise _unknown_tag(node, path)


def _unknown_tag(node: yaml.Node, path: Path) -> StopReadingError:
    mark = node.start_mark
    kind = node.tag.removeprefix(TAG)
    what = f"line {mark.line + 1}, column {mark.column + 1}: a fleet file cannot hold this value ({kind})"
    return StopReadingError(
        _problem(what, "write text, numbers, true, false, null, lists and mappings; no ! tags", show(path))
    )
