"""Decides which endpoint gets a request, or that the request waits, or that it is shed.

Pure: does no I/O, reads no clock, draws no random numbers; imports core only.
"""

from longboat import compiled as _compiled  # noqa: F401 - compiled modules come before their sources
