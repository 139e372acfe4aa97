"""Patches that let vLLM continue a response that began on another engine."""
