"""Engines as processes: a plan becomes command lines, environments and ports; nothing here imports an engine or Ray."""
