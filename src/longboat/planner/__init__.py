"""Decisions about placement: what fits, how it is split, and why not. Pure: no file, no clock, no Ray.

Rejections are values that carry the numbers; nothing here logs or starts anything.
"""

from longboat import compiled as _compiled  # noqa: F401 - compiled modules come before their sources
