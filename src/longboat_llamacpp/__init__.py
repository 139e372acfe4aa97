"""Runs beside llama.cpp in its environment: starts its servers, and answers the gateway in front of them.

It imports nothing of ``longboat``.
"""

__version__ = "0.1.0"
