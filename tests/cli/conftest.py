"""The command line as a function of its words."""

from __future__ import annotations

from cli.cli_process import longboat

__all__ = ("longboat",)
