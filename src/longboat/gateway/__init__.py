"""The HTTP edge: takes OpenAI requests, relays them to engines, moves every answer as bytes.

It must not import Ray, an engine, or any room but core and routing: it is a process of its own that goes on serving
when the control plane is gone.
"""

from longboat.compiled import import_compiled

import_compiled(__name__, __path__)
