"""Models that no file has: ``longboat start`` and ``longboat stop``, and the process that does the same for a gateway.

It must decide nothing by itself: ``cli/fleet`` plans and puts the fleet, as for ``longboat up``.
"""
