"""Starts engines on nodes: adapters turn plans into commands, environments hold what runs, launch starts it."""
