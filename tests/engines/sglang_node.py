"""The fixture ``sglang_node``: real SGLang engines, forked from one zygote, since SGLang takes long to import."""

from __future__ import annotations

import os

__all__ = ("SGLANG_PYTHON",)

SGLANG_PYTHON = os.environ.get("LONGBOAT_TEST_SGLANG_PYTHON", "")
