"""A headless Chromium for tests and pictures of the console."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

__all__ = ("browser", "why_no_browser")


def why_no_browser() -> str:
    """Return why no page can be opened here; empty where one can."""
    if find_spec("playwright") is None:
        return "playwright is not installed (make test-console installs it)"
    return "" if _chromium() else "Chromium is not installed (on Debian: apt-get install chromium)"


def _chromium() -> str | None:
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """Give a browser, which ends with the block."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            await chromium.close()
