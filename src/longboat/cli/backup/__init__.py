"""``longboat backup`` and ``longboat restore``: what a machine knows of a fleet that cannot be made again.

It must not read engines' environments, weights or logs: these are fetched or made again.
"""
