"""Carries out one order that a gateway passes on: JSON on standard input, JSON on standard output."""

from __future__ import annotations

import os
import sys

from longboat.cli.model_orders.order import answer_bytes


def main() -> None:
    """Answer on the standard output that this process began with: nothing else may write there."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    answer.write(answer_bytes(sys.stdin.buffer.read()))
    answer.close()


main()
