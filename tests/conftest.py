"""Fixtures that every room's tests may use."""

from __future__ import annotations

pytest_plugins = ("netlab.plugin",)
