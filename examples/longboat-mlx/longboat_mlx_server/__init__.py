"""Runs in MLX's environment, and imports nothing of Longboat."""

__version__ = "0.1.0"
