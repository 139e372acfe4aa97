"""Check of the project's English: ``tools/check_prose.py [PATH …]``.

Prints file, line, phrase and suggestion for each phrase that CONTRIBUTING.md bans, and exits with 1 if there is one.
Code in Markdown pages is not checked. In Python files, docstrings, comments and (except in tests) strings are checked.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PATHS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples", "src")
"""Files and folders that are checked without arguments."""

SUGGESTIONS = {
    r"\banew\b": "write 'again', or a verb with 're-'",
    r"\b(?:is|are|was|were|be|been|being)\s+told\b": "name the actor: 'the gateway reports …', 'the command gets …'",
    r"\bnobody\b": "name the role: 'no client', 'no process', 'no request'",
    r"\beverybody\b": "name the role: 'every client'",
    r"\bwhoever\b": "write 'anyone who', or name the role",
    r"\bwho\s+asks\b": "write 'the client' or 'the caller'",
    r"\bfor\s+ever\b": "write 'without end', or give the limit",
    r"\bso\s+many\b": "give the number, or write 'this number of'",
    r"(?<!\bthere\s)\b(?:is|are|was|were)\s+no\s+(?!(?:longer|more|less|fewer|slower|faster|better|worse|larger)\b)\w+":
        "write 'is not a …', or use the positive word",
    r"\b(?:go|goes|going|gone|went)\s+on\s+(?:with|from|after|elsewhere|by)\b": "write 'continue' or 'resume'",
    r"\bheld\s+for\b": "write 'treated as'",
    r"\btaken\s+for\b": "write 'treated as' or 'mistaken for'",
    r"\bis\s+there\s+again\b": "write 'recovered' or 'returned'",
    r"\bis\s+taken\s+back\b": "write 'is rolled back'",
    r"\ball\s+the\s+same\b": "write 'anyway'",
    r"\bin\s+vain\b": "write 'without success', or use 'failed'",
    r"\bshall\b": "write 'must' or 'will'",
    r"\bdear(?:er|est)?\b": "write 'expensive', or give the cost",
    r"\b(?:thus|hence|whence|thereby|therein)\b": "write 'so', or name what it refers to",
    r"\bwho\s+serves\b": "write 'which replica serves'",
    r"\bstands?\s+against\b": "write 'prevents', or name the process that does",
    r"\bfor\s+so\s+long\b": "write 'for this time'",
    r"\bours\b": "name the owner: 'the project's', 'this process's'",
    r"\bwhat\s+runs\s+(?:here|there|where)\b": "write 'the running processes' or 'the running replicas'",
    r'^[rR]?"""(?:Of|Those|Who|Whose|Whom)\b': "begin with a verb (function) or a noun (class, module)",
}  # fmt: skip
"""Regular expression of a phrase → what to write instead."""

_PATTERNS = {re.compile(phrase, re.IGNORECASE): suggestion for phrase, suggestion in SUGGESTIONS.items()}
_NO_VERB = re.compile(
    r"(?:The|A|An|What|How|When|Where|Whether|All|Each|Every|One|Who|Whoever|That|Those|This|Its|For|By|With|Of|From)\b"
)
_CODE = re.compile(r"^ *```.*?^ *```|``[^`]+``|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_TEXT_TOKENS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_STATEMENT_ENDS = {tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
_SUFFIXES = {".md", ".py", ".yaml"}


@dataclass(frozen=True, slots=True)
class Finding:
    """A phrase that should be rewritten."""

    path: Path
    # Line of the phrase's first word, from 1.
    line: int
    phrase: str
    suggestion: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: '{self.phrase}': {self.suggestion}"


def main(names: Sequence[str]) -> int:
    """Check the named files and folders (none: the usual ones); return the exit status."""
    paths = [Path(name) for name in names or PATHS]
    if missing := [path for path in paths if not path.exists()]:
        print(f"no such file or folder: {', '.join(map(str, missing))}", file=sys.stderr)
        return 2
    findings = [finding for path in paths for file in files_in(path) for finding in check(file)]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


def files_in(path: Path) -> list[Path]:
    """Return a file itself, or the checked files of a folder, sorted."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)


def check(path: Path) -> list[Finding]:
    """Return the findings of one file, in the order of their lines."""
    pieces = python_prose(path) if path.suffix == ".py" else [(1, path.read_text(encoding="utf-8"))]
    findings = [finding for first_line, text in pieces for finding in findings_in(path, first_line, text)]
    if path.suffix == ".py" and not path.name.startswith("test_"):
        findings.extend(without_verb(path))
    return sorted(findings, key=lambda finding: finding.line)


def without_verb(path: Path) -> Iterator[Finding]:
    """Yield the docstrings of a program's functions that begin with what cannot be a verb."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("__"):
            continue
        if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
            continue
        if found := _NO_VERB.match(ast.get_docstring(node) or ""):
            yield Finding(
                path, node.body[0].lineno, found[0], "begin with a verb: 'Return …', 'Write …', 'Note that …'"
            )


def findings_in(path: Path, first_line: int, text: str) -> Iterator[Finding]:
    """Yield the findings of one piece of prose. first_line: its line in the file."""
    prose = _CODE.sub(masked, text)
    for pattern, suggestion in _PATTERNS.items():
        for match in pattern.finditer(prose):
            line = first_line + prose.count("\n", 0, match.start())
            yield Finding(path, line, " ".join(match[0].split()), suggestion)


def masked(code: re.Match[str]) -> str:
    """Return code as a text of the same lines in which no phrase can match."""
    return re.sub(r"[^\n]", "`", code[0])


def python_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of docstrings and comments, and of other strings outside of tests."""
    before = tokenize.ENCODING
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_docstring = token.type == tokenize.STRING and before in _STATEMENT_ENDS
            if token.type in _TEXT_TOKENS and (
                is_docstring or token.type == tokenize.COMMENT or not path.name.startswith("test_")
            ):
                yield token.start[0], token.string
            if token.type not in {tokenize.COMMENT, tokenize.NL}:
                before = token.type


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
