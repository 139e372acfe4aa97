"""Longboat serves large language models on several machines: many rowers, one boat."""

__version__ = "0.1.0"
