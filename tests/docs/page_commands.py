"""The commands of pages, as a shell and the command line read them; and those that tests run."""

from __future__ import annotations

import ast
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_FENCE = re.compile(r"^( *)```[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_PROMPT = re.compile(r"^(?:[\w ]*\$ +| *ExecStart=)")
_NAME = re.compile(r"[a-z]+")
_SHELL = frozenset("();<>|&")
_CALLED = re.compile(r"(?:^|/)longboat$")
RUNNERS = frozenset({"cli", "must", "popen", "longboat", "run", "invoke", "call", "cost_of_longboat", "done"})
"""Functions of tests whose arguments are the words of a command line."""


@dataclass(frozen=True, slots=True)
class PageCommand:
    """A command of a page: words as they stand after ``longboat`` or ``make``."""

    page: str
    program: str
    words: tuple[str, ...]
    whole: bool  # in a block, where it is to be typed; else it may be a mention

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join((self.program, *self.words))}"


def commands_of(page: str, text: str) -> Iterator[PageCommand]:
    """Find the commands of a page."""
    for _, block in _FENCE.findall(text):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            yield from _in_line(page, _PROMPT.sub("", line), whole=True)
    for code in _CODE.findall(_FENCE.sub("", text)):
        yield from _in_line(page, code, whole=False)


def _in_line(page: str, line: str, *, whole: bool) -> Iterator[PageCommand]:
    for words in _simple_commands(line):
        for place, word in enumerate(words):
            if " " in word and "longboat " in word:
                yield from _in_line(page, word, whole=whole)
            elif _CALLED.search(word) and _NAME.fullmatch(next(iter(words[place + 1 :]), "")):
                yield PageCommand(page, "longboat", tuple(w for w in words[place + 1 :] if w != "…"), whole)
                break
        if words[0] == "make" and len(words) > 1:
            yield PageCommand(page, "make", tuple(words[1:]), whole)


def _simple_commands(line: str) -> Iterator[list[str]]:
    """Split a line at the shell's operators; what no shell could read holds no command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return
    part: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= _SHELL:
            if part and not word.startswith((">", "<")):
                yield part
                part = []
            elif part:
                yield part
                part = ["", ""]
        else:
            part.append(word)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line as the command line's own parser reads it: ``node start``, and the options by their long names."""

    path: str
    options: frozenset[str]


def parsed(root: Any, words: Sequence[str]) -> Parsed:
    """Read a command line without running it. Raises the parser's UsageError where it is wrong."""
    context = root.make_context("longboat", list(words))
    path: list[str] = []
    command = root
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        path.append(name)
        context = command.make_context(name, list(rest), parent=context)
    return Parsed(" ".join(path), _options(command, words))


def use_of(commands: Mapping[str, Any], found: PageCommand) -> Parsed | None:
    """Return which command a page names, and its options; None where it names a group, or a target of make."""
    words = [word for word in found.words if not word.startswith("-")]
    if found.program == "make":
        return None
    for path in (" ".join(words[:2]), words[0], f"{words[0]} model"):  # `plan MODEL` is `plan model MODEL`
        if path in commands:
            return Parsed(path, _options(commands[path], found.words))
    return None


def _options(command: Any, words: Sequence[str]) -> frozenset[str]:
    """Return the long names of the options among words."""
    given = {word.split("=")[0] for word in words if word.startswith("-")}
    return frozenset(max(param.opts, key=len) for param in command.params if given & set(param.opts))


class CommandsOfTests:
    """The commands that the sources of tests run: a call or a list that holds a command's words one after the other."""

    def __init__(self, commands: Mapping[str, Any]) -> None:
        """commands: ``node start`` → the command"""
        self._commands = commands
        self.options: dict[str, set[str]] = defaultdict(set)

    def read(self, source: str) -> None:
        """Add what a test file runs."""
        rows = [_words_of(node) for node in ast.walk(ast.parse(source))]
        wrapped = {path for words in rows if words and "*" in words if (path := self._add(words))}
        for words in rows:
            if words and self._add(words) is None:
                for path in wrapped:  # the file has a function that puts the command before its arguments
                    self.options[path] |= _options(self._commands[path], words)

    def _add(self, words: list[str]) -> str | None:
        for path in (" ".join(words[:2]), *words[:1], *(f"{word} model" for word in words[:1])):
            if path in self._commands:
                self.options[path] |= _options(self._commands[path], words)
                return path
        return None


def _words_of(node: ast.AST) -> list[str]:
    """Return the words of a command line, if a node of a test's source can hold them."""
    if isinstance(node, ast.Call):
        name, words = _name_of(node.func), [_text_of(arg) for arg in node.args]
        return words if name in RUNNERS else [name, *words] if name == "cluster" else []
    if isinstance(node, ast.List | ast.Tuple):
        words = [_text_of(entry) for entry in node.elts]
        return words[_after_program(words) :]
    if isinstance(node, ast.Constant | ast.JoinedStr) and (line := _line_of(node)):
        return [word for found in _in_line("", line, whole=True) for word in found.words]
    return []


def _after_program(words: list[str]) -> int:
    """Return where the words of the command begin in an ``argv``."""
    return next((place + 1 for place, word in enumerate(words) if _CALLED.search(word) or word == "LONGBOAT"), 0)


def _name_of(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


def _text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Starred):
        return "*"
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return "LONGBOAT" if "LONGBOAT" in ast.dump(node) else "…"


def _line_of(node: ast.Constant | ast.JoinedStr) -> str:
    """Return the text of a command line in a string, for example one that a host runs."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    values = [part.value if isinstance(part, ast.Constant) else "x" for part in parts]
    text = "".join(value for value in values if isinstance(value, str))
    return text if "bin/longboat " in text and "\n" not in text else ""
