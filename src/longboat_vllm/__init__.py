"""Code that runs inside an engine's Python environment: process keeper, zygote, launcher and vLLM plugin.

It uses the standard library and vLLM only, imports nothing of ``longboat``, and loads nothing when it is imported.
"""

__version__ = "0.1.0"
