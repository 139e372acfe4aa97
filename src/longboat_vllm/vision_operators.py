"""Loads torchvision where its compiled part does not fit torch's CPU build, which PyPI's wheel of it is not made for.

The overlay holds this file as ``torchvision/__init__.py``, before the real package on the import path: vLLM inspects
models in processes of their own, which import torchvision before any plugin. Image processors use torchvision's
Python part alone; its Python part names two compiled operators, and cannot be imported without them.
"""

import importlib.machinery
import os
import sys
from typing import Any

import torch

_OPERATORS = ("nms", "qnms")
_ARGUMENTS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OVERLAY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _real_spec() -> Any:
    elsewhere = [entry for entry in sys.path if os.path.abspath(entry) != _OVERLAY]
    found = importlib.machinery.PathFinder.find_spec("torchvision", elsewhere)
    if found is None or found.loader is None:
        raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
    return found


def _load_or_declare(folder: str) -> None:
    """Load the compiled part; where it cannot be loaded, declare its operators, which then fail when called."""
    for name in ("_C.so", "_C_stable.so"):
        try:
            torch.ops.load_library(os.path.join(folder, name))
        except OSError:
            continue
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _ARGUMENTS)


_spec = _real_spec()
_load_or_declare(os.path.dirname(_spec.origin))
__spec__ = _spec
__file__ = _spec.origin
__path__ = _spec.submodule_search_locations
_spec.loader.exec_module(sys.modules[__name__])
