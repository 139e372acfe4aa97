"""Answers one question of the console: JSON on standard input, JSON on standard output."""

from __future__ import annotations

import os
import sys
import tempfile

from longboat.cli.what_if.question import answer_bytes


def main() -> None:
    """Answer, in an empty folder: no text of the browser names a file of this machine."""
    question = sys.stdin.buffer.read()
    with tempfile.TemporaryDirectory(prefix="longboat-plan-") as empty:
        os.chdir(empty)
        sys.stdout.buffer.write(answer_bytes(question))
        os.chdir("/")


main()
