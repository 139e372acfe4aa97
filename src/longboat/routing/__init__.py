"""Decides which endpoint gets a request, or that it waits, or that it is shed.

Pure: no I/O, no clock, no randomness; imports core only.
"""

from longboat.compiled import import_compiled

import_compiled(__name__, __path__)
