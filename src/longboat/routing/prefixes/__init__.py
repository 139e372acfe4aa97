"""Knows which replica holds which prefix. Decides nothing: policies weigh what it knows."""
