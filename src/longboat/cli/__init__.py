"""The command line: the composition root. Commands are thin; what is heavy to import is imported when it is needed."""

import time

BEGAN_S = time.monotonic()
"""When this process began to load a command: on a busy machine, that takes seconds of what a command may take."""

STATUS_S = 7.0
"""``longboat status`` waits no longer on a node: what was killed comes back in seconds, and Ray waits much longer."""
