"""What runs inside an engine's Python environment: process keeper, zygote, launcher and vLLM plugin.

Standard library and vLLM only; nothing of ``longboat`` is imported here, and importing this package loads nothing.
"""

__version__ = "0.1.0"
