"""Models that need no download: ``builtin:tiny``, a small model of Longboat's own, and ``builtin:random-<size>``.

This room writes model folders and describes them. It does not plan, start engines or import torch.
"""

from __future__ import annotations

from longboat.builtin.models import BuiltinModel, describe, ensure, ensure_as_gguf, is_builtin, names

__all__ = ("BuiltinModel", "describe", "ensure", "ensure_as_gguf", "is_builtin", "names")
