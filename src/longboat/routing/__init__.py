"""Decides which endpoint gets a request, or that it waits, or that it is shed.

Pure: no I/O, no clock, no randomness; imports core only.
"""

from longboat import compiled as _compiled  # noqa: F401 - compiled modules come before their sources
