"""Decides which endpoint gets a request, or that the request waits, or that it is shed.

Pure: does no I/O, reads no clock, draws no random numbers; imports core only.
"""

from longboat.compiled import import_compiled

import_compiled(__name__, __path__)
