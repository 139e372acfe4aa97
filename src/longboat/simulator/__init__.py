"""A twin of the fleet: a discrete-event simulation of engines that are driven by the production routing and queue code.

Pure: no file, no clock, no network; the same seed gives the same result. docs/concepts/twin.md explains the model.
"""

from longboat import compiled as _compiled  # noqa: F401 - compiled modules come before their sources
