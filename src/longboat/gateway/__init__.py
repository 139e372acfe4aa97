"""The HTTP edge: takes OpenAI requests, relays them to engines, and moves every response as bytes.

It must not import Ray, an engine, or any room but core, routing, heartbeat and engines: it is a process of its own that
keeps serving when the control plane is gone.
"""

from longboat import compiled as _compiled  # noqa: F401 - compiled modules come before their sources
