"""Keeps forks from writing to the pages of what the warm parent has loaded: the kernel copies such pages for each fork.

Python counts references in the object itself, so whatever looks at an object writes to its page. Since 3.12, Python
does not count an object whose count is that of ``None``, and never frees it.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import sysconfig
import types
from collections.abc import Iterable

__all__ = ("can_last", "keep_for_good", "loaded_objects", "share_what_is_loaded")


def share_what_is_loaded() -> None:
    """Leave what is loaded uncounted; where Python counts everything, give up references that forks would give up."""
    if can_last():
        keep_for_good(loaded_objects())
    else:
        sys._clear_type_cache()  # of names of attributes, each a write to another page when it is replaced


def can_last() -> bool:
    """Return whether this Python has objects that it does not count."""
    is_counted_by_threads = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return sys.implementation.name == "cpython" and sys.version_info >= (3, 12) and not is_counted_by_threads


def loaded_objects() -> list[object]:
    """Return what the cycle collector knows, and what that refers to."""
    found = gc.get_objects()
    found += gc.get_referents(*found)
    for code in [each for each in found if isinstance(each, types.CodeType)]:  # the collector does not look into code
        found += (code.co_consts, code.co_names, *code.co_consts, *code.co_names)
    return found


def keep_for_good(objects: Iterable[object]) -> None:
    """Give each of these objects the count of ``None``. Only where ``can_last``."""
    import numpy as np

    places = np.unique(np.fromiter(map(id, objects), dtype=np.uint64))
    if not len(places):
        return
    lowest, size = int(places[0]), ctypes.sizeof(ctypes.c_uint32)
    whole = (ctypes.c_uint32 * ((int(places[-1]) - lowest) // size + 1)).from_address(lowest)
    np.frombuffer(whole, dtype=np.uint32)[(places - np.uint64(lowest)) // np.uint64(size)] = _count_of(None)


def _count_of(value: object) -> int:
    return ctypes.c_uint32.from_address(id(value)).value
