"""Runs inside an SGLang environment: what SGLang lacks without CUDA, its launcher, its zygote, and resumed streams.

It imports nothing of ``longboat``; the adapter puts it, with ``longboat_vllm``, on the engine's import path.
"""

__version__ = "0.1.0"
